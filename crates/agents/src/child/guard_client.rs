//! The server's side of a guard: sends commands, receives the program's exit status, and cleans up if the guard was
//! killed.

use std::{
    io,
    path::PathBuf,
    process::{self, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::ReadHalf},
    sync::{mpsc::UnboundedReceiver, watch},
    task::JoinHandle,
};

use super::{
    ChildError, ChildExit, orphans,
    wire::{GuardCommand, GuardReport},
};

/// How long a guard may take to kill everything before the server does it; longer than the guard's own timeout.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long spawning a program may take: its file system may hang.
const SPAWN_TIMEOUT: Duration = Duration::from_secs(20);

/// How often an exiting guard is polled. A notification would cost a descriptor for each.
const REAP_INTERVAL: Duration = Duration::from_millis(1);

/// Supervises a guard.
pub(super) struct GuardClient {
    pub(super) program: PathBuf,
    pub(super) guard: process::Child,
    pub(super) pid: Pid,
    /// Process id of the program; 0 until it is spawned.
    pub(super) id: Arc<AtomicU32>,
    pub(super) stream: UnixStream,
    /// When it is closed, the guard kills.
    pub(super) commands: UnboundedReceiver<GuardCommand>,
    pub(super) stderr: JoinHandle<String>,
    /// Becomes true when no process is left.
    pub(super) tree_gone: watch::Sender<bool>,
    pub(super) exit: watch::Sender<Option<ChildExit>>,
}

// === impl GuardClient ===

impl GuardClient {
    /// Runs until no process is left.
    pub(super) async fn supervise(mut self) {
        let report = self.report().await;
        if report.is_err() {
            let _ = self.guard.kill();
        }
        let status = self.reap().await;
        orphans::remove_guard(self.pid);
        // A guard that exits with success leaves no process behind.
        if !status.is_ok_and(|status| status.success()) {
            orphans::kill_all().await;
        }
        self.tree_gone.send_replace(true);

        let mut exit = ChildExit { stderr: self.stderr.await.unwrap_or_default(), ..ChildExit::default() };
        match report {
            Ok(GuardReport::Exited(code)) => exit.code = Some(code),
            Ok(GuardReport::Signalled(signal)) => exit.signal = Some(signal),
            Err(source) if self.id.load(Ordering::Relaxed) == 0 => {
                let program = self.program.display().to_string();
                exit.stderr = ChildError::Spawn { program, source }.to_string();
            }
            // The exit status is unknown; the program was killed with its guard or after it.
            Err(_) | Ok(GuardReport::Started(_) | GuardReport::SpawnFailed(_)) => {
                exit.signal = Some(Signal::KILL.as_raw())
            }
        }
        self.exit.send_replace(Some(exit));
    }

    /// Forwards commands until the guard reports the program's exit.
    async fn report(&mut self) -> io::Result<GuardReport> {
        let (mut reader, mut writer) = self.stream.split();
        let report = async {
            if self.id.load(Ordering::Relaxed) == 0 {
                let started = tokio::time::timeout(SPAWN_TIMEOUT, read(&mut reader)).await??.started()?;
                self.id.store(started, Ordering::Relaxed);
            }
            read(&mut reader).await
        };
        tokio::pin!(report);
        loop {
            let command = tokio::select! {
                report = &mut report => return report,
                command = self.commands.recv() => command.unwrap_or(GuardCommand::Kill),
            };
            // A guard that has exited in the meantime has reported before.
            let _ = writer.write_all(&[command.encode()]).await;
            if command == GuardCommand::Kill {
                // The guard may have been stopped by a signal.
                let _ = rustix::process::kill_process(self.pid, Signal::CONT);
                return tokio::time::timeout(KILL_TIMEOUT, report).await?;
            }
        }
    }

    /// Waits for the exit of a guard that has reported or was killed.
    async fn reap(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.guard.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(REAP_INTERVAL).await;
        }
    }
}

async fn read(reader: &mut ReadHalf<'_>) -> io::Result<GuardReport> {
    let mut bytes = [0; GuardReport::LENGTH];
    reader.read_exact(&mut bytes).await?;
    GuardReport::decode(bytes)
}
