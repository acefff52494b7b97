//! `carrel cp`: files and whole trees, into a sandbox and out of it.

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

use carrel_agent_client::{AgentClient, Error, FileError};
use carrel_shim_client::SandboxRecord;
use tokio::signal::unix::{SignalKind, signal};

use self::disk::OpenDisk;
use self::guest::GuestFiles;
use self::report::CopyReport;
use self::request::CopyRequest;
use crate::arguments::CopyArguments;
use crate::failure::Failure;
use crate::{find, jobs};

/// What this exits with when it fails.
const FAILED: u8 = 1;
/// How many pieces of a file may wait between the sandbox and the disk.
const AHEAD: usize = 4;
/// Up to this length a file is worth no thread of its own.
const SMALL: u64 = 256 * 1024;
/// How deep a tree may be: each directory that is not done takes a descriptor.
const DEEPEST: usize = 512;
/// Why what was named itself is not copied. In a tree it is left out.
const NO_COPY: &str = "it is a device, a pipe or a socket, which is not copied";
/// What ends a copy.
const ENDING: [i32; 3] = [1, 2, 15];

/// How a sandbox was reached.
enum SandboxAccess {
    Running(Box<SandboxRecord>),
    /// Its disk is open until this is dropped.
    Stopped {
        _disk: Box<OpenDisk>,
    },
}

/// Copies; returns what to exit with.
pub(crate) fn cp(arguments: &CopyArguments, json: bool) -> Result<u8, Failure> {
    let copy = CopyRequest::parse(&arguments.source, &arguments.target)?;
    let runtime = find::runtime()?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = copied(&copy, arguments) => report,
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
        crate::say(crate::json::line(&report.json()).as_bytes())?;
    } else if !arguments.quiet {
        // Nobody is left to tell when standard error is gone.
        let _said = std::io::Write::write_all(&mut std::io::stderr(), report.notes().as_bytes());
    }
    if report.is_whole() {
        return Ok(0);
    }
    let words = format!("{} could not be copied; everything else is", report.missing());
    let failure = Failure::new("copy_incomplete", words).exit(FAILED);
    Err(if report.leaves() { failure.hint(links::LEFT_OUT) } else { failure })
}

async fn copied(copy: &CopyRequest, arguments: &CopyArguments) -> Result<CopyReport, Failure> {
    let name = copy.name();
    let (client, source) = reached(copy, name).await.map_err(|failure| failure.exit(FAILED))?;
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
                return Err(links::explained(&files, name, source, target, failure).await);
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

/// The agent that a copy is made with. That of a stopped sandbox is there for as long as its disk is open.
async fn reached(copy: &CopyRequest, name: &str) -> Result<(AgentClient, SandboxAccess), Failure> {
    match disk::stopped(name).await? {
        None => {
            let (client, record) = agent(name).await?;
            Ok((client, SandboxAccess::Running(Box::new(record))))
        }
        Some((_, handle)) if copy.writes_to_sandbox() => Err(find::at_rest(&handle)),
        Some((daemon, _)) => {
            let disk = OpenDisk::open(daemon, name).await?;
            Ok((disk.agent().await?, SandboxAccess::Stopped { _disk: Box::new(disk) }))
        }
    }
}

/// The agent of a sandbox whose processes run, behind the supervisor that was written down.
async fn agent(name: &str) -> Result<(AgentClient, SandboxRecord), Failure> {
    let found = find::one(name).await?;
    drop(find::awake(name, &found).await?);
    let record = found.record.ok_or_else(|| find::no_such_sandbox(name))?;
    let socket = &record.agent_socket.0;
    let unreachable = |error: &dyn fmt::Display| Failure::new("agent_unreachable", error);
    // Whoever listens there is asked by the kernel's word first: what has that name may be another by now.
    let peer = tokio::net::UnixStream::connect(socket).await.and_then(|stream| stream.peer_cred());
    let peer = peer.map_err(|error| unreachable(&format!("{}: {error}", socket.display())))?.pid();
    if peer.and_then(|pid| u32::try_from(pid).ok()) != Some(record.shim_pid) {
        let words = format!("another process than the supervisor of {name:?} listens at {}", socket.display());
        return Err(Failure::new("sandbox_unverified", words));
    }
    let client = AgentClient::connect(socket).await.map_err(|error| unreachable(&error))?;
    Ok((client, record))
}

/// Waits until somebody wants us to end. What is not finished is then dropped, and so removed.
async fn interrupted() -> Failure {
    let mut streams: Vec<_> =
        ENDING.iter().filter_map(|number| Some((*number, signal(SignalKind::from_raw(*number)).ok()?))).collect();
    let number = std::future::poll_fn(|context| {
        let arrived =
            streams.iter_mut().find_map(|(number, stream)| stream.poll_recv(context).is_ready().then_some(*number));
        arrived.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    });
    let number = number.await;
    let exit = u8::try_from(128 + number).unwrap_or(FAILED);
    Failure::new("interrupted", "interrupted; what was copied until then stays").exit(exit)
}

fn failed(words: impl fmt::Display) -> Failure {
    Failure::new("copy_failed", words).exit(FAILED)
}

/// What went wrong with a path inside.
fn inside(path: &str, error: &Error) -> Failure {
    match error {
        Error::File(FileError { message, errno_name: Some(errno), .. }) if errno == links::NOT_FOLLOWED => {
            Failure::new(links::CODE, format!("{path} in the sandbox: {message}")).exit(FAILED)
        }
        Error::File(error) => failed(format!("{path} in the sandbox: {}", error.message)),
        Error::Lost(_) => Failure::new("sandbox_ended", "the sandbox ended during the copy").exit(FAILED),
        error => Failure::new("agent_failed", format!("{path} in the sandbox: {error}")).exit(FAILED),
    }
}

// === impl SandboxAccess ===

impl SandboxAccess {
    /// What a copy out of it failed with.
    fn explain(&self, failure: Failure) -> Failure {
        match self {
            Self::Running(_) => failure,
            Self::Stopped { .. } => OpenDisk::lost(failure),
        }
    }
}
