//! The ways in which a job ends, each told from the others.

use std::time::Duration;

use carrel_shim_client::messages::{EndReason, FactKind, FailureCode, JobCommand, OutcomeKind};
use carrel_shim_client::{Journal, ShimError};
use carrel_tests::{Sandbox, all_of, ending, run, script, until};

//= promises.jobs.ends-told-apart
#[test]
fn codes_signals_and_what_never_ran_are_told_apart() {
    run(async {
        let sandbox = Sandbox::start().await;
        let program = |program: &str| JobCommand { program: program.to_owned(), ..JobCommand::default() };
        let exited = |code| (OutcomeKind::Exited, Some(code), None);
        let cases = [
            (script("exit 0"), exited(0)),
            (script("exit 255"), exited(255)),
            // As if a signal had ended it; but it did not.
            (script("exit 137"), exited(137)),
            (script("kill -9 $$"), (OutcomeKind::Signalled, None, Some(9))),
            (script("kill -SEGV $$"), (OutcomeKind::Signalled, None, Some(11))),
            (script("kill -TERM $$"), (OutcomeKind::Signalled, None, Some(15))),
            (program("/no/such/program"), (OutcomeKind::NeverRan, None, None)),
            (program("no-such-name"), (OutcomeKind::NeverRan, None, None)),
            (program("/etc/passwd"), (OutcomeKind::NeverRan, None, None)),
            (JobCommand { cwd: Some("/none".into()), ..program("true") }, (OutcomeKind::NeverRan, None, None)),
            (JobCommand { user: Some("nobody-here".into()), ..program("true") }, (OutcomeKind::NeverRan, None, None)),
        ];
        let mut shim = sandbox.shim().await;
        for (number, (command, expected)) in cases.iter().enumerate() {
            let job = format!("job-{number}");
            shim.start(&job, command).await.unwrap();
            let info = shim.wait(&job).await.unwrap();
            assert_eq!(ending(&info), *expected, "{command:?}");
            let outcome = info.outcome.unwrap();
            let never = expected.0 == OutcomeKind::NeverRan;
            assert_eq!((outcome.failure.is_some(), outcome.message.is_some()), (never, never), "{outcome:?}");
            assert_eq!(info.pid.is_none(), never);
        }
        let failures = [(6, "not_found", "ENOENT"), (8, "permission_denied", "EACCES"), (9, "bad_cwd", "ENOENT")];
        for (number, failure, errno) in failures {
            let outcome = shim.job(&format!("job-{number}")).await.unwrap().outcome.unwrap();
            assert_eq!(outcome.failure.as_deref(), Some(failure), "{outcome:?}");
            assert_eq!(outcome.errno_name.as_deref(), Some(errno), "{outcome:?}");
        }
        // The journal tells the same.
        let facts = shim.journal(1).await.unwrap();
        let ends = facts.iter().filter(|fact| fact.kind == FactKind::JobEnded);
        let told: Vec<_> = ends.map(|fact| fact.outcome.clone().unwrap()).map(|o| (o.kind, o.code, o.signal)).collect();
        assert_eq!(told, cases.map(|(_, expected)| expected));
    });
}

