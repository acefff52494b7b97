//! Starts a sandbox from a create request, and drops the shim's privileges.

mod error;
mod network;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use carrel_failpoint::Failpoints;
use carrel_image::{GuestPath, RootFs};
use carrel_sandbox::cgroup::{
    Cgroup, CgroupError, CgroupLimits, Controller, ControllerLocation, CpuShare, HostCgroups, LimitPolicy, OomWatch,
};
use carrel_sandbox::{
    Container, ContainerSpec, Disk, DiskError, DiskKind, DiskQuota, FreeSpaceReserve, Gvisor, HostMount,
    HostMountAccess, HostOwner, IdRange, Isolation, KernelMemory, PersistentDisk, ProjectMount, RetainedPrivileges,
    SandboxNetwork, drop_privileges, launch, leave_host_mounts,
};
use carrel_shim_client::messages::{self, Create, Fact, FactKind, Hello, SandboxReady, UnenforcedLimit, VERSION};
use carrel_shim_client::{SandboxRecord, boot_id, process_start_time};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

pub(crate) use self::error::StartError;
use crate::directory::RunDirectory;
use crate::failpoint::Failpoint;
use crate::handshake::{AgentHandshake, HandshakeResult, hello};
use crate::jobs::Jobs;
use crate::journal::{JournalWriter, wall_ms};
use crate::owner::Owner;
use crate::ports::PublishedPorts;
use crate::program;

/// The timeout of the agent's `core.ready`.
const READY: Duration = Duration::from_secs(30);
/// The environment of the agent.
const ENVIRONMENT: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The kernel's send buffer to the agent: large enough that neither side waits for the other.
const SEND_BUFFER: usize = 1024 * 1024;

/// A running sandbox with its resources.
pub(crate) struct SupervisedSandbox {
    pub(crate) container: Container,
    pub(crate) cgroup: Option<Cgroup>,
    /// Requested limits that are not enforced.
    pub(crate) unenforced: Option<Vec<UnenforcedLimit>>,
    /// Notifies about OOM.
    pub(crate) memory: Option<OomWatch>,
    pub(crate) kernel_memory: KernelMemory,
    directory: Option<RunDirectory>,
    pub(crate) channel: OwnedFd,
    pub(crate) listener: UnixListener,
    pub(crate) handshake: HandshakeResult,
    /// How much of the host's disk has to stay free.
    pub(crate) reserve: FreeSpaceReserve,
    /// Whether it is persistent.
    pub(crate) lasting: bool,
    /// The initial state of the event loop.
    pub(crate) parts: Option<ServerParts>,
}

/// The initial state of the event loop.
pub(crate) struct ServerParts {
    pub(crate) control_socket: UnixListener,
    pub(crate) hello: Hello,
    pub(crate) jobs: Jobs,
    pub(crate) ports: PublishedPorts,
    pub(crate) log: JournalWriter,
}

/// Creates the sandbox on a detected host.
pub(crate) fn start(
    create: &Create,
    owner: &Owner,
    host: Result<HostCgroups, CgroupError>,
) -> Result<SupervisedSandbox, StartError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Invalid requests are rejected before anything is created.
    let (root, mounts, project) = (RootFs::try_from(create.root.clone())?, mounts(create)?, project(create)?);
    let network = create.network_of.map(network::of).transpose()?;
    let limits = limits(&create.limits)?;
    let isolation = isolation(create)?;
    leave_host_mounts()?;
    let program = program::open(&create.agentd.0, &create.programs.0)
        .map_err(|error| StartError::Program(create.agentd.0.display().to_string(), error))?;
    let mut directory = RunDirectory::claim(&create.directory.0, &create.incarnation)?;
    Failpoint::Claimed.reached();
    let mut log = JournalWriter::new(directory.take_journal()?);
    let made = ValidatedRequest { create, root, mounts, project, network, isolation, program, host };
    match create_sandbox(made, &limits, owner, &mut directory) {
        Ok(parts) => Ok(parts.into_running(create, directory, log)),
        Err(error) => {
            let fact = Fact { message: Some(error.to_string()), ..Fact::new(wall_ms(), FactKind::Failed) };
            log.record(fact);
            // The container and its cgroup were removed on drop.
            let _removed = directory.remove();
            Err(error)
        }
    }
}

