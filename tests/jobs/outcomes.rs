//! The outcomes of a job, each distinguished from the others.

use std::time::Duration;

use carrel_shim_client::messages::{EndReason, FactKind, FailureCode, JobCommand, OutcomeKind};
use carrel_shim_client::{Journal, ShimError};
use carrel_tests::{TestSandbox, follow_all, outcome_of, read_until, run, script};

//= promises.jobs.outcomes-distinguished
#[test]
fn exit_codes_signals_and_failed_starts_are_distinguished() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let program = |program: &str| JobCommand { program: program.to_owned(), ..JobCommand::default() };
        let exited = |code| (OutcomeKind::Exited, Some(code), None);
        let cases = [
            (script("exit 0"), exited(0)),
            (script("exit 255"), exited(255)),
            // The code that a shell reports for a signal, but here without a signal.
            (script("exit 137"), exited(137)),
            (script("kill -9 $$"), (OutcomeKind::Signalled, None, Some(9))),
            (script("kill -SEGV $$"), (OutcomeKind::Signalled, None, Some(11))),
            (script("kill -TERM $$"), (OutcomeKind::Signalled, None, Some(15))),
            (program("/no/such/program"), (OutcomeKind::NeverRan, None, None)),
            (program("no-such-name"), (OutcomeKind::NeverRan, None, None)),
            (program("/etc/passwd"), (OutcomeKind::NeverRan, None, None)),
            (JobCommand { cwd: Some("/none".into()), ..program("true") }, (OutcomeKind::NeverRan, None, None)),
            (JobCommand { user: Some("no-such-user".into()), ..program("true") }, (OutcomeKind::NeverRan, None, None)),
        ];
        let mut shim = sandbox.shim().await;
        for (number, (command, expected)) in cases.iter().enumerate() {
            let job = format!("job-{number}");
            shim.start(&job, command).await.unwrap();
            let info = shim.wait(&job).await.unwrap();
            assert_eq!(outcome_of(&info), *expected, "{command:?}");
            let outcome = info.outcome.unwrap();
            let never_ran = expected.0 == OutcomeKind::NeverRan;
            assert_eq!((outcome.failure.is_some(), outcome.message.is_some()), (never_ran, never_ran), "{outcome:?}");
            assert_eq!(info.pid.is_none(), never_ran);
        }
        let failures = [(6, "not_found", "ENOENT"), (8, "permission_denied", "EACCES"), (9, "bad_cwd", "ENOENT")];
        for (number, failure, errno) in failures {
            let outcome = shim.job(&format!("job-{number}")).await.unwrap().outcome.unwrap();
            assert_eq!(outcome.failure.as_deref(), Some(failure), "{outcome:?}");
            assert_eq!(outcome.errno_name.as_deref(), Some(errno), "{outcome:?}");
        }
        // The journal has the same outcomes.
        let facts = shim.journal(1).await.unwrap();
        let ends = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
        let recorded: Vec<_> =
            ends.map(|fact| fact.outcome.clone().unwrap()).map(|o| (o.kind, o.code, o.signal)).collect();
        assert_eq!(recorded, cases.map(|(_, expected)| expected));
    });
}

//= promises.jobs.outcomes-distinguished
#[test]
fn an_oom_kill_is_distinguished_from_a_signal_and_recorded() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.limits.memory = Some(64 << 20)).await;
        let mut shim = sandbox.shim().await;
        // It holds all the memory itself, so there is no other process to kill.
        let eats = JobCommand {
            program: "awk".into(),
            args: vec!["BEGIN { text = \"x\"; while (1) text = text text }".into()],
            ..JobCommand::default()
        };
        shim.start("eats", &eats).await.unwrap();
        let info = shim.wait("eats").await.unwrap();
        assert_eq!(outcome_of(&info), (OutcomeKind::OutOfMemory, None, Some(9)), "{info:?}");
        let facts = shim.journal(1).await.unwrap();
        let position = |kind| facts.iter().position(|fact| fact.kind == kind);
        let (out, ended) = (position(FactKind::OutOfMemory).unwrap(), position(FactKind::JobEnded).unwrap());
        assert!(out < ended, "the cause is recorded before its effect");
        assert!(facts[out].out_of_memory_kills >= Some(1));
        // A shell whose child is OOM-killed exits with a code of its own, and the message of the job has the reason.
        shim.start("shell", &script(r#"awk 'BEGIN { text = "x"; while (1) text = text text }'; exit $?"#))
            .await
            .unwrap();
        let info = shim.wait("shell").await.unwrap();
        assert_eq!(outcome_of(&info), (OutcomeKind::Exited, Some(137), None));
        assert!(info.outcome.unwrap().message.unwrap().contains("OOM-killed"));
        // A later signal is not mistaken for an OOM kill.
        shim.start("killed", &script("kill -9 $$")).await.unwrap();
        assert_eq!(outcome_of(&shim.wait("killed").await.unwrap()), (OutcomeKind::Signalled, None, Some(9)));
        assert_eq!(outcome_of(&sandbox.job("after", &script("echo after")).await.info).1, Some(0));
    });
}

