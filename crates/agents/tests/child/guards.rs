//! Guards and servers that are killed.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use carrel_agents::child::Child;

use crate::support::{ProcessMarker, example, line, on_one_thread, program, shell, start};

/// A program with detached descendants, each of which holds the pipe.
const FAMILY: &str = "exec 3>\"$HELD\"; trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000 & setsid sleep 1000 &
    echo ready; wait' & ";

//= promises.agents-server.processes-left-agent
#[test]
fn orphans_of_a_killed_guard_are_killed_and_nothing_else() {
    on_one_thread(async {
        let mut neighbour = start(&program("cat", &[]));
        let mut own = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let marker = ProcessMarker::new();
        let mut child = start(&marker.on(shell(&format!("{FAMILY} read -r _; kill -9 $PPID; wait; sleep 1000"))));
        let released = marker.released();
        assert_eq!(line(&mut child).await, "ready");
        child.send(b"").unwrap();
        assert_eq!(child.exit().await.signal, Some(9));
        assert_eq!(marker.bearers(), Vec::<String>::new());
        assert_eq!(child.line().await, None);
        released.wait();

        neighbour.send(b"still here").unwrap();
        assert_eq!(line(&mut neighbour).await, "still here");
        assert!(own.try_wait().unwrap().is_none());
        // It exits when its input ends.
        assert!(own.wait().unwrap().success());
    });
}

#[test]
fn a_stopped_guard_still_kills_everything() {
    on_one_thread(async {
        let marker = ProcessMarker::new();
        let mut child = start(&marker.on(shell(&format!("{FAMILY} kill -STOP $PPID; echo stopped; sleep 1000"))));
        let released = marker.released();
        let mut lines = [line(&mut child).await, line(&mut child).await];
        lines.sort();
        assert_eq!(lines, ["ready", "stopped"]);
        assert_eq!(child.terminate(Duration::from_millis(20)).await.signal, Some(9));
        assert_eq!(marker.bearers(), Vec::<String>::new());
        released.wait();
    });
}

#[test]
fn dropping_a_child_kills_it() {
    on_one_thread(async {
        let marker = ProcessMarker::new();
        let mut child = start(&marker.on(shell(&format!("{FAMILY} wait"))));
        let released = marker.released();
        assert_eq!(line(&mut child).await, "ready");
        drop(child);
        tokio::task::spawn_blocking(|| released.wait()).await.unwrap();
    });
}

#[test]
fn everything_is_killed_with_the_runtime() {
    let marker = ProcessMarker::new();
    let released = marker.released();
    let mut kept = None;
    on_one_thread(async {
        let mut child = start(&marker.on(shell(&format!("{FAMILY} wait"))));
        assert_eq!(line(&mut child).await, "ready");
        kept = Some(child);
    });
    released.wait();
}

//= promises.agents-server.processes-left-agent
#[test]
fn everything_is_killed_when_the_server_is_killed() {
    let marker = ProcessMarker::new();
    let script = format!("{FAMILY} wait");
    let marked = marker.on(program("sh", &["-c", &script]));
    let mut server = Command::new(example());
    server.args(["sh", "-c", &script]).stdout(Stdio::piped()).stdin(Stdio::null());
    server.envs(marked.environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
    let mut server = server.spawn().unwrap();
    let released = marker.released();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "1 ready\n");
    // Control: they hold the pipe until the server is gone.
    assert!(marker.bearers().len() >= 5, "{:?}", marker.bearers());
    assert!(!released.is_over());
    server.kill().unwrap();
    server.wait().unwrap();
    released.wait();
}

#[test]
fn programs_do_not_inherit_ignored_signals() {
    // With SIGCHLD ignored, a server would not receive exit statuses.
    let launch = "import os, signal, sys
for number in (1, 2, 3, 10, 15, 17):
    signal.signal(number, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])";
    // No shell in between: it would change SIGCHLD itself.
    let show = ["grep", "SigIgn", "/proc/self/status"];
    let mask = |line: &str| u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap() & 0x1_4207;
    // Control: a program that is started otherwise inherits them.
    let control = Command::new("python3").args(["-c", launch]).args(show).output().unwrap();
    assert_eq!(mask(String::from_utf8(control.stdout).unwrap().trim_end()), 0x1_4207);
    let output = Command::new("python3").args(["-c", launch]).arg(example()).args(show).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((mask(lines[0]), lines[1]), (0, "exited with code 0"));
}

#[test]
fn two_hundred_programs_run_side_by_side() {
    on_one_thread(async {
        let marker = ProcessMarker::new();
        let mut children: Vec<Child> = (0..200).map(|_| start(&marker.on(program("cat", &[])))).collect();
        for (number, child) in children.iter().enumerate() {
            child.send(number.to_string().as_bytes()).unwrap();
        }
        for (number, child) in children.iter_mut().enumerate() {
            assert_eq!(line(child).await, number.to_string());
        }
        // The programs, each with a guard.
        assert_eq!(marker.bearers().len(), 400);
        let ends = children.iter_mut().map(|child| child.terminate(Duration::from_secs(50)));
        for exit in futures_util::future::join_all(ends).await {
            // By the end of its input or by SIGTERM, whichever comes first.
            assert!(matches!((exit.code, exit.signal), (Some(0), None) | (None, Some(15))), "{exit:?}");
        }
        assert_eq!(marker.bearers(), Vec::<String>::new());
    });
}
