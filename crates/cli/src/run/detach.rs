//! Detaching from a run: another process becomes the owner of its sandbox, which still ends with the command.
//!
//! That process gets the connection to the shim as its standard input and the handle of the changes as its standard output.
//! It reads the handover from its standard error, and writes there when this process may exit.

use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use carrel_changes::{CancellationFlag, UpperLayer};
use carrel_layers::Digest;
use carrel_shim_client::messages::{FileIdentity, SandboxReady};
use carrel_shim_client::{OwnedSandbox, ShimClient};
use serde_json::{Value, json};

use super::plan::RunPlan;
use super::project::RunProject;
use crate::failure::Failure;
use crate::jobs::RUN;
use crate::{find, images};

/// The hidden command of the new owner.
pub(crate) const OWN_RUN: &str = "own-run";
/// The reply of the new owner.
const READY: u8 = b'.';

/// Starts the new owner, and waits until it owns the sandbox.
pub(super) fn hand_over(plan: &RunPlan, sandbox: OwnedSandbox, changes: Option<OwnedFd>) -> Result<(), Failure> {
    let request = request(plan, &sandbox);
    let hand_over = || -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(OWN_RUN)
            .args(sandbox.agent_socket().parent())
            .stdin(sandbox.hand_over()?)
            .stderr(OwnedFd::from(theirs));
        command.stdout(changes.map_or_else(Stdio::null, Stdio::from));
        let _child = command.spawn()?;
        // Inherited descriptors are closed here, so that its exit is noticed.
        drop(command);
        writeln!(ours, "{request}")?;
        if let Some(snapshot) = plan.project.as_ref().and_then(RunProject::snapshot) {
            snapshot.write(&mut ours)?;
        }
        ours.shutdown(Shutdown::Write)?;
        let mut answer = [0];
        ours.read_exact(&mut answer)
    };
    hand_over().map_err(|error| {
        Failure::new("detach_failed", format!("cannot hand over the sandbox to another process: {error}"))
    })
}

fn request(plan: &RunPlan, sandbox: &OwnedSandbox) -> Value {
    let project = plan.project.as_ref().and_then(|project| {
        let FileIdentity { device, inode } = project.identity();
        let (user, group) = plan.create.project.as_ref().map(|project| (project.user, project.group))?;
        // As bytes, because a path need not be UTF-8.
        let (path, name) = (project.path().as_os_str().as_bytes(), project.name()?.as_str());
        Some(json!({"path": path, "device": device, "inode": inode, "user": user, "group": group, "name": name}))
    });
    json!({
        "agent_socket": sandbox.agent_socket(),
        "pid": sandbox.pid(),
        "shim_pid": sandbox.shim_pid(),
        "id_base": sandbox.id_base(),
        "refreshes": plan.create.mounts.iter().any(|mount| !mount.writable),
        "image": plan.image_digest().map(|digest| digest.to_string()),
        "project": project,
    })
}

/// Owns the sandbox of a run until its command has exited; returns the exit code.
pub(crate) fn own_run() -> Result<u8, Failure> {
    let failed = |error: io::Error| Failure::new("detach_failed", error);
    // Signals of the run's terminal are not for this process.
    let _session = rustix::process::setsid();
    let connection = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let changes = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    let control = UnixStream::from(io::stderr().as_fd().try_clone_to_owned().map_err(failed)?);
    let mut from = BufReader::new(&control);
    let mut line = String::new();
    io::BufRead::read_line(&mut from, &mut line).map_err(failed)?;
    let request: Value = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
    let project = RunProject::from_handover(&request["project"], from)?;
    let image = request["image"].as_str().and_then(|digest| digest.parse::<Digest>().ok());
    let _image =
        image.map(|digest| images::open_default()?.get_by_digest(digest).map_err(Failure::from)).transpose()?;
    let ready = SandboxReady {
        agent_socket: std::path::Path::new(request["agent_socket"].as_str().unwrap_or_default()).into(),
        pid: number(&request["pid"]),
        id_base: number(&request["id_base"]),
        changes: false,
        unenforced: None,
    };
    let id_base = ready.id_base;
    let _refresher =
        request["refreshes"].as_bool().unwrap_or_default().then(|| carrel_local::Refresher::start(ready.pid));
    find::runtime()?.block_on(async {
        let mut sandbox = OwnedSandbox::adopt(connection, number(&request["shim_pid"]), ready).map_err(failed)?;
        let mut client = ShimClient::connect(&sandbox.shim_socket()).await?;
        (&control).write_all(&[READY]).map_err(failed)?;
        drop(control);
        tokio::select! {
            // However the command ended.
            _ = client.wait(RUN) => {}
            _ = sandbox.ended() => {}
        }
        sandbox.stop(Duration::ZERO).await.map_err(Failure::from)
    })?;
    if let Some(project) = project {
        let handover = &request["project"];
        let upper = UpperLayer::new(changes, id_base, number(&handover["user"]), number(&handover["group"]));
        project.finish(&upper, &CancellationFlag::new())?;
    }
    Ok(0)
}
