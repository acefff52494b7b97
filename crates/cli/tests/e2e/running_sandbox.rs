//! A running sandbox that several commands use.

use std::process::Stdio;
use std::time::Instant;

use crate::ps::text;
use crate::support::{CommandOutput, RunningCommand, TestEnvironment, WATCHDOG, finish};

/// A sandbox called `box`, removed when this is dropped.
pub(crate) struct SharedSandbox<'w> {
    pub(crate) env: &'w TestEnvironment,
    pub(crate) running: Option<RunningCommand>,
}

// === impl SharedSandbox ===

impl<'w> SharedSandbox<'w> {
    pub(crate) fn new(env: &'w TestEnvironment) -> Self {
        Self::with(env, &[])
    }

    /// The same with further flags.
    pub(crate) fn with(env: &'w TestEnvironment, flags: &[&str]) -> Self {
        let flags: Vec<&str> = ["--name", "box"].iter().chain(flags).copied().collect();
        let running = env.started(&flags, "echo ready; read line; echo over");
        Self { env, running: Some(running) }
    }

    /// The process that owns it.
    pub(crate) fn owner(&self) -> u32 {
        self.running.as_ref().unwrap().child.id()
    }

    /// Runs a script in it.
    pub(crate) fn exec(&self, flags: &[&str], script: &str) -> CommandOutput {
        finish(self.command(flags, script).spawn().unwrap())
    }

    /// Starts a script in it, and returns when it prints a line; its input stays open.
    pub(crate) fn started(&self, flags: &[&str], script: &str) -> RunningCommand {
        let mut running = RunningCommand::new(self.command(flags, script).stdin(Stdio::piped()).spawn().unwrap());
        running.until("ready");
        running
    }

    /// Starts a script in it as a detached job, and returns when it runs.
    pub(crate) fn detached(&self, flags: &[&str], job: &str, script: &str) {
        let flags: Vec<&str> = ["--detach", "--job", job].iter().chain(flags).copied().collect();
        let outcome = self.exec(&flags, script);
        assert_eq!((outcome.code, outcome.stdout), (Some(0), format!("{job}\n").into_bytes()), "{}", outcome.stderr);
    }

    /// Waits until a detached job has succeeded.
    pub(crate) fn until_exited(&self, job: &str) {
        let began = Instant::now();
        let has_ended = |line: &str| line.split_whitespace().next() == Some(job) && line.contains("exited 0");
        while !text(self.env, &["ps", "box"]).lines().any(has_ended) {
            assert!(began.elapsed() < WATCHDOG, "{job} does not end");
        }
    }

    fn command(&self, flags: &[&str], script: &str) -> std::process::Command {
        self.env.command(["exec"].iter().chain(flags).chain(&["box", "--", "sh", "-c", script]))
    }

    /// Ends it, and returns the output of its owner.
    pub(crate) fn end(mut self) -> CommandOutput {
        self.running.take().unwrap().finish_input()
    }
}

impl Drop for SharedSandbox<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.finish_input();
        }
    }
}

// === impl RunningCommand ===

impl RunningCommand {
    /// Closes its input, and waits until it exits.
    fn finish_input(mut self) -> CommandOutput {
        drop(self.child.stdin.take());
        self.finish()
    }
}
