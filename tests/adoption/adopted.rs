//! A sandbox that lasts goes on without its owner, and another takes it over.

use std::time::Duration;

use carrel_shim_client::messages::{
    EndReason, Fact, FactKind, FailureCode, JobCommand, JobState, ShimState, StreamName,
};
use carrel_shim_client::{Liveness, OwnedSandbox, OwnerError, ShimClient, ShimError, sandboxes};
use carrel_tests::{create, programs, run};

use crate::left;
use crate::standing::{NAME, Standing, job};

/// A job that goes on until it is told how to end.
fn patient() -> JobCommand {
    JobCommand { stdin: true, ..job("echo up; read -r code; echo \"$code\"; exit \"$code\"") }
}

/// What is known of one that has ended.
fn facts(standing: &Standing) -> Vec<Fact> {
    match standing.find().life {
        Liveness::Dead { facts, rebooted: false } => facts,
        life => panic!("{life:?}"),
    }
}

/// Who is said to supervise it instead.
fn holder(refused: Result<(), ShimError>) -> String {
    match refused {
        Err(ShimError::Failed(failed)) if failed.code == FailureCode::Supervised => failed.message,
        other => panic!("{other:?}"),
    }
}

//= promises.adoption.sandbox-lasts-whose-owner
#[test]
fn a_sandbox_whose_owner_is_killed_is_found_adopted_and_stopped_and_its_jobs_lose_nothing() {
    run(async {
        let mut standing = Standing::start();
        let mut before = standing.adopt().await;
        for id in ["first", "second"] {
            assert!(before.start(id, &patient()).await.unwrap().created);
        }
        before.write("first", b"7", None).await.unwrap();
        standing.bereave();

        let found = sandboxes(standing.home.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].life, found[0].record.as_ref()), (&Liveness::Running, Some(&standing.record)));
        assert_eq!(carrel_shim::sweep(&standing.sandboxes()).unwrap(), 0, "it lives");
        assert!(!carrel_shim::collect(&standing.directory()).unwrap(), "it lives");
        let mut client = found[0].connect().await.unwrap();
        client.supervise().await.unwrap();
        let status = client.status().await.unwrap();
        assert_eq!((status.state, status.running_jobs), (ShimState::Running, 2));
        assert_eq!(status.supervisor.unwrap().pid, std::process::id());
        assert_ne!(client.job("first").await.unwrap().state, JobState::Ended);
        // The half of a line that was written before is not lost, nor given twice.
        for (id, code, offset) in [("first", 7, Some(0)), ("second", 5, None)] {
            client.write(id, format!("{code}\n").as_bytes(), offset).await.unwrap();
            let ended = client.wait(id).await.unwrap();
            assert_eq!(ended.outcome.unwrap().code, Some(code), "{id}");
            let output = client.read(id, StreamName::Stdout, 0, 100).await.unwrap();
            assert_eq!((output.data, output.end), (format!("up\n{code}\n").into_bytes(), true));
        }
        let again = client.start("first", &patient()).await.unwrap();
        assert!(!again.created, "it ran already, whoever asked for it");

        let ended = client.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!((ended.reason, ended.code), (EndReason::Stopped, Some(0)));
        let facts = facts(&standing);
        let last = facts.last().unwrap();
        assert_eq!((last.kind, last.reason), (FactKind::Ended, Some(EndReason::Stopped)));
        let asked = facts.iter().find(|fact| fact.kind == FactKind::StopAsked).unwrap();
        assert!(asked.message.as_ref().unwrap().contains(&std::process::id().to_string()), "{asked:?}");
        let ends = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
        assert_eq!(ends.map(|fact| fact.outcome.as_ref().unwrap().code).collect::<Vec<_>>(), [Some(7), Some(5)]);
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
        assert_eq!(left::of(standing.create()), Vec::<String>::new());
        assert!(sandboxes(standing.home.path()).unwrap().is_empty());
    });
}

//= promises.adoption.supervisor-whose-owner-gone
#[test]
fn a_supervisor_whose_owner_is_gone_sleeps() {
    run(async {
        let mut standing = Standing::start();
        standing.bereave();
        // It has noticed when it answers somebody else.
        standing.adopt().await.status().await.unwrap();
        let syscall = format!("/proc/{}/syscall", standing.record.shim_pid);
        let mut asleep = 0;
        while asleep < 100 {
            // One that is woken again and again is hardly ever found to wait.
            let waits = !std::fs::read_to_string(&syscall).unwrap().starts_with("running");
            asleep = if waits { asleep + 1 } else { 0 };
            tokio::task::yield_now().await;
        }
        standing.adopt().await.stop(Duration::from_secs(20)).await.unwrap();
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
    });
}

