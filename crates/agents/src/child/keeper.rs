//! The server's side of a guard: it takes orders, learns how the program ended, and clears up if the guard was killed.

use std::{io, os::unix::net::UnixStream, process::ExitStatus, time::Duration};

use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process,
    sync::{mpsc::UnboundedReceiver, watch},
    task::JoinHandle,
};

use super::{
    Exit, strays,
    wire::{Order, Report},
};

/// How long a guard may take to kill everything before the server does it. Longer than the guard tries by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// What keeps a guard.
pub(super) struct Keeper {
    pub(super) guard: process::Child,
    pub(super) pid: Pid,
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
            let _ = self.guard.start_kill();
        }
        let status = self.guard.wait().await;
        strays::forget(self.pid);
        // One that has done its work leaves nobody.
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            strays::clear().await;
        }
        self.gone.send_replace(true);

        let mut exit = Exit::default();
        match report {
            Ok(Report::Exited(code)) => exit.code = Some(code),
            Ok(Report::Signalled(signal)) => exit.signal = Some(signal),
            // Nobody saw the program end; it was killed with its guard, or after it.
            _ => exit.signal = Some(Signal::KILL.as_raw()),
        }
        exit.stderr = self.stderr.await.unwrap_or_default();
        self.exit.send_replace(Some(exit));
    }

    /// Passes orders on until the guard reports the end.
    async fn report(&mut self) -> io::Result<Report> {
        self.stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(self.stream.try_clone()?)?;
        let (mut reader, mut writer) = stream.into_split();
        let report = async {
            let mut bytes = [0; Report::LENGTH];
            reader.read_exact(&mut bytes).await?;
            Report::decode(bytes)
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
}
