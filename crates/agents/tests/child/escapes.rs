//! Programs whose children detach themselves.

use std::{fs::File, io::Write, process::Command, time::Duration};

use carrel_agents::child::OutputLine;

use crate::support::{ProcessMarker, line, on_one_thread, python, shell, start};

/// Double fork with setsid in between; ignores SIGTERM.
const ESCAPE: &str = "
import ctypes, os, signal, time
def escape():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, b'away')
            time.sleep(1000)
        os._exit(0)
    os.wait()
    print(os.read(reader, 4).decode())
";

//= promises.agents-server.processes-left-agent
#[test]
fn a_detached_grandchild_is_killed_with_the_program() {
    on_one_thread(async {
        let marker = ProcessMarker::new();
        let mut child = start(&marker.on(python(&format!("{ESCAPE}escape()"))));
        assert_eq!(line(&mut child).await, "away");
        assert_eq!(child.exit().await.code, Some(0));
        assert_eq!(marker.bearers(), Vec::<String>::new());
    });
}

//= promises.agents-server.processes-left-agent
#[test]
fn without_a_guard_a_detached_grandchild_survives() {
    // This subreaper adopts it too, sends SIGTERM, and has to kill it.
    let control = "ctypes.CDLL(None).prctl(36, 1); escape()
pid = int(open('/proc/thread-self/children').read())
os.kill(pid, 15); os.kill(pid, 9); print(os.waitpid(pid, 0)[1])";
    let output = Command::new("python3").args(["-c", &format!("{ESCAPE}{control}")]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.lines().any(|line| line == "9"), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_pipe_that_a_grandchild_holds_open_ends_with_the_program() {
    on_one_thread(async {
        let mut child = start(&shell("setsid sleep 1000 & printf 'last\\nwords'; exit 3"));
        assert_eq!(line(&mut child).await, "last");
        assert_eq!(child.line().await, Some(OutputLine::Unterminated("words".into())));
        assert_eq!(child.line().await, None);
        assert_eq!(child.exit().await.code, Some(3));
    });
}

#[test]
fn a_pipe_that_an_unknown_process_holds_open_ends_with_the_program() {
    on_one_thread(async {
        let mut child = start(&shell("echo ready; read -r _; echo over; echo over >&2"));
        assert_eq!(line(&mut child).await, "ready");
        let open = |number| File::options().write(true).open(format!("/proc/{}/fd/{number}", child.id())).unwrap();
        let (mut stdout, _stderr) = (open(1), open(2));
        child.send(b"").unwrap();
        assert_eq!(child.exit().await.stderr, "over\n");
        stdout.write_all(b"and later output\n").unwrap();
        assert_eq!(line(&mut child).await, "over");
        assert_eq!(line(&mut child).await, "and later output");
        stdout.write_all(b"after the end\n").unwrap();
        assert_eq!(child.line().await, None);
    });
}

//= promises.agents-server.processes-left-agent
#[test]
fn a_fork_bomb_is_killed() {
    // Eight chains that fork and change their session all the time, and one that grows. They stop by themselves.
    let storm = "
import os, time
until = time.monotonic() + 40
for mole in range(8):
    if os.fork() == 0:
        generation = 0
        while time.monotonic() < until:
            os.setsid() if generation % 2 else None
            if os.fork():
                os._exit(0)
            generation += 1
            if generation == 100:
                os.write(1, b'deep\\n')
        os._exit(0)
while time.monotonic() < until:
    if os.fork() == 0:
        os.setsid()
        time.sleep(40)
        os._exit(0)
    time.sleep(0.001)
";
    on_one_thread(async {
        for _ in 0..3 {
            let marker = ProcessMarker::new();
            let mut child = start(&marker.on(python(storm)));
            for _ in 0..4 {
                assert_eq!(line(&mut child).await, "deep");
            }
            assert!(marker.bearers().len() > 4);
            assert_eq!(child.terminate(Duration::ZERO).await.signal, Some(9));
            assert_eq!(marker.bearers(), Vec::<String>::new());
        }
    });
}
