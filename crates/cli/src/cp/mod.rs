//! `carrel cp`: copies files between the host and a sandbox.

mod archive;
mod directory;
mod disk;
mod download;
mod file_name;
mod guest;
mod links;
mod report;
mod request;
mod sink;
mod transfers;
mod unarchive;
mod upload;

use std::fmt;

use carrel_agent_client::{AgentClient, AgentClientError, FileError};
use carrel_shim_client::SandboxRecord;
use tokio::signal::unix::{SignalKind, signal};

use self::disk::OpenDisk;
use self::guest::GuestFiles;
use self::report::CopyReport;
use self::request::CopyRequest;
use crate::arguments::CopyArguments;
use crate::failure::Failure;
use crate::{find, jobs};

/// The exit code of a failure.
const FAILED: u8 = 1;
/// How many chunks of a file may be queued between the sandbox and the disk.
const READ_AHEAD: usize = 4;
/// A file up to this size gets no thread of its own.
const SMALL_FILE: u64 = 256 * 1024;
/// How deep a tree may be: each open directory takes a descriptor.
const MAX_DEPTH: usize = 512;
/// Why a source is not copied. In a tree such files are skipped.
const SPECIAL_FILE: &str = "it is a device, a pipe or a socket, which is not copied";
/// The signals that terminate a copy.
const TERMINATING: [i32; 3] = [1, 2, 15];

/// How the files of a sandbox are accessed.
enum SandboxAccess {
    Running(Box<SandboxRecord>),
    /// Its disk is open until this is dropped.
    Stopped {
        _disk: Box<OpenDisk>,
    },
}

/// Copies files; returns the exit code.
pub(crate) fn cp(arguments: &CopyArguments, json: bool) -> Result<u8, Failure> {
    let copy = CopyRequest::parse(&arguments.source, &arguments.target)?;
    let runtime = find::runtime()?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = execute(&copy, arguments) => report,
            failure = interrupted() => Err(failure),
        }
    });
    // A thread that reads standard input, or writes to standard output, may never return.
    runtime.shutdown_background();
    let report = report?;
    if json && matches!(copy, CopyRequest::Archive { .. }) {
        // Standard output has the archive.
        jobs::session::ending::note(&crate::json::line(&report.json()));
    } else if json {
        crate::write_stdout(crate::json::line(&report.json()).as_bytes())?;
    } else if !arguments.quiet {
        // Nothing can be reported if standard error is closed.
        let _written = std::io::Write::write_all(&mut std::io::stderr(), report.notes().as_bytes());
    }
    if report.is_complete() {
        return Ok(0);
    }
    let files = match report.missing() {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    let message = format!("{files} could not be copied; all others were");
    let failure = Failure::new("copy_incomplete", message).exit(FAILED);
    Err(if report.has_leaving_link() { failure.hint(links::OMITTED_HINT) } else { failure })
}

async fn execute(copy: &CopyRequest, arguments: &CopyArguments) -> Result<CopyReport, Failure> {
    let name = copy.name();
    let (client, source) = connect(copy, name).await.map_err(|failure| failure.exit(FAILED))?;
    let (files, owner) = match (&arguments.user, &source) {
        (Some(user), _) => (client.files().on_behalf_of(user), None),
        (None, SandboxAccess::Running(record)) if copy.writes_to_sandbox() => {
            (client.files(), Some(jobs::exec_ids(record).map_err(|failure| failure.exit(FAILED))?))
        }
        (None, _) => (client.files(), None),
    };
    let guest = GuestFiles::new(&files, owner, name);
    let mut report = CopyReport::default();
    match copy {
        CopyRequest::Upload { source, target, .. } => {
            let copied = upload::copy(&guest, source, target, arguments.follow_link, &mut report).await;
            if let Err(failure) = copied {
                return Err(links::with_hint(&files, name, source, target, failure).await);
            }
        }
        CopyRequest::Download { source: path, target, .. } => {
            let copied = download::copy(&files, path, target, arguments.follow_link, &mut report).await;
            copied.map_err(|failure| source.explain(failure))?;
        }
        CopyRequest::Extract { target, .. } => unarchive::copy(&guest, target, &mut report).await?,
        CopyRequest::Archive { source: path, .. } => {
            let copied = archive::copy(&files, path, arguments.follow_link, &mut report).await;
            copied.map_err(|failure| source.explain(failure))?;
        }
    }
    client.close();
    Ok(report)
}