//= promises.adoption.supervisors-time
#[test]
fn one_supervises_at_a_time_and_whoever_comes_second_is_told_who() {
    run(async {
        let mut standing = Standing::start();
        let (mut first, mut second) = (standing.adopt().await, standing.adopt().await);
        let owner = holder(first.supervise().await);
        assert!(owner.contains(&format!("process {} ", standing.owner())), "{owner}");
        assert_eq!(second.status().await.unwrap().supervisor.unwrap().pid, standing.owner());
        // To look and to work, nobody has to supervise.
        assert_eq!(second.start("look", &job("exit 4")).await.unwrap().info.job, "look");

        standing.bereave();
        let (one, other) = tokio::join!(first.supervise(), second.supervise());
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let won = one.is_ok();
        let lost = holder(if won { other } else { one });
        assert!(
            lost.contains(&format!("process {} ", std::process::id())),
            "{lost}; its owner was {}",
            standing.owner()
        );
        let (mut winner, mut loser) = if won { (first, second) } else { (second, first) };
        winner.supervise().await.unwrap();
        drop(winner);
        loser.supervise().await.unwrap();
        assert_eq!(loser.wait("look").await.unwrap().outcome.unwrap().code, Some(4));
        // It stays though nobody supervises it.
        drop(loser);
        let mut next = standing.adopt().await;
        assert_eq!(next.status().await.unwrap().supervisor, None);
        assert_eq!(next.stop(Duration::ZERO).await.unwrap().reason, EndReason::Stopped);
    });
}

/// Reads what happens, a little on each connection, until there is nothing more.
async fn read_in_pieces(standing: &Standing) -> Vec<Fact> {
    let mut read: Vec<Fact> = Vec::new();
    loop {
        let next = read.len() as u64 + 1;
        let client = match standing.find() {
            found if found.life == Liveness::Running => found.connect().await,
            _ => break,
        };
        // It may end between a look and a word.
        let Ok(client) = client else { continue };
        let Ok(mut subscription) = client.subscribe(next).await else { continue };
        if let Ok(Some(facts)) = subscription.next().await {
            // Of what was told, only some was taken.
            let some = 1 + facts.len() / 2;
            read.extend(facts.into_iter().take(some));
        }
    }
    let rest = facts(standing).into_iter().skip(read.len());
    read.extend(rest);
    read
}

async fn live(standing: &Standing, mut client: ShimClient) {
    for number in 0..40 {
        let id = format!("job-{number}");
        client.start(&id, &job(&format!("exit {number}"))).await.unwrap();
        assert_eq!(client.wait(&id).await.unwrap().outcome.unwrap().code, Some(number));
        if number % 10 == 9 {
            client.pause().await.unwrap();
            client.resume().await.unwrap();
            // Whoever gave it work is another from now on.
            client = standing.adopt().await;
        }
    }
    client.stop(Duration::from_secs(20)).await.unwrap();
}

//= promises.journal.facts
#[test]
fn the_journal_is_read_across_connections_without_a_gap_and_nothing_twice() {
    run(async {
        let mut standing = Standing::start();
        let client = standing.adopt().await;
        let mut early = client.subscribe(1).await.unwrap();
        standing.bereave();
        let client = standing.adopt().await;
        let follow = async {
            let mut told = Vec::new();
            while let Some(facts) = early.next().await.unwrap() {
                told.extend(facts);
            }
            told
        };
        let (read, told, ()) = tokio::join!(read_in_pieces(&standing), follow, live(&standing, client));
        let kept = facts(&standing);
        // Claimed, started; two of each job; two of each pause; stop asked, guest exited, ended.
        let count = 2 + 2 * 40 + 2 * 4 + 3;
        assert!(kept.iter().map(|fact| fact.sequence).eq(1..=count), "{kept:?}");
        assert_eq!(read, kept);
        assert_eq!(told, kept);
    });
}

#[test]
fn a_name_is_taken_until_what_is_known_of_its_sandbox_is_collected() {
    run(async {
        let mut standing = Standing::start();
        standing.bereave();
        let again = create(standing.home.path(), NAME);
        let refused = async |hint: &str| match OwnedSandbox::start(&programs(), &again).await {
            Err(OwnerError::Failed(failed)) => {
                assert_eq!(failed.code, FailureCode::NameTaken);
                assert!(failed.hint.as_ref().is_some_and(|told| told.contains(hint)), "{failed:?}");
            }
            other => panic!("{other:?}"),
        };
        refused("stop the running sandbox").await;
        standing.adopt().await.stop(Duration::ZERO).await.unwrap();
        refused("remove the sandbox that has ended").await;
        assert!(!facts(&standing).is_empty(), "nothing of it was lost by that");
        assert!(carrel_shim::collect(&standing.directory()).unwrap());
        let mut next = OwnedSandbox::start(&programs(), &again).await.unwrap();
        next.stop(Duration::ZERO).await.unwrap();
    });
}
