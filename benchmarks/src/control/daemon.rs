//! The measured daemon, as shipped, in its own temporary home.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::client::{DaemonClient, LABEL};
use crate::sandbox::{programs, runtime};

/// No sandbox is stopped when idle.
const CONFIG: &str = "[runtime]\nidle_ttl = \"0\"\n";

/// A daemon with the runtime of its clients.
pub(super) struct MeasuredDaemon {
    /// The runtime of clients: one thread, as in `carrel`.
    pub(super) runtime: Runtime,
    child: Child,
    socket: PathBuf,
    program: PathBuf,
    sandboxes: Cell<u32>,
    /// On a disk, as in production.
    directory: TempDir,
}

// === impl MeasuredDaemon ===

impl MeasuredDaemon {
    pub(super) fn start() -> Result<Self> {
        // Short, because socket paths are limited.
        let directory = tempfile::Builder::new().prefix("carrel-bench-").tempdir_in("/var/tmp")?;
        for name in ["home", "runtime", "config/carrel"] {
            std::fs::create_dir_all(directory.path().join(name))?;
        }
        std::fs::write(directory.path().join("config/carrel/config.toml"), CONFIG)?;
        let program = programs()?.shim.with_file_name("carrel");
        let (child, socket) = serve(&program, directory.path())?;
        Ok(Self { runtime: runtime()?, child, socket, program, sandboxes: Cell::new(0), directory })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a connection.
    pub(super) fn client(&self) -> Result<DaemonClient> {
        self.runtime.block_on(self.connect())
    }

    /// The same, in an async context.
    pub(super) async fn connect(&self) -> Result<DaemonClient> {
        DaemonClient::connect(&self.socket).await
    }

    /// The id of the next sandbox.
    pub(super) fn name(&self) -> String {
        self.sandboxes.set(self.sandboxes.get() + 1);
        format!("bench-{}", self.sandboxes.get())
    }

    /// Stops it, as an upgrade does, and starts the next one; sandboxes keep running. Returns when that one serves.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.stop()?;
        (self.child, self.socket) = serve(&self.program, self.directory.path())?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        // A process that has exited has no pid any more.
        ensure!(self.child.try_wait()?.is_none(), "the daemon has exited");
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("the daemon has no pid")?;
        kill_process(pid, Signal::TERM)?;
        // Clients run meanwhile: those that the daemon asks to disconnect do.
        let exited = move || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        self.runtime.block_on(self.runtime.spawn_blocking(exited))??;
        let status = self.child.wait()?;
        ensure!(status.success(), "the daemon: {status}");
        Ok(())
    }
}

impl Drop for MeasuredDaemon {
    fn drop(&mut self) {
        // A daemon that exited is not restarted.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Persistent sandboxes of a failed run are removed.
        let mut remove = command(&self.program, self.directory.path());
        remove.args(["rm", "--force", "--label", &format!("{}={}", LABEL.0, LABEL.1)]);
        let _removed = remove.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if self.stop().is_err() {
            let _killed = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// `carrel` with this home.
fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("CARREL_HOME", directory.join("home")).env("XDG_RUNTIME_DIR", directory.join("runtime"));
    command.env("XDG_CONFIG_HOME", directory.join("config")).stdin(Stdio::null());
    command
}

/// Starts a daemon, and waits until it serves.
fn serve(program: &Path, directory: &Path) -> Result<(Child, PathBuf)> {
    let log = File::options().create(true).append(true).open(directory.join("log"))?;
    let mut child = command(program, directory).arg("serve").stdout(Stdio::piped()).stderr(log).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
    if line.is_empty() {
        let (status, log) = (child.wait()?, std::fs::read_to_string(directory.join("log"))?);
        anyhow::bail!("the daemon: {status}\n{log}");
    }
    let ready: Value = serde_json::from_str(&line)?;
    let address = ready["grpc"].as_array().and_then(|addresses| addresses.last()?.as_str()?.strip_prefix("unix:"));
    Ok((child, address.with_context(|| format!("the daemon names no socket: {line}"))?.into()))
}