struct ValidatedRequest<'a> {
    create: &'a Create,
    root: RootFs,
    mounts: Vec<HostMount>,
    project: Option<ProjectMount>,
    network: Option<SandboxNetwork>,
    isolation: Isolation,
    program: OwnedFd,
    host: Result<HostCgroups, CgroupError>,
}

struct CreatedSandbox {
    container: Container,
    cgroup: Option<Cgroup>,
    unenforced: Option<Vec<UnenforcedLimit>>,
    memory: Option<OomWatch>,
    kernel_memory: KernelMemory,
    channel: OwnedFd,
    listener: UnixListener,
    control_socket: UnixListener,
    logs: OwnedFd,
    handshake: HandshakeResult,
    hello: Hello,
}

fn create_sandbox(
    request: ValidatedRequest<'_>,
    limits: &CgroupLimits,
    owner: &Owner,
    directory: &mut RunDirectory,
) -> Result<CreatedSandbox, StartError> {
    let system = |what| move |errno: Errno| StartError::System(what, errno.into());
    let create = request.create;
    let ids = IdRange::allocate(&create.ids.0)?;
    let (id_base, supervisor) = (ids.base(), ids.supervisor());
    let record = record(create, owner, directory, &ids)?;
    directory.record(&record)?;
    Failpoint::Recorded.reached();
    let no_freezer = no_freezer(&request.host);
    let (cgroup, mut unenforced) = group(create, limits, request.host)?;
    Failpoint::CgroupCreated.reached();
    let disk = disk(create)?;
    if let Some(missing) = no_freezer.filter(|_| is_guarded(create, &disk)) {
        unenforced.get_or_insert_default().push(unguarded(create, missing)?);
    }
    let (agent_channel, guest_end) = channel().map_err(system("socketpair"))?;
    // Written before the agent starts, to save a round trip.
    rustix::io::write(&agent_channel, &hello()).map_err(system("write"))?;
    let shared = request.network.is_some();
    let mut container = launch(
        ContainerSpec {
            root: request.root,
            mounts: request.mounts,
            project: request.project,
            disk,
            hostname: create.hostname.clone(),
            network: request.network,
            ids,
            program: request.program,
            args: vec![CString::from(c"carrel-agentd")],
            env: vec![CString::new(ENVIRONMENT).unwrap_or_default()],
            channel: guest_end,
            oom_score: true,
            isolation: request.isolation,
        },
        cgroup.as_ref(),
    )?;
    Failpoint::Launched.reached();
    let listener = directory.listen()?;
    let logs = directory.logs(create.logs.as_ref().map(|logs| logs.0.as_path()), supervisor)?;
    // Without it, memory is checked when a process was killed.
    let memory = cgroup.as_ref().and_then(|cgroup| cgroup.watch_out_of_memory().ok().flatten());
    let kernel_memory = KernelMemory::open(&mut container, cgroup.as_ref(), limits.memory(), shared);
    let handshake = wait_until_ready(&agent_channel, &container, owner).map_err(|error| match error {
        // The runtime reports the reason itself.
        StartError::Ended => runtime_failed(&container).unwrap_or(error),
        error => error,
    })?;
    Failpoint::HandshakeDone.reached();
    rustix::fs::fcntl_setfl(&agent_channel, OFlags::NONBLOCK).map_err(system("fcntl"))?;
    let control_socket = directory.listen_shim()?;
    let changes = container.changes().map(AsFd::as_fd);
    let pid = container.pid().as_raw_nonzero().get().unsigned_abs();
    let ready = SandboxReady {
        agent_socket: directory.socket().into(),
        pid,
        id_base,
        changes: changes.is_some(),
        unenforced: unenforced.clone(),
    };
    cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.delegate(supervisor))?;
    directory.chown(supervisor)?;
    Failpoint::OwnershipChanged.reached();
    detach_output().map_err(system("/dev/null"))?;
    let directories: Vec<_> = directory
        .handles()
        .into_iter()
        .chain([logs.as_fd()])
        .chain(cgroup.iter().flat_map(Cgroup::directories))
        .collect();
    drop_privileges(RetainedPrivileges { kill: true, user: Some(supervisor), directories: &directories })?;
    drop(directories);
    Failpoint::PrivilegesDropped.reached();
    owner.send_with(0, &ready, changes);
    Failpoint::OwnerNotified.reached();
    let hello = Hello {
        version: VERSION,
        release: record.release,
        name: record.name,
        incarnation: record.incarnation,
        boot_id: record.boot_id,
        shim_pid: record.shim_pid,
        pid,
        agent_version: handshake.version.clone(),
    };
    Ok(CreatedSandbox {
        container,
        cgroup,
        unenforced,
        memory,
        kernel_memory,
        channel: agent_channel,
        listener,
        control_socket,
        logs,
        handshake,
        hello,
    })
}

