//! The parent side of a spawn: everything is prepared here, so that the child only makes system calls.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use carrel_protocol::payload::{ExecRequest, ResourceLimit};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::child;
use super::failure::{FailedSpawnStage, SpawnStage};
use crate::defaults::CommandDefaults;
use crate::sys::{self, Fork};
use crate::users::{AccountDatabase, UserAccount};

/// Everything that the child needs.
pub(crate) struct SpawnPlan {
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    /// Candidate paths of the program, in order.
    pub(super) candidates: Vec<CString>,
    pub(super) cwd: Option<CString>,
    pub(super) user: Option<UserAccount>,
    pub(super) rlimits: Vec<(Resource, Rlimit)>,
    pub(super) init: bool,
    pub(super) restricted: bool,
}

/// The child's standard descriptors.
pub(super) enum ChildStdio {
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

/// The directory of terminals, and their first major device number.
const TERMINALS: &str = "/dev/pts/";
const TERMINAL_MAJOR: u32 = 136;

/// A child process that is starting, and the parent's ends of its descriptors.
pub(crate) struct SpawnedChild {
    pub(crate) pid: Pid,
    /// The status pipe: the failed stage, or end of file on success.
    pub(crate) report: OwnedFd,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
}

/// A failed stage and its subject.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) failure: FailedSpawnStage,
    pub(crate) message: String,
}

/// Spawns the command of a request.
pub(crate) fn spawn(request: &ExecRequest, defaults: &CommandDefaults) -> Result<SpawnedChild, SpawnError> {
    let plan = SpawnPlan::new(request, defaults)?;
    let (ours, standard) = if request.tty {
        terminal(request, plan.user.as_ref())
            .map_err(|errno| SpawnError::new(SpawnStage::OpenTerminal, errno, "a terminal"))?
    } else {
        pipes().map_err(|errno| SpawnError::new(SpawnStage::Pipe, errno, "standard descriptors"))?
    };
    let (report, reporter) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|errno| SpawnError::new(SpawnStage::Pipe, errno, "the start"))?;

    // The OOM score is inherited: raised around the fork, it makes the kernel kill the command before the agent.
    let raised = crate::protect::OomScore::raise();
    let forked = sys::fork();
    drop(raised);
    match forked {
        Ok(Fork::Child) => child::run(&plan, &standard, &reporter),
        Ok(Fork::Parent(pid)) => {
            nonblocking(&report);
            Ok(SpawnedChild { pid, report, stdin: ours.stdin, stdout: ours.stdout, stderr: ours.stderr })
        }
        Err(errno) => Err(SpawnError::new(SpawnStage::Fork, errno, &request.cmd)),
    }
}

pub(crate) fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "cpu" => Resource::Cpu,
        "fsize" => Resource::Fsize,
        "data" => Resource::Data,
        "stack" => Resource::Stack,
        "core" => Resource::Core,
        "rss" => Resource::Rss,
        "nproc" => Resource::Nproc,
        "nofile" => Resource::Nofile,
        "memlock" => Resource::Memlock,
        "as" => Resource::As,
        "locks" => Resource::Locks,
        "sigpending" => Resource::Sigpending,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        _ => return None,
    })
}

struct ParentStdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

