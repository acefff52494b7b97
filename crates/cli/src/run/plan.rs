//! From arguments to what is asked of the supervisor and of the agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use carrel_agent_client::{ExecRequest, sandbox_directory};
use carrel_image::{ImageRef, Images, RootFs};
use carrel_sandbox::cgroup;
use carrel_shim_client::Programs;
use carrel_shim_client::messages::{Create, Limits, Mount, Project};

use super::project::Watched;
use super::terminal::TerminalSize;
use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::{Home, IDS};
use crate::size::{Size, Time};
use crate::user;

/// Where a project is inside.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Below it there is no room for the files that every sandbox has.
const LEAST_DISK: Size = Size(1 << 20);
/// The kernel keeps no longer one.
const LONGEST_HOSTNAME: usize = 64;

/// All that a run needs, checked before anything is asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) create: Create,
    pub(crate) request: ExecRequest,
    pub(crate) timeout: Option<Time>,
    /// The memory limit, for what is said when it is reached.
    pub(crate) memory: Size,
    /// The size of the terminal that the command gets, if it gets one.
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) stdin: bool,
    pub(crate) watched: Option<Watched>,
    /// Where running sandboxes have their directories.
    pub(crate) sandboxes: PathBuf,
}

// === impl Plan ===

impl Plan {
    pub(crate) fn new(arguments: &RunArguments, programs: &Programs) -> Result<Self, Failure> {
        let home = Home::find()?;
        home.prepare()?;
        let terminal = TerminalSize::wanted(arguments.tty, arguments.no_tty);
        user::check(arguments.user.as_deref())?;
        let memory = arguments.memory.unwrap_or_else(half_of_the_memory);
        let root = match &arguments.image {
            ImageRef::Host => RootFs::resolve(&arguments.image)?,
            ImageRef::Path(_) => Images::open(home.path())?.resolve(&arguments.image)?,
        };
        let request = request(arguments, &root, terminal)?;
        let watched = Watched::new(arguments, &home)?;
        let create = create(arguments, &home, programs, &root, memory, watched.as_ref())?;
        let (timeout, stdin, sandboxes) = (arguments.timeout, !arguments.no_stdin, home.sandboxes());
        Ok(Self { create, request, timeout, memory, terminal, stdin, watched, sandboxes })
    }
}

/// What is asked of the agent.
fn request(arguments: &RunArguments, root: &RootFs, terminal: Option<TerminalSize>) -> Result<ExecRequest, Failure> {
    let mut words = Vec::with_capacity(arguments.command.len());
    for word in &arguments.command {
        let word = word.to_str().ok_or_else(|| {
            Failure::new("invalid_command", format!("the argument {} is not text", word.to_string_lossy()))
        })?;
        words.push(word.to_owned());
    }
    let mut words = words.into_iter();
    let cmd = words.next().unwrap_or_default();
    let own = |key: &str| std::env::var_os(key);
    let mut env = vec![format!("HOME={}", user::home(arguments.user.as_deref(), root))];
    if let (Some(_), Some(term)) = (terminal, own("TERM").and_then(|term: OsString| term.into_string().ok())) {
        env.push(format!("TERM={term}"));
    }
    for variable in &arguments.env {
        env.extend(variable.resolve(own)?);
    }
    let size = terminal.unwrap_or_default();
    Ok(ExecRequest {
        cmd,
        args: words.collect(),
        env,
        cwd: arguments.workdir.clone().or_else(|| arguments.project.is_some().then(|| WORKSPACE.to_owned())),
        user: arguments.user.clone(),
        tty: terminal.is_some(),
        rows: size.rows,
        cols: size.cols,
        ..ExecRequest::default()
    })
}

/// What is asked of the supervisor.
fn create(
    arguments: &RunArguments,
    home: &Home,
    programs: &Programs,
    root: &RootFs,
    memory: Size,
    watched: Option<&Watched>,
) -> Result<Create, Failure> {
    // The bounds are the same as the supervisor's, but here the mistake is still the caller's own.
    cgroup::Limits::new(Some(memory.0), Some(arguments.pids), arguments.cpus)
        .map_err(|error| Failure::new("invalid_limit", error))?;
    if arguments.disk < LEAST_DISK {
        let words = format!("a disk of {} is too small: the least is {LEAST_DISK}", arguments.disk);
        return Err(Failure::new("invalid_limit", words));
    }
    check_hostname(&arguments.hostname)?;
    let incarnation = incarnation()?;
    let name = arguments.name.clone().unwrap_or_else(|| format!("run-{incarnation}"));
    let user = || user::number(arguments.user.as_deref(), root);
    let mut mounts = Vec::new();
    for mount in &arguments.mounts {
        mounts.push(Mount {
            source: existing(&mount.source)?.into(),
            target: (&mount.target).into(),
            writable: mount.writable,
            user: user()?,
        });
    }
    let project = match watched {
        Some(watched) => Some(Project { source: watched.path().into(), target: WORKSPACE.into(), user: user()? }),
        None => None,
    };
    Ok(Create {
        directory: sandbox_directory(home.path(), &name)?.into(),
        name,
        incarnation,
        programs: home.programs().into(),
        ids: IDS.into(),
        agentd: (&programs.agentd).into(),
        root: root.into(),
        mounts,
        project,
        disk: arguments.disk.0,
        kept_disk: None,
        hostname: arguments.hostname.clone(),
        limits: Limits {
            memory: Some(memory.0),
            pids: Some(arguments.pids),
            cpu_millis: arguments.cpus.map(cgroup::CpuShare::thousandths),
        },
        allow_unenforced: arguments.allow_unenforced_limits,
    })
}

fn check_hostname(name: &str) -> Result<(), Failure> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if (1..=LONGEST_HOSTNAME).contains(&name.len()) && name.bytes().all(known) {
        return Ok(());
    }
    let words = format!("{name:?} is no host name: give 1 to {LONGEST_HOSTNAME} letters, digits, `-`, `.` or `_`");
    Err(Failure::new("invalid_hostname", words))
}

/// A path of the host, from its root and without links.
fn existing(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::new("mount_unavailable", format!("{}: {error}", path.display()));
    std::fs::canonicalize(path).map_err(failed)
}

/// What everything of this sandbox on the host is named by.
fn incarnation() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(format!("{:016x}", u64::from_ne_bytes(bytes))),
        Ok(_) | Err(_) => Err(Failure::new("randomness_unavailable", "the kernel gives no random bytes")),
    }
}

fn half_of_the_memory() -> Size {
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(u64::from(info.mem_unit));
    Size((total / 2).clamp(cgroup::Limits::LEAST_MEMORY, cgroup::Limits::MOST_MEMORY))
}