//= promises.jobs.outcomes-distinguished
#[test]
fn jobs_that_end_with_the_sandbox_say_so_and_the_journal_of_a_persistent_sandbox_is_kept() {
    run(async {
        let mut sandbox = TestSandbox::with(|create| create.lasting = true).await;
        let mut follow = sandbox.follow("waits", &script("trap '' TERM; echo up; while :; do sleep 0.01; done")).await;
        read_until(&mut follow, "up").await;
        let (mut waiting, mut late) = (sandbox.shim().await, sandbox.shim().await);
        let wait = tokio::spawn(async move { waiting.wait("waits").await });
        let mut polite = sandbox
            .follow("polite", &script("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"))
            .await;
        read_until(&mut polite, "up").await;
        // During the grace period no new job can start.
        let mut stopping = sandbox.shim().await;
        let stop = tokio::spawn(async move { stopping.stop(Duration::from_secs(5)).await });
        while late.status().await.unwrap().state != carrel_shim_client::messages::ShimState::Ending {}
        let refused = late.start("late", &script("true")).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::WrongState));
        let again = late.start("waits", &script("trap '' TERM; echo up; while :; do sleep 0.01; done")).await.unwrap();
        assert!(!again.created, "a repeated request attaches to the running job");
        read_until(&mut polite, "bye\n").await;
        let ended = stop.await.unwrap().unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::Stopped, Some(libc::SIGKILL)));
        // The job ends with the sandbox.
        match wait.await.unwrap() {
            Ok(info) => assert_eq!(outcome_of(&info), (OutcomeKind::SandboxEnded, None, None)),
            Err(error) => panic!("{error}"),
        }
        assert!(matches!(late.jobs().await, Err(ShimError::Ended(_))));
        sandbox.owned.ended().await.unwrap();
        let directory = std::fs::File::open(&sandbox.create.directory.0).unwrap();
        let loaded = Journal::load(&directory).unwrap();
        let kinds: Vec<FactKind> = loaded.facts.iter().map(|fact| fact.kind).collect();
        let last = [FactKind::JobEnded, FactKind::GuestExited, FactKind::Ended];
        assert!(kinds.ends_with(&last) && !loaded.torn, "{kinds:?}");
        assert_eq!(kinds.iter().filter(|kind| **kind == FactKind::JobEnded).count(), 2);
        assert_eq!(std::fs::read(sandbox.create.directory.0.join("jobs/polite.stdout.log")).unwrap(), b"up\nbye\n");
        assert!(carrel_shim::collect(&sandbox.create.directory.0).unwrap());
        assert_eq!(sandbox.traces(), Vec::<String>::new());
    });
}

#[test]
fn invalid_ids_are_refused_and_unknown_ids_are_not_found() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let long = "x".repeat(221);
        for id in ["", ".", "..", ".hidden", "a/b", "../escape", "a b", "a\0b", "ä", &long] {
            let refused = shim.start(id, &script("true")).await.unwrap_err();
            assert_eq!(refused.code(), Some(FailureCode::InvalidRequest), "{id:?}: {refused}");
            assert_eq!(shim.job(id).await.unwrap_err().code(), Some(FailureCode::JobUnknown));
        }
        for id in ["a", "A", "-", "_", "a..b", "a.stdout.log", &"x".repeat(220)] {
            assert!(shim.start(id, &script("true")).await.unwrap().created, "{id:?}");
            assert_eq!(outcome_of(&shim.wait(id).await.unwrap()).1, Some(0));
        }
        let unknown = Some(FailureCode::JobUnknown);
        assert_eq!(shim.wait("none").await.unwrap_err().code(), unknown);
        assert_eq!(shim.cancel("none", Duration::ZERO).await.unwrap_err().code(), unknown);
        assert_eq!(shim.write("none", b"", None).await.unwrap_err().code(), unknown);
        assert_eq!(shim.resize("none", 1, 1).await.unwrap_err().code(), unknown);
        assert_eq!(shim.signal("none", 1).await.unwrap_err().code(), unknown);
        assert_eq!(shim.close("none").await.unwrap_err().code(), unknown);
        assert_eq!(shim.follow(&follow_all("none")).await.unwrap().next().await.unwrap_err().code(), unknown);
    });
}
