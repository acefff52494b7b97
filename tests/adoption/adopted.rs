//! A persistent sandbox outlives its owner, and another process adopts it.

use std::time::Duration;

use carrel_shim_client::messages::{
    EndReason, Fact, FactKind, FailureCode, JobCommand, JobState, ShimState, StreamName,
};
use carrel_shim_client::{Liveness, OwnedSandbox, OwnerError, ShimClient, ShimError, sandboxes};
use carrel_tests::{create, programs, run};

use crate::leftovers;
use crate::persistent::{AdoptableSandbox, NAME, job};

/// A job that runs until it reads its exit code.
fn exits_on_input() -> JobCommand {
    JobCommand { stdin: true, ..job("echo up; read -r code; echo \"$code\"; exit \"$code\"") }
}

/// The journal of a dead sandbox.
fn facts(sandbox: &AdoptableSandbox) -> Vec<Fact> {
    match sandbox.find().life {
        Liveness::Dead { facts, rebooted: false } => facts,
        life => panic!("{life:?}"),
    }
}

/// The message of a refusal, which names the process that supervises the sandbox.
fn refusal(refused: Result<(), ShimError>) -> String {
    match refused {
        Err(ShimError::Failed(failed)) if failed.code == FailureCode::Supervised => failed.message,
        other => panic!("{other:?}"),
    }
}

//= promises.adoption.persistent-sandbox-whose-owner-killed
#[test]
fn a_persistent_sandbox_outlives_its_owner_and_is_adopted_without_losing_job_output() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        let mut before = sandbox.adopt().await;
        for id in ["first", "second"] {
            assert!(before.start(id, &exits_on_input()).await.unwrap().created);
        }
        before.write("first", b"7", None).await.unwrap();
        sandbox.kill_owner();

        let found = sandboxes(sandbox.home.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].life, found[0].record.as_ref()), (&Liveness::Running, Some(&sandbox.record)));
        assert_eq!(carrel_shim::sweep(&sandbox.sandboxes()).unwrap(), 0, "it runs");
        assert!(!carrel_shim::collect(&sandbox.directory()).unwrap(), "it runs");
        let mut client = found[0].connect().await.unwrap();
        client.supervise().await.unwrap();
        let status = client.status().await.unwrap();
        assert_eq!((status.state, status.running_jobs), (ShimState::Running, 2));
        assert_eq!(status.supervisor.unwrap().pid, std::process::id());
        assert_ne!(client.job("first").await.unwrap().state, JobState::Ended);
        // The half of a line that was written before is neither lost nor repeated.
        for (id, code, offset) in [("first", 7, Some(0)), ("second", 5, None)] {
            client.write(id, format!("{code}\n").as_bytes(), offset).await.unwrap();
            let ended = client.wait(id).await.unwrap();
            assert_eq!(ended.outcome.unwrap().code, Some(code), "{id}");
            let output = client.read(id, StreamName::Stdout, 0, 100).await.unwrap();
            assert_eq!((output.data, output.end), (format!("up\n{code}\n").into_bytes(), true));
        }
        let again = client.start("first", &exits_on_input()).await.unwrap();
        assert!(!again.created, "it already ran");

        let ended = client.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!((ended.reason, ended.code), (EndReason::Stopped, Some(0)));
        let facts = facts(&sandbox);
        let last = facts.last().unwrap();
        assert_eq!((last.kind, last.reason), (FactKind::Ended, Some(EndReason::Stopped)));
        let requested = facts.iter().find(|fact| fact.kind == FactKind::StopAsked).unwrap();
        assert!(requested.message.as_ref().unwrap().contains(&std::process::id().to_string()), "{requested:?}");
        let ends = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
        assert_eq!(ends.map(|fact| fact.outcome.as_ref().unwrap().code).collect::<Vec<_>>(), [Some(7), Some(5)]);
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        assert_eq!(leftovers::of(sandbox.create()), Vec::<String>::new());
        assert!(sandboxes(sandbox.home.path()).unwrap().is_empty());
    });
}

//= promises.adoption.shim-whose-owner-gone
#[test]
fn a_shim_without_an_owner_does_not_busy_loop() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        sandbox.kill_owner();
        // When the shim answers another client, it has noticed that its owner is gone.
        sandbox.adopt().await.status().await.unwrap();
        let syscall = format!("/proc/{}/syscall", sandbox.record.shim_pid);
        let mut asleep = 0;
        while asleep < 100 {
            // A shim in a busy loop is hardly ever found blocked in a system call.
            let waits = !std::fs::read_to_string(&syscall).unwrap().starts_with("running");
            asleep = if waits { asleep + 1 } else { 0 };
            tokio::task::yield_now().await;
        }
        sandbox.adopt().await.stop(Duration::from_secs(20)).await.unwrap();
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
    });
}