//= promises.jobs.ends-told-apart
#[test]
fn want_of_memory_is_told_from_a_signal_and_is_a_fact() {
    run(async {
        let sandbox = Sandbox::with(|create| create.limits.memory = Some(64 << 20)).await;
        let mut shim = sandbox.shim().await;
        // It holds it all itself: nobody else is there to be ended.
        let eats = JobCommand {
            program: "awk".into(),
            args: vec!["BEGIN { text = \"x\"; while (1) text = text text }".into()],
            ..JobCommand::default()
        };
        shim.start("eats", &eats).await.unwrap();
        let info = shim.wait("eats").await.unwrap();
        assert_eq!(ending(&info), (OutcomeKind::OutOfMemory, None, Some(9)), "{info:?}");
        let facts = shim.journal(1).await.unwrap();
        let position = |kind| facts.iter().position(|fact| fact.kind == kind);
        let (out, ended) = (position(FactKind::OutOfMemory).unwrap(), position(FactKind::JobEnded).unwrap());
        assert!(out < ended, "the reason comes before what came of it");
        assert!(facts[out].out_of_memory_kills >= Some(1));
        // A shell whose child is ended tells what it makes of it, and the job says why.
        shim.start("shell", &script(r#"awk 'BEGIN { text = "x"; while (1) text = text text }'; exit $?"#))
            .await
            .unwrap();
        let info = shim.wait("shell").await.unwrap();
        assert_eq!(ending(&info), (OutcomeKind::Exited, Some(137), None));
        assert!(info.outcome.unwrap().message.unwrap().contains("OOM-killed"));
        // A signal is a signal, although memory ran out before.
        shim.start("killed", &script("kill -9 $$")).await.unwrap();
        assert_eq!(ending(&shim.wait("killed").await.unwrap()), (OutcomeKind::Signalled, None, Some(9)));
        assert_eq!(ending(&sandbox.job("well", &script("echo well")).await.info).1, Some(0));
    });
}

//= promises.jobs.ends-told-apart
#[test]
fn jobs_that_the_sandbox_takes_along_say_so_and_the_journal_of_a_lasting_one_stays() {
    run(async {
        let mut sandbox = Sandbox::with(|create| create.lasting = true).await;
        let mut follow = sandbox.follow("waits", &script("trap '' TERM; echo up; while :; do sleep 0.01; done")).await;
        until(&mut follow, "up").await;
        let (mut waiting, mut late) = (sandbox.shim().await, sandbox.shim().await);
        let wait = tokio::spawn(async move { waiting.wait("waits").await });
        let mut polite = sandbox
            .follow("polite", &script("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"))
            .await;
        until(&mut polite, "up").await;
        // Asked and not insisted on: nobody starts anything any more.
        let mut stopping = sandbox.shim().await;
        let stop = tokio::spawn(async move { stopping.stop(Duration::from_secs(5)).await });
        while late.status().await.unwrap().state != carrel_shim_client::messages::ShimState::Ending {}
        let refused = late.start("late", &script("true")).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::WrongState));
        let again = late.start("waits", &script("trap '' TERM; echo up; while :; do sleep 0.01; done")).await.unwrap();
        assert!(!again.created, "whoever repeats itself is told of the one that runs");
        until(&mut polite, "bye\n").await;
        let ended = stop.await.unwrap().unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::Stopped, Some(libc::SIGKILL)));
        // Its last moment may be its answer, or the end of everything.
        match wait.await.unwrap() {
            Ok(info) => assert_eq!(ending(&info), (OutcomeKind::SandboxEnded, None, None)),
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
fn ids_that_are_none_are_refused_and_what_is_not_there_is_not_found() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        let long = "x".repeat(221);
        for id in ["", ".", "..", ".hidden", "a/b", "../escape", "a b", "a\0b", "ä", &long] {
            let refused = shim.start(id, &script("true")).await.unwrap_err();
            assert_eq!(refused.code(), Some(FailureCode::InvalidRequest), "{id:?}: {refused}");
            assert_eq!(shim.job(id).await.unwrap_err().code(), Some(FailureCode::JobUnknown));
        }
        for id in ["a", "A", "-", "_", "a..b", "a.stdout.log", &"x".repeat(220)] {
            assert!(shim.start(id, &script("true")).await.unwrap().created, "{id:?}");
            assert_eq!(ending(&shim.wait(id).await.unwrap()).1, Some(0));
        }
        let unknown = Some(FailureCode::JobUnknown);
        assert_eq!(shim.wait("none").await.unwrap_err().code(), unknown);
        assert_eq!(shim.cancel("none", Duration::ZERO).await.unwrap_err().code(), unknown);
        assert_eq!(shim.write("none", b"", None).await.unwrap_err().code(), unknown);
        assert_eq!(shim.resize("none", 1, 1).await.unwrap_err().code(), unknown);
        assert_eq!(shim.signal("none", 1).await.unwrap_err().code(), unknown);
        assert_eq!(shim.close("none").await.unwrap_err().code(), unknown);
        assert_eq!(shim.follow(&all_of("none")).await.unwrap().next().await.unwrap_err().code(), unknown);
    });
}
