//! How an app-server ends, and what its sessions hear of it.

use std::time::Duration;

use carrel_agents::{
    agent::{Agent, AgentError, Fact, Gone, Opening},
    child::ChildExit,
    codex::{Codex, Limits},
    schema::{EventData, ItemStatus},
};

use crate::bench::{Bench, Talk, on_one_thread};

async fn exit(talk: &mut Talk) -> ChildExit {
    talk.find(|fact| if let Fact::Gone(Gone::ServerExited(exit)) = fact { Some(exit) } else { None }).await
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn after_a_crash_everybody_is_told_and_threads_are_opened_again() {
    on_one_thread(async {
        let bench = Bench::new();
        let (mut one, mut two) = tokio::join!(bench.open(), bench.open());
        let native_id = two.conversation.native_id();
        one.prompt("crash").await;
        for talk in [&mut one, &mut two] {
            let exit = exit(talk).await;
            assert_eq!((exit.code, exit.signal, exit.stderr.trim()), (Some(3), None, "out of luck"));
        }
        let mut again = bench.open_with(Opening { native_id: native_id.clone(), begun: true, ..bench.opening() }).await;
        assert_eq!(again.conversation.native_id(), native_id);
        assert_eq!(again.turn("say back").await, ["back"]);
        assert_eq!(bench.starts(), 2);
        // What was open before the crash is closed without harm to what is open now.
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert_eq!(again.turn("say still").await, ["still"]);
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_thread_that_was_never_prompted_is_begun_anew() {
    on_one_thread(async {
        let bench = Bench::new();
        let native_id = Some("never begun".to_owned());
        let talk = bench.open_with(Opening { native_id: native_id.clone(), ..bench.opening() }).await;
        assert_ne!(talk.conversation.native_id(), native_id);
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_thread_that_is_lost_is_refused_in_codex_own_words() {
    on_one_thread(async {
        let bench = Bench::new();
        let opening = Opening { native_id: Some("lost".to_owned()), begun: true, ..bench.opening() };
        let Err(AgentError::Refused { message, .. }) = bench.codex.open(opening).await.map(drop) else { panic!() };
        assert_eq!(message, "no rollout found");
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn one_that_cannot_run_says_why_and_is_not_started_in_a_rush() {
    on_one_thread(async {
        let restart = Duration::from_millis(300);
        let mut bench = Bench::with(Limits { restart, ..Limits::default() });
        bench.environment.push(("DIES".to_owned(), "yes".to_owned()));
        let begun = tokio::time::Instant::now();
        for _ in 0..2 {
            let Err(error) = bench.codex.open(bench.opening()).await.map(drop) else { panic!() };
            assert!(error.to_string().contains("cannot run here"), "{error}");
        }
        assert!(begun.elapsed() >= restart);
        assert_eq!(bench.starts(), 2);
    });
}

#[test]
fn a_program_that_is_not_there_is_named() {
    on_one_thread(async {
        let bench = Bench::new();
        let mut opening = bench.opening();
        opening.place.program = "/nowhere/codex".into();
        let Err(error) = bench.codex.open(opening).await.map(drop) else { panic!() };
        assert!(error.to_string().contains("/nowhere/codex"), "{error}");
    });
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn it_ends_once_nobody_has_used_it_for_a_while_and_comes_back() {
    on_one_thread(async {
        let limits = Limits { idle: Duration::from_millis(200), restart: Duration::ZERO, ..Limits::default() };
        let mut bench = Bench::with(limits);
        let mut watch = bench.watch_server();
        let talk = bench.open().await;
        watch.there().await;
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        watch.gone().await;
        assert_eq!(bench.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(bench.starts(), 2);
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

/// How the items ended that ended in these facts.
fn items(facts: &[Fact]) -> Vec<ItemStatus> {
    let items = facts.iter().filter_map(|fact| match fact {
        Fact::Event(EventData::ItemCompleted(item), _) => Some(item.status),
        _ => None,
    });
    items.collect()
}

/// Begins a turn with a command that does not end.
async fn work(talk: &mut Talk) {
    talk.prompt("work hard").await;
    talk.find(|fact| matches!(fact, Fact::Event(EventData::ItemStarted(_), _)).then_some(())).await;
}

#[test]
fn what_is_under_way_is_told_to_be_over_before_the_end() {
    on_one_thread(async {
        let bench = Bench::new();
        let (mut one, mut two) = tokio::join!(bench.open(), bench.open());
        work(&mut one).await;
        let mut last = Vec::new();
        one.conversation.close(Duration::from_secs(10), &mut last).await;
        assert_eq!(items(&last), [ItemStatus::Interrupted]);

        let mut one = bench.open().await;
        work(&mut one).await;
        two.prompt("crash").await;
        let mut facts = Vec::new();
        while !facts.iter().any(|fact| matches!(fact, Fact::Gone(_))) {
            facts.push(one.next().await);
        }
        assert_eq!(items(&facts), [ItemStatus::Interrupted]);
    });
}

#[test]
fn one_that_will_not_end_is_made_to() {
    on_one_thread(async {
        let mut bench = Bench::new();
        let mut watch = bench.watch_server();
        bench.environment.push(("STUBBORN".to_owned(), String::new()));
        let talk = bench.open().await;
        watch.there().await;
        talk.conversation.close(Duration::from_millis(10), &mut Vec::new()).await;
        bench.codex.shutdown(Duration::from_millis(10)).await;
        watch.gone().await;
    });
}

#[test]
fn what_nobody_can_be_found_for_ends_with_the_last_thread() {
    on_one_thread(async {
        let bench = Bench::new();
        let (mut one, two) = tokio::join!(bench.open(), bench.open());
        let mut detached = bench.watch("detached");
        one.turn(&format!("detach {}", detached.path)).await;
        detached.there().await;
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert!(detached.is_there());
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        detached.gone().await;
        assert_eq!(bench.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(bench.starts(), 2);
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn one_without_commands_outlives_its_last_thread() {
    on_one_thread(async {
        let bench = Bench::new();
        bench.open().await.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        assert_eq!(bench.open().await.turn("say hello").await, ["hello"]);
        assert_eq!(bench.starts(), 1);
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

//= agents.execution-models.process-lives-long-daemon
#[test]
fn shutdown_leaves_nothing() {
    on_one_thread(async {
        let mut bench = Bench::new();
        let mut watch = bench.watch_server();
        let mut talk = bench.open().await;
        watch.there().await;
        talk.prompt("hang").await;
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        bench.codex.shutdown(Duration::from_secs(2)).await;
        watch.gone().await;
        Codex::new().shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn one_that_does_not_answer_ends_with_the_wait_or_with_the_server() {
    on_one_thread(async {
        let mut bench = Bench::with(Limits { request: Duration::from_millis(20), ..Limits::default() });
        bench.environment.push(("MUTE".to_owned(), String::new()));
        let opened = bench.codex.open(bench.opening()).await.map(drop);
        assert!(matches!(opened, Err(AgentError::Timeout { request: "initialize", .. })), "{opened:?}");

        let mut bench = Bench::new();
        let mut watch = bench.watch_server();
        bench.environment.push(("MUTE".to_owned(), String::new()));
        let opened = bench.codex.open(bench.opening());
        let shutdown = async {
            watch.started().await;
            bench.codex.shutdown(Duration::from_secs(2)).await;
        };
        let (opened, ()) = tokio::join!(opened, shutdown);
        assert!(matches!(opened.map(drop), Err(AgentError::Refused { request: "initialize", .. })));
        watch.gone().await;
    });
}

#[test]
fn what_a_thread_left_running_ends_with_it_and_not_with_another() {
    on_one_thread(async {
        let bench = Bench::new();
        let (mut one, mut two) = tokio::join!(bench.open(), bench.open());
        let (mut first, mut second) = (bench.watch("one"), bench.watch("two"));
        one.turn(&format!("leave {}", first.path)).await;
        two.turn(&format!("leave {}", second.path)).await;
        tokio::join!(first.there(), second.there());
        one.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        first.gone().await;
        assert!(second.is_there());
        assert_eq!(two.turn("say still").await, ["still"]);
        two.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
        second.gone().await;
        bench.codex.shutdown(Duration::from_secs(2)).await;
    });
}

#[test]
fn a_session_whose_server_is_gone_takes_prompts_without_harm() {
    on_one_thread(async {
        let bench = Bench::new();
        let mut talk = bench.open().await;
        talk.prompt("crash").await;
        let exit = exit(&mut talk).await;
        assert_eq!(exit.code, Some(3));
        talk.prompt("say anything").await;
        talk.conversation.interrupt().await.unwrap();
        talk.conversation.close(Duration::from_secs(2), &mut Vec::new()).await;
    });
}