//= promises.adoption.supervisors-time
#[test]
fn one_process_supervises_at_a_time_and_a_refusal_names_it() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        let (mut first, mut second) = (sandbox.adopt().await, sandbox.adopt().await);
        let owner = refusal(first.supervise().await);
        assert!(owner.contains(&format!("process {} ", sandbox.owner())), "{owner}");
        assert_eq!(second.status().await.unwrap().supervisor.unwrap().pid, sandbox.owner());
        // A client that only reads and starts jobs does not have to supervise.
        assert_eq!(second.start("look", &job("exit 4")).await.unwrap().info.job, "look");

        sandbox.kill_owner();
        let (one, other) = tokio::join!(first.supervise(), second.supervise());
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let won = one.is_ok();
        let lost = refusal(if won { other } else { one });
        assert!(
            lost.contains(&format!("process {} ", std::process::id())),
            "{lost}; its owner was {}",
            sandbox.owner()
        );
        let (mut winner, mut loser) = if won { (first, second) } else { (second, first) };
        winner.supervise().await.unwrap();
        drop(winner);
        loser.supervise().await.unwrap();
        assert_eq!(loser.wait("look").await.unwrap().outcome.unwrap().code, Some(4));
        // It keeps running without a supervising client.
        drop(loser);
        let mut next = sandbox.adopt().await;
        assert_eq!(next.status().await.unwrap().supervisor, None);
        assert_eq!(next.stop(Duration::ZERO).await.unwrap().reason, EndReason::Stopped);
    });
}

/// Reads the journal, a few facts per connection, until the sandbox has ended.
async fn read_in_pieces(sandbox: &AdoptableSandbox) -> Vec<Fact> {
    let mut read: Vec<Fact> = Vec::new();
    loop {
        let next = read.len() as u64 + 1;
        let client = match sandbox.find() {
            found if found.life == Liveness::Running => found.connect().await,
            _ => break,
        };
        // It may end between discovery and connection.
        let Ok(client) = client else { continue };
        let Ok(mut subscription) = client.subscribe(next).await else { continue };
        if let Ok(Some(facts)) = subscription.next().await {
            // Takes only some of what was sent.
            let some = 1 + facts.len() / 2;
            read.extend(facts.into_iter().take(some));
        }
    }
    let rest = facts(sandbox).into_iter().skip(read.len());
    read.extend(rest);
    read
}

async fn run_jobs(sandbox: &AdoptableSandbox, mut client: ShimClient) {
    for number in 0..40 {
        let id = format!("job-{number}");
        client.start(&id, &job(&format!("exit {number}"))).await.unwrap();
        assert_eq!(client.wait(&id).await.unwrap().outcome.unwrap().code, Some(number));
        if number % 10 == 9 {
            client.pause().await.unwrap();
            client.resume().await.unwrap();
            // Another client continues.
            client = sandbox.adopt().await;
        }
    }
    client.stop(Duration::from_secs(20)).await.unwrap();
}

//= promises.journal.facts
#[test]
fn a_journal_that_is_read_over_many_connections_has_no_gaps_and_no_duplicates() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        let client = sandbox.adopt().await;
        let mut early = client.subscribe(1).await.unwrap();
        sandbox.kill_owner();
        let client = sandbox.adopt().await;
        let follow = async {
            let mut received = Vec::new();
            while let Some(facts) = early.next().await.unwrap() {
                received.extend(facts);
            }
            received
        };
        let (read, received, ()) = tokio::join!(read_in_pieces(&sandbox), follow, run_jobs(&sandbox, client));
        let kept = facts(&sandbox);
        // Claimed, started; two of each job; two of each pause; stop asked, guest exited, ended.
        let count = 2 + 2 * 40 + 2 * 4 + 3;
        assert!(kept.iter().map(|fact| fact.sequence).eq(1..=count), "{kept:?}");
        assert_eq!(read, kept);
        assert_eq!(received, kept);
    });
}

#[test]
fn a_name_is_taken_until_its_dead_sandbox_is_collected() {
    run(async {
        let mut sandbox = AdoptableSandbox::start();
        sandbox.kill_owner();
        let again = create(sandbox.home.path(), NAME);
        let refused = async |hint: &str| match OwnedSandbox::start(&programs(), &again).await {
            Err(OwnerError::Failed(failed)) => {
                assert_eq!(failed.code, FailureCode::NameTaken);
                assert!(failed.hint.as_ref().is_some_and(|text| text.contains(hint)), "{failed:?}");
            }
            other => panic!("{other:?}"),
        };
        refused("stop the running sandbox").await;
        sandbox.adopt().await.stop(Duration::ZERO).await.unwrap();
        refused("remove the sandbox that has ended").await;
        assert!(!facts(&sandbox).is_empty(), "the refusals did not remove the journal");
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        let mut next = OwnedSandbox::start(&programs(), &again).await.unwrap();
        next.stop(Duration::ZERO).await.unwrap();
    });
}
