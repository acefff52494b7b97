//! What all of these tests stand on.

use std::{future::Future, time::Duration};

use carrel_agents::child::{self, Child, Line, Start};

/// Whoever waits longer hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs a test as the server runs, on one thread.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    child::guard_with(env!("CARGO_BIN_EXE_sandbox-agent"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, test).await.expect("the test hangs") });
}

/// A shell's script, as a program.
pub(crate) fn shell(script: &str) -> Start {
    program("sh", &["-c", script])
}

/// One of Python.
pub(crate) fn python(script: &str) -> Start {
    program("python3", &["-c", script])
}

pub(crate) fn program(program: &str, arguments: &[&str]) -> Start {
    let arguments = arguments.iter().map(Into::into).collect();
    Start { program: program.into(), arguments, directory: "/".into(), environment: Vec::new() }
}

pub(crate) fn start(start: &Start) -> Child {
    Child::start(start).unwrap()
}

/// The next line, which has to be whole.
pub(crate) async fn line(child: &mut Child) -> String {
    match child.line().await {
        Some(Line::Whole(line)) => String::from_utf8(line.to_vec()).unwrap(),
        other => panic!("no whole line: {other:?}"),
    }
}

/// The next line, which has to be the number of a process.
pub(crate) async fn pid(child: &mut Child) -> u32 {
    line(child).await.parse().unwrap()
}

/// Whether a process is there, and not merely waiting to be reaped.
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| !status.contains("State:\tZ"))
}