/// Replaces standard output and error with the null device: their readers must not wait for the exit of this process.
fn detach_output() -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let nothing = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)
}

/// The record of this sandbox for discovery.
fn record(
    create: &Create,
    owner: &Owner,
    directory: &RunDirectory,
    ids: &IdRange,
) -> Result<SandboxRecord, StartError> {
    let system = |what| move |error: std::io::Error| StartError::System(what, error);
    let shim_pid = std::process::id();
    let missing = || StartError::System("when this process began", std::io::ErrorKind::NotFound.into());
    Ok(SandboxRecord {
        name: create.name.clone(),
        incarnation: create.incarnation.clone(),
        boot_id: boot_id().map_err(system("the boot id"))?,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        version: VERSION,
        shim_pid,
        shim_began: process_start_time(shim_pid).ok_or_else(missing)?,
        created_ms: wall_ms(),
        image: create.image.clone(),
        owner: owner.peer(),
        id_base: ids.base(),
        id_count: IdRange::COUNT,
        supervisor_user: ids.supervisor(),
        cgroup: create.incarnation.clone(),
        logs: create.logs.clone().unwrap_or_else(|| directory.logs_path().into()),
        agent_socket: directory.socket().into(),
        shim_socket: directory.shim_socket().into(),
        lasting: create.lasting,
        create: create.clone(),
        device: 0,
        inode: 0,
    })
}

