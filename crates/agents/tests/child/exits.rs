//! How programs exit, and how that is reported.

use std::{path::Path, process::Command, time::Duration};

use carrel_agents::child::{Child, ChildError};

use crate::support::{line, on_one_thread, program, shell, start};

const LONG: Duration = Duration::from_secs(50);

#[test]
fn exit_codes_are_reported() {
    on_one_thread(async {
        for code in [0, 1, 2, 126, 127, 128, 137, 255] {
            let exit = start(&shell(&format!("echo last words >&2; exit {code}"))).exit().await;
            assert_eq!((exit.code, exit.signal, exit.stderr.as_str()), (Some(code), None, "last words\n"));
        }
    });
}

#[test]
fn every_signal_is_reported() {
    on_one_thread(async {
        // Signals whose default is to ignore, stop or continue.
        let harmless = [17, 18, 19, 20, 21, 22, 23, 28];
        for signal in (1..=31).chain([34, 64]).filter(|signal| !harmless.contains(signal)) {
            let exit = start(&shell(&format!("ulimit -c 0; kill -{signal} $$"))).exit().await;
            assert_eq!((exit.code, exit.signal), (None, Some(signal)), "{}", exit.stderr);
        }
    });
}

#[test]
fn a_terminated_program_can_clean_up() {
    on_one_thread(async {
        let mut child = start(&shell("trap 'echo goodbye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"));
        assert_eq!(line(&mut child).await, "ready");
        assert_eq!(child.terminate(LONG).await.code, Some(7));
        assert_eq!(line(&mut child).await, "goodbye");
        assert_eq!(child.line().await, None);
        assert_eq!(child.terminate(LONG).await.code, Some(7));
    });
}

#[test]
fn a_program_that_ignores_sigterm_is_killed() {
    on_one_thread(async {
        let mut child = start(&shell("trap '' TERM; echo ready; while :; do sleep 0.01; done"));
        assert_eq!(line(&mut child).await, "ready");
        assert_eq!(child.terminate(Duration::from_millis(50)).await.signal, Some(9));
        let mut child = start(&program("sleep", &["1000"]));
        assert_eq!(child.terminate(Duration::ZERO).await.signal, Some(9));
    });
}

#[test]
fn a_failed_spawn_reports_the_reason() {
    on_one_thread(async {
        let error = Child::spawn(&program("/does/not/exist", &[])).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /does/not/exist: No such file or directory (os error 2)");
        let error = Child::spawn(&program("/etc/passwd", &[])).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /etc/passwd: Permission denied (os error 13)");
        let mut elsewhere = program("true", &[]);
        elsewhere.directory = "/does/not/exist".into();
        assert!(matches!(Child::spawn(&elsewhere), Err(ChildError::Spawn { .. })));
    });
}

//= agents.credentials.keys-reach-agents-environment
#[test]
fn the_environment_is_the_servers_with_the_changes_applied() {
    on_one_thread(async {
        let path = std::env::var("PATH").unwrap();
        let mut env = shell("echo \"$PATH\"; echo \"${HOME-none}\"; echo \"$ADDED\"; pwd");
        env.environment = vec![("HOME".into(), None), ("ADDED".into(), Some("this".into()))];
        env.directory = Path::new("/proc").into();
        let mut child = start(&env);
        for expected in [path.as_str(), "none", "this", "/proc"] {
            assert_eq!(line(&mut child).await, expected);
        }
    });
}

#[test]
fn a_program_has_its_own_process_group_and_inherits_no_descriptors() {
    on_one_thread(async {
        let mut child = start(&shell("ps -o pgid= -p $$ | tr -d ' '; exec sleep 1000"));
        assert_eq!(line(&mut child).await, child.id().to_string());
        // Besides descriptors that the test runner left open.
        let plain = Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
        let mut child = start(&program("ls", &["/proc/self/fd"]));
        for descriptor in String::from_utf8(plain).unwrap().lines() {
            assert_eq!(line(&mut child).await, descriptor);
        }
        assert_eq!(child.line().await, None);
    });
}