fn pipes() -> Result<(ParentStdio, ChildStdio), Errno> {
    let (stdin, our_stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (our_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (our_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    // Only our ends are non-blocking: each end of a pipe has its own flags, and the command expects blocking ones.
    [&our_stdin, &our_stdout, &our_stderr].into_iter().for_each(nonblocking);
    let ours = ParentStdio { stdin: our_stdin, stdout: our_stdout, stderr: Some(our_stderr) };
    Ok((ours, ChildStdio::Pipes { stdin, stdout, stderr }))
}

fn terminal(request: &ExecRequest, user: Option<&UserAccount>) -> Result<(ParentStdio, ChildStdio), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let size = Winsize { ws_row: request.rows, ws_col: request.cols, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size)?;
    let slave = peer(&master, flags)?;
    if let Some(user) = user {
        // If the owner of a terminal cannot be changed, the holder of its descriptor can still use it.
        let owner = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
        let _kept = rustix::fs::fchown(&slave, Some(owner.0), Some(owner.1));
        let _kept = rustix::fs::fchmod(&slave, Mode::from_raw_mode(0o620));
    }
    nonblocking(&master);
    let writer = master.try_clone().map_err(|error| crate::errno::of(&error))?;
    Ok((ParentStdio { stdin: writer, stdout: master, stderr: None }, ChildStdio::Terminal(slave)))
}

/// Opens the slave of a terminal through the master, never by a path that the sandbox could have replaced; only a
/// kernel that is not Linux requires the path, and there the device is verified.
fn peer(master: &OwnedFd, flags: OpenptFlags) -> Result<OwnedFd, Errno> {
    match rustix::pty::ioctl_tiocgptpeer(master, flags) {
        Err(Errno::NOTTY) => {}
        opened => return opened,
    }
    let path = rustix::pty::ptsname(master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let slave = rustix::fs::open(&path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&slave)?;
    let number = path.to_str().ok().and_then(|path| path.strip_prefix(TERMINALS)?.parse::<u32>().ok());
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let wanted = number.map(|number| (TERMINAL_MAJOR + number / 256, number % 256));
    if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && Some(device) == wanted {
        Ok(slave)
    } else {
        Err(Errno::NODEV)
    }
}

fn nonblocking(fd: &OwnedFd) {
    // Cannot fail for our own descriptors.
    let _set = rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK);
}

// === impl SpawnPlan ===

impl SpawnPlan {
    fn new(request: &ExecRequest, defaults: &CommandDefaults) -> Result<Self, SpawnError> {
        if request.cmd.is_empty() {
            return Err(SpawnError::new(SpawnStage::Arguments, Errno::INVAL, "the command is empty"));
        }
        let user = Self::user(request, defaults)?;
        let account = user.clone().or_else(|| own_account(defaults));
        let env = defaults.environment(&request.env, account.as_ref(), request.tty);
        let path = env.iter().find(|(key, _)| key == "PATH").map(|(_, path)| path.as_bytes().to_vec());
        let argv = std::iter::once(&request.cmd).chain(&request.args);
        let env = env.into_iter().map(|(key, value)| [key.into_vec(), value.into_vec()].join(&b'='));
        let cwd = request.cwd.as_ref().or(defaults.cwd.as_ref());
        Ok(Self {
            argv: argv.map(|arg| text(arg.as_bytes(), "an argument")).collect::<Result<_, _>>()?,
            env: env.map(|entry| text(&entry, "the environment")).collect::<Result<_, _>>()?,
            candidates: candidates(&request.cmd, path.as_deref().unwrap_or_default())?,
            cwd: cwd.map(|cwd| text(cwd.as_bytes(), "the working directory")).transpose()?,
            user,
            rlimits: rlimits(defaults, &request.rlimits)?,
            init: defaults.init,
            restricted: defaults.restricted,
        })
    }

    fn user(request: &ExecRequest, defaults: &CommandDefaults) -> Result<Option<UserAccount>, SpawnError> {
        let Some(spec) = request.user.as_ref().or(defaults.user.as_ref()) else { return Ok(None) };
        AccountDatabase::read().resolve(spec).map(Some).map_err(|error| SpawnError {
            failure: FailedSpawnStage { stage: SpawnStage::User, errno: Errno::NOENT },
            message: error.to_string(),
        })
    }
}

/// The account of the agent's own user: root of a sandbox has a home, too.
fn own_account(defaults: &CommandDefaults) -> Option<UserAccount> {
    (defaults.init && !defaults.has("HOME")).then(|| AccountDatabase::read().resolve("0").ok())?
}

fn text(bytes: &[u8], what: &str) -> Result<CString, SpawnError> {
    CString::new(bytes)
        .map_err(|_| SpawnError::new(SpawnStage::Arguments, Errno::INVAL, &format!("{what} contains a zero byte")))
}

/// A program with a slash is a path; any other is searched in each directory of `PATH`.
fn candidates(program: &str, path: &[u8]) -> Result<Vec<CString>, SpawnError> {
    if program.contains('/') {
        return Ok(vec![text(program.as_bytes(), "the command")?]);
    }
    path.split(|byte| *byte == b':')
        .map(|directory| {
            // An empty entry means the working directory.
            let directory = if directory.is_empty() { b"." } else { directory };
            text(&[directory, b"/", program.as_bytes()].concat(), "the command")
        })
        .collect()
}

/// The limits of a command in the order in which they are set: inherited ones, the sandbox's, its own.
fn rlimits(defaults: &CommandDefaults, own: &[ResourceLimit]) -> Result<Vec<(Resource, Rlimit)>, SpawnError> {
    let finite = |limit: u64| (limit != u64::MAX).then_some(limit);
    let given = std::iter::once(Ok((Resource::Nofile, defaults.descriptors)));
    let requested = defaults.rlimits.iter().chain(own);
    given
        .chain(requested.map(|limit| match resource(&limit.resource) {
            Some(resource) => Ok((resource, Rlimit { current: finite(limit.soft), maximum: finite(limit.hard) })),
            // An unknown limit must not be ignored silently.
            None => Err(SpawnError::new(
                SpawnStage::Arguments,
                Errno::INVAL,
                &format!("unknown resource {:?}", limit.resource),
            )),
        }))
        .collect()
}

// === impl SpawnError ===

impl SpawnError {
    pub(crate) fn new(stage: SpawnStage, errno: Errno, what: &str) -> Self {
        let failure = FailedSpawnStage { stage, errno };
        Self { failure, message: failure.message(what) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_searched_in_path() {
        let found = candidates("ls", b"/bin::/usr/bin").unwrap();
        assert_eq!(found, [c"/bin/ls".to_owned(), c"./ls".to_owned(), c"/usr/bin/ls".to_owned()]);
        assert_eq!(candidates("./ls", b"/bin").unwrap(), [c"./ls".to_owned()]);
    }

    #[test]
    fn invalid_arguments_are_rejected_before_the_fork() {
        let defaults = CommandDefaults::new(false);
        for request in [
            ExecRequest::default(),
            ExecRequest { cmd: "a\0b".into(), ..ExecRequest::default() },
            ExecRequest { cmd: "a".into(), args: vec!["\0".into()], ..ExecRequest::default() },
            ExecRequest { cmd: "a".into(), env: vec!["A=\0".into()], ..ExecRequest::default() },
            ExecRequest {
                cmd: "a".into(),
                rlimits: vec![ResourceLimit { resource: "wishes".into(), soft: 3, hard: 3 }],
                ..ExecRequest::default()
            },
        ] {
            let Err(error) = SpawnPlan::new(&request, &defaults) else { panic!("{request:?} was accepted") };
            assert_eq!(error.failure.stage, SpawnStage::Arguments, "{}", error.message);
        }
    }
}
