//! A process that resumes a paused sandbox, even if the process that paused it is killed.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;
use crate::find;

/// The message that the sandbox was resumed.
const DONE: u8 = b'.';

/// The guard process. Without the message, it resumes the sandbox when this process exits.
pub(super) struct ResumeGuard(Child);

// === impl ResumeGuard ===

impl ResumeGuard {
    /// Starts the guard for a sandbox that is about to be paused.
    pub(super) fn spawn(sandbox: &str) -> Result<Self, Failure> {
        let failed =
            |error| Failure::new("guard_unavailable", format!("cannot start a second carrel process: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["image", "resume-on-exit", "--", sandbox]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals to the process group of the terminal are not for the guard.
        command.process_group(0);
        command.spawn().map(Self).map_err(failed)
    }

    /// Dismisses the guard, because the sandbox was resumed.
    pub(super) fn done(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // A guard that has exited needs no message.
            let _written = stdin.write_all(&[DONE]);
        }
    }
}

impl Drop for ResumeGuard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Waits until the parent exits, and resumes the sandbox unless the guard was dismissed; returns the exit code.
pub(super) fn resume_on_exit(sandbox: &str) -> Result<u8, Failure> {
    let mut input = Vec::new();
    // A read error is treated as the end of the input.
    let _ended = std::io::stdin().lock().read_to_end(&mut input);
    if input == [DONE] {
        return Ok(0);
    }
    let found = find::existing(sandbox)?.ok_or_else(|| find::no_such_sandbox(sandbox))?;
    find::runtime()?.block_on(async {
        let mut client = find::connect(sandbox, &found).await?;
        find::with_timeout(async { Ok(client.resume().await?) }).await
    })?;
    Ok(0)
}