/// The cgroup of the sandbox, and the limits that it does not enforce. It exists even without limits, for pause and
/// statistics.
fn group(
    create: &Create,
    limits: &CgroupLimits,
    host: Result<HostCgroups, CgroupError>,
) -> Result<(Option<Cgroup>, Option<Vec<UnenforcedLimit>>), StartError> {
    let policy = if create.allow_unenforced { LimitPolicy::AllowUnenforced } else { LimitPolicy::Refuse };
    let unenforced = |controller: Controller, reason: &dyn std::fmt::Display| UnenforcedLimit {
        limit: controller.name().to_owned(),
        reason: reason.to_string(),
    };
    match host.and_then(|host| Cgroup::create(&host, &create.incarnation, limits, policy)) {
        Ok(group) => {
            let without: Vec<_> =
                group.unenforced().missing().map(|(controller, missing)| unenforced(controller, missing)).collect();
            Ok((Some(group), (!without.is_empty()).then_some(without)))
        }
        // Without a cgroup nothing is enforced.
        Err(error) if create.allow_unenforced => {
            let wanted = [
                (Controller::Memory, limits.memory().is_some()),
                (Controller::Pids, limits.pids().is_some()),
                (Controller::Cpu, limits.cpus().is_some()),
            ];
            let wanted = wanted.into_iter().filter(|(_, wanted)| *wanted);
            let without: Vec<_> = wanted.map(|(controller, _)| unenforced(controller, &error)).collect();
            Ok((None, (!without.is_empty()).then_some(without)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Why this host cannot pause a sandbox, if it cannot.
fn no_freezer(host: &Result<HostCgroups, CgroupError>) -> Option<String> {
    match host.as_ref().map(|host| host.location(Controller::Freezer)) {
        Ok(ControllerLocation::V1(_) | ControllerLocation::V2(_)) => None,
        Ok(ControllerLocation::Missing(missing)) => Some(missing.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether only a pause prevents a sandbox from filling the host's disk.
fn is_guarded(create: &Create, disk: &Disk) -> bool {
    let reserve = create.kept_disk.as_ref().is_some_and(|kept| kept.host_free > 0);
    reserve && matches!(disk, Disk::Persistent(kept) if kept.kind() == DiskKind::Plain)
}

/// The disk reserve as an unenforced limit, if the sandbox cannot be paused.
fn unguarded(create: &Create, missing: String) -> Result<UnenforcedLimit, StartError> {
    if !create.allow_unenforced {
        return Err(StartError::Unguarded(missing));
    }
    Ok(UnenforcedLimit { limit: "disk".to_owned(), reason: missing })
}

fn disk(create: &Create) -> Result<Disk, StartError> {
    let Some(kept) = &create.kept_disk else { return Ok(Disk::Memory { bytes: create.disk }) };
    let create_disk = || match (kept.unlimited, kept.quota_bytes) {
        (Some(true), None) => PersistentDisk::create_unlimited(&kept.directory.0),
        (Some(true), Some(bytes)) => {
            PersistentDisk::create_within(&kept.directory.0, DiskQuota { bytes, inodes: kept.quota_inodes })
        }
        (Some(false) | None, _) => PersistentDisk::create(&kept.directory.0, create.disk),
    };
    Ok(Disk::Persistent(match PersistentDisk::open(&kept.directory.0) {
        Err(DiskError::Absent(_)) => create_disk()?,
        Err(DiskError::Directory { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => create_disk()?,
        opened => opened?,
    }))
}

fn channel() -> Result<(OwnedFd, OwnedFd), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (own_end, guest_end) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if rustix::net::sockopt::set_socket_send_buffer_size_force(&own_end, SEND_BUFFER).is_err() {
        // Without privileges, the system-wide maximum applies.
        let _most = rustix::net::sockopt::set_socket_send_buffer_size(&own_end, SEND_BUFFER);
    }
    Ok((own_end, guest_end))
}

/// Waits until the agent is ready.
fn wait_until_ready(channel: &OwnedFd, container: &Container, owner: &Owner) -> Result<HandshakeResult, StartError> {
    let system = |what| move |errno: Errno| StartError::System(what, errno.into());
    let (deadline, mut handshake) = (Instant::now() + READY, AgentHandshake::default());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
        let process = container.process();
        let mut watched = [
            PollFd::new(channel, PollFlags::IN),
            PollFd::new(&process, PollFlags::IN),
            // Only a disconnect: messages are read later.
            PollFd::new(owner, PollFlags::RDHUP),
        ];
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) => return Err(StartError::Late),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(system("poll")(errno)),
        }
        if watched.get(2).is_some_and(|owner| !owner.revents().is_empty()) {
            return Err(StartError::OwnerGone);
        }
        let mut bytes = [0; 4096];
        match rustix::net::recv(channel, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(StartError::Ended),
            Ok((count, _)) => {
                if let Some(handshake) = handshake.receive(bytes.get(..count).unwrap_or_default())? {
                    return Ok(handshake);
                }
            }
            Err(Errno::AGAIN) if watched.get(1).is_some_and(|process| !process.revents().is_empty()) => {
                return Err(StartError::Ended);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(StartError::Ended),
            Err(errno) => return Err(system("recv")(errno)),
        }
    }
}

/// Why the runtime of a sandbox exited before it was ready, if it reported that.
fn runtime_failed(container: &Container) -> Option<StartError> {
    // Its output is complete once it has exited.
    let _killed = container.signal(Signal::KILL);
    let _ended = container.wait();
    container
        .has_runtime()
        .then(|| StartError::Runtime(container.diagnosis().unwrap_or_else(|| "no error output".to_owned())))
}

fn mounts(create: &Create) -> Result<Vec<HostMount>, StartError> {
    let mount = |mount: &messages::MountSpec| {
        let (user, group) = (mount.user, mount.group);
        let access = if mount.writable {
            HostMountAccess::Writable { user, group }
        } else {
            HostMountAccess::ReadOnly { user, group }
        };
        let owner = mount.owner_user.zip(mount.owner_group).map(|(user, group)| HostOwner { user, group });
        Ok(HostMount { source: mount.source.0.clone(), target: GuestPath::new(&mount.target.0)?, access, owner })
    };
    create.mounts.iter().map(mount).collect()
}

/// The isolation between the sandbox and the kernel.
fn isolation(create: &Create) -> Result<Isolation, StartError> {
    let Some(gvisor) = &create.gvisor else { return Ok(Isolation::Namespaces) };
    let runsc = std::fs::File::open(&gvisor.runsc.0)
        .map_err(|error| StartError::Program(gvisor.runsc.0.display().to_string(), error))?;
    Ok(Isolation::Gvisor(Gvisor { runsc: runsc.into() }))
}

fn project(create: &Create) -> Result<Option<ProjectMount>, StartError> {
    let Some(project) = &create.project else { return Ok(None) };
    let target = GuestPath::new(&project.target.0)?;
    let identity = project.identity.map(|identity| (identity.device, identity.inode));
    let (source, user, group) = (project.source.0.clone(), project.user, project.group);
    Ok(Some(ProjectMount { source, target, user, group, identity }))
}

fn limits(limits: &messages::SandboxLimits) -> Result<CgroupLimits, StartError> {
    let cpus = limits.cpu_millis.map(CpuShare::from_thousandths).transpose()?;
    Ok(CgroupLimits::new(limits.memory, limits.pids, cpus)?)
}

// === impl CreatedSandbox ===

impl CreatedSandbox {
    fn into_running(self, create: &Create, directory: RunDirectory, log: JournalWriter) -> SupervisedSandbox {
        let logs_path = create.logs.as_ref().map_or_else(|| directory.logs_path(), |logs| logs.0.clone());
        let jobs = Jobs::new(self.logs, logs_path, create.keep.clone(), self.handshake.limits);
        SupervisedSandbox {
            container: self.container,
            cgroup: self.cgroup,
            unenforced: self.unenforced,
            memory: self.memory,
            kernel_memory: self.kernel_memory,
            directory: Some(directory),
            channel: self.channel,
            listener: self.listener,
            handshake: self.handshake,
            reserve: FreeSpaceReserve {
                bytes: create.kept_disk.as_ref().map_or(0, |kept| kept.host_free),
                inodes: create.kept_disk.as_ref().and_then(|kept| kept.host_free_inodes),
            },
            lasting: create.lasting,
            parts: Some(ServerParts {
                control_socket: self.control_socket,
                hello: self.hello,
                jobs,
                ports: PublishedPorts::new(create.limits.memory),
                log,
            }),
        }
    }
}

// === impl SupervisedSandbox ===

impl SupervisedSandbox {
    /// Removes its directory; a persistent one keeps its record and journal.
    pub(crate) fn clean_up(&mut self) -> std::io::Result<()> {
        match self.directory.take() {
            Some(directory) if self.lasting => directory.keep(),
            Some(directory) => directory.remove(),
            None => Ok(()),
        }
    }
}
