//! The server's side of a guard: it takes orders, learns how the program ended, and clears up if the guard was killed.

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

/// How long a guard may take to kill everything before the server does it. Longer than the guard tries by itself.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a program may take to be started: its file system may not answer.
const SPAWN_TIMEOUT: Duration = Duration::from_secs(20);

/// How often is looked whether a guard that is at its end has ended. To be told would cost a descriptor for each.
const REAP_INTERVAL: Duration = Duration::from_millis(1);

/// What keeps a guard.
pub(super) struct GuardClient {
    pub(super) program: PathBuf,
    pub(super) guard: process::Child,
    pub(super) pid: Pid,
    /// The program's process id, once it has one.
    pub(super) id: Arc<AtomicU32>,
    pub(super) stream: UnixStream,
    /// Its end is an order to kill.
    pub(super) commands: UnboundedReceiver<GuardCommand>,
    pub(super) stderr: JoinHandle<String>,
    /// Becomes true when nothing is left.
    pub(super) tree_gone: watch::Sender<bool>,
    pub(super) exit: watch::Sender<Option<ChildExit>>,
}

// === impl Keeper ===

impl GuardClient {
    /// Until nothing is left.
    pub(super) async fn supervise(mut self) {
        let report = self.report().await;
        if report.is_err() {
            let _ = self.guard.kill();
        }
        let status = self.reap().await;
        orphans::remove_guard(self.pid);
        // One that has done its work leaves nobody.
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
            // Nobody saw the program end; it was killed with its guard, or after it.
            Err(_) | Ok(GuardReport::Started(_) | GuardReport::SpawnFailed(_)) => exit.signal = Some(Signal::KILL.as_raw()),
        }
        self.exit.send_replace(Some(exit));
    }

    /// Passes orders on until the guard reports the end.
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
            // A guard that has ended in the meantime takes no order, and has reported before.
            let _ = writer.write_all(&[command.encode()]).await;
            if command == GuardCommand::Kill {
                // Somebody may have stopped it.
                let _ = rustix::process::kill_process(self.pid, Signal::CONT);
                return tokio::time::timeout(KILL_TIMEOUT, report).await?;
            }
        }
    }

    /// Waits for a guard that has reported the end, or was killed.
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
