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
    ChildError, Exit, strays,
    wire::{Order, Report},
};

/// How long a guard may take to kill everything before the server does it. Longer than the guard tries by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a program may take to be started: its file system may not answer.
const STARTING: Duration = Duration::from_secs(20);

/// How often is looked whether a guard that is at its end has ended. To be told would cost a descriptor for each.
const ROUND: Duration = Duration::from_millis(1);

/// What keeps a guard.
pub(super) struct Keeper {
    pub(super) program: PathBuf,
    pub(super) guard: process::Child,
    pub(super) pid: Pid,
    /// The program's process id, once it has one.
    pub(super) id: Arc<AtomicU32>,
    pub(super) stream: UnixStream,
    /// Its end is an order to kill.
    pub(super) orders: UnboundedReceiver<Order>,
    pub(super) stderr: JoinHandle<String>,
    /// Becomes true when nothing is left.
    pub(super) gone: watch::Sender<bool>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

// === impl Keeper ===

impl Keeper {
    /// Until nothing is left.
    pub(super) async fn keep(mut self) {
        let report = self.report().await;
        if report.is_err() {
            let _ = self.guard.kill();
        }
        let status = self.reap().await;
        strays::forget(self.pid);
        // One that has done its work leaves nobody.
        if !status.is_ok_and(|status| status.success()) {
            strays::clear().await;
        }
        self.gone.send_replace(true);

        let mut exit = Exit { stderr: self.stderr.await.unwrap_or_default(), ..Exit::default() };
        match report {
            Ok(Report::Exited(code)) => exit.code = Some(code),
            Ok(Report::Signalled(signal)) => exit.signal = Some(signal),
            Err(source) if self.id.load(Ordering::Relaxed) == 0 => {
                let program = self.program.display().to_string();
                exit.stderr = ChildError::Start { program, source }.to_string();
            }
            // Nobody saw the program end; it was killed with its guard, or after it.
            Err(_) | Ok(Report::Started(_) | Report::Refused(_)) => exit.signal = Some(Signal::KILL.as_raw()),
        }
        self.exit.send_replace(Some(exit));
    }

    /// Passes orders on until the guard reports the end.
    async fn report(&mut self) -> io::Result<Report> {
        let (mut reader, mut writer) = self.stream.split();
        let report = async {
            if self.id.load(Ordering::Relaxed) == 0 {
                let started = tokio::time::timeout(STARTING, read(&mut reader)).await??.started()?;
                self.id.store(started, Ordering::Relaxed);
            }
            read(&mut reader).await
        };
        tokio::pin!(report);
        loop {
            let order = tokio::select! {
                report = &mut report => return report,
                order = self.orders.recv() => order.unwrap_or(Order::Kill),
            };
            // A guard that has ended in the meantime takes no order, and has reported before.
            let _ = writer.write_all(&[order.encode()]).await;
            if order == Order::Kill {
                // Somebody may have stopped it.
                let _ = rustix::process::kill_process(self.pid, Signal::CONT);
                return tokio::time::timeout(PATIENCE, report).await?;
            }
        }
    }

    /// Waits for a guard that has reported the end, or was killed.
    async fn reap(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.guard.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(ROUND).await;
        }
    }
}

async fn read(reader: &mut ReadHalf<'_>) -> io::Result<Report> {
    let mut bytes = [0; Report::LENGTH];
    reader.read_exact(&mut bytes).await?;
    Report::decode(bytes)
}
