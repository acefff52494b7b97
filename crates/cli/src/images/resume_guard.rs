//! A sandbox that was paused goes on, whatever becomes of who paused it: a process of its own sees to that.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;
use crate::find;

/// What it is told when there is nothing left for it to do.
const DONE: u8 = b'.';

/// The process. If it is told nothing, it lets the sandbox go on when this is gone.
pub(super) struct ResumeGuard(Child);

// === impl ResumeGuard ===

impl ResumeGuard {
    /// Begins to watch over a sandbox that is to be paused.
    pub(super) fn spawn(sandbox: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::new("guard_unavailable", format!("carrel cannot be started once more: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["image", "resume-on-exit", "--", sandbox]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // What is sent to all of a terminal or of a job is not for it.
        command.process_group(0);
        command.spawn().map(Self).map_err(failed)
    }

    /// The sandbox goes on: there is nothing left to watch over.
    pub(super) fn done(mut self) {
        if let Some(mut told) = self.0.stdin.take() {
            // If it is gone, it need not be told.
            let _told = told.write_all(&[DONE]);
        }
    }
}

impl Drop for ResumeGuard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Waits until whoever started this is gone, and lets the sandbox go on, unless there is nothing left to do; returns what to
/// exit with.
pub(super) fn resume_on_exit(sandbox: &str) -> Result<u8, Failure> {
    let mut told = Vec::new();
    // What cannot be read says as little as what has ended.
    let _ended = std::io::stdin().lock().read_to_end(&mut told);
    if told == [DONE] {
        return Ok(0);
    }
    let found = find::existing(sandbox)?.ok_or_else(|| find::no_such_sandbox(sandbox))?;
    find::runtime()?.block_on(async {
        let mut client = find::connect(sandbox, &found).await?;
        find::with_timeout(async { Ok(client.resume().await?) }).await
    })?;
    Ok(0)
}