/// Connects to the agent of a sandbox; that of a stopped one runs while its disk is open.
async fn connect(copy: &CopyRequest, name: &str) -> Result<(AgentClient, SandboxAccess), Failure> {
    match disk::stopped(name).await? {
        None => {
            let (client, record) = agent(name).await?;
            Ok((client, SandboxAccess::Running(Box::new(record))))
        }
        Some((_, handle)) if copy.writes_to_sandbox() => Err(find::not_running_failure(&handle)),
        Some((daemon, _)) => {
            let disk = OpenDisk::open(daemon, name).await?;
            Ok((disk.agent().await?, SandboxAccess::Stopped { _disk: Box::new(disk) }))
        }
    }
}

/// Connects to the agent of a running sandbox, through the shim in its record.
async fn agent(name: &str) -> Result<(AgentClient, SandboxRecord), Failure> {
    let found = find::one(name).await?;
    drop(find::connect_unpaused(name, &found).await?);
    let record = found.record.ok_or_else(|| find::no_such_sandbox(name))?;
    let socket = &record.agent_socket.0;
    let unreachable = |error: &dyn fmt::Display| Failure::new("agent_unreachable", error);
    // The kernel says which process listens: the socket may belong to another one by now.
    let peer = tokio::net::UnixStream::connect(socket).await.and_then(|stream| stream.peer_cred());
    let peer = peer.map_err(|error| unreachable(&format!("{}: {error}", socket.display())))?.pid();
    if peer.and_then(|pid| u32::try_from(pid).ok()) != Some(record.shim_pid) {
        let message = format!("a process that is not the shim of {name:?} listens at {}", socket.display());
        return Err(Failure::new("sandbox_unverified", message));
    }
    let client = AgentClient::connect(socket).await.map_err(|error| unreachable(&error))?;
    Ok((client, record))
}

/// Waits for a terminating signal. Partial files are removed when they are dropped.
async fn interrupted() -> Failure {
    let mut streams: Vec<_> =
        TERMINATING.iter().filter_map(|number| Some((*number, signal(SignalKind::from_raw(*number)).ok()?))).collect();
    let number = std::future::poll_fn(|context| {
        let arrived =
            streams.iter_mut().find_map(|(number, stream)| stream.poll_recv(context).is_ready().then_some(*number));
        arrived.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    });
    let number = number.await;
    let exit = u8::try_from(128 + number).unwrap_or(FAILED);
    Failure::new("interrupted", "interrupted; files copied so far are kept").exit(exit)
}

fn failed(message: impl fmt::Display) -> Failure {
    Failure::new("copy_failed", message).exit(FAILED)
}

/// The failure for a path inside the sandbox.
fn sandbox_failure(path: &str, error: &AgentClientError) -> Failure {
    match error {
        AgentClientError::File(FileError { message, errno_name: Some(errno), .. }) if errno == links::ERRNO => {
            Failure::new(links::LINK_NOT_FOLLOWED, format!("{path} in the sandbox: {message}")).exit(FAILED)
        }
        AgentClientError::File(error) => failed(format!("{path} in the sandbox: {}", error.message)),
        AgentClientError::Lost(_) => Failure::new("sandbox_ended", "the sandbox stopped during the copy").exit(FAILED),
        error => Failure::new("agent_failed", format!("{path} in the sandbox: {error}")).exit(FAILED),
    }
}

// === impl SandboxAccess ===

impl SandboxAccess {
    /// Explains the failure of a copy out of it.
    fn explain(&self, failure: Failure) -> Failure {
        match self {
            Self::Running(_) => failure,
            Self::Stopped { .. } => OpenDisk::lost(failure),
        }
    }
}
