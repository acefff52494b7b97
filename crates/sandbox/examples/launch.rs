//! Launches one sandbox and waits until it exits: `launch IMAGE PROGRAM [ARGUMENT…]`, with the program's channel as standard
//! input. Environment variables set the rest:
//!
//! - `CARREL_MEMORY`, `CARREL_PIDS`, `CARREL_DISK`: its limits;
//! - `CARREL_KEPT`: the directory of a persistent disk, created if it does not exist; with `CARREL_INODES`, limited to that many
//!   inodes where the file system has quotas;
//! - `CARREL_LAYERS`: directories to use as layers over the image, uppermost first, separated by spaces;
//! - `CARREL_MOUNTS`: host mounts, `SOURCE:TARGET:USER:ro` or `…:rw`, separated by spaces; `USER.GROUP` sets another group;
//! - `CARREL_PROJECT`: its project, `SOURCE:TARGET:USER`;
//! - `CARREL_CHANGES`: a socket to which the handle of the project's upper directory is sent;
//! - `CARREL_NETWORK_OF`: a process whose network it shares;
//! - `CARREL_UNIFIED`: it has a cgroup, in v2 only and without limits;
//! - `CARREL_UNSCORED`: its first program does not get its OOM score.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use carrel_image::{GuestPath, RootFs};
use carrel_sandbox::cgroup::{Cgroup, CgroupLimits, HostCgroups, LimitPolicy};
use carrel_sandbox::{
    Container, ContainerSpec, Disk, DiskQuota, HostMount, HostMountAccess, IdRange, Isolation, PersistentDisk,
    ProjectMount, SandboxNetwork, launch, leave_host_mounts,
};

type ExampleError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("launch: {error}");
            ExitCode::from(125)
        }
    }
}

fn run() -> Result<ExitCode, ExampleError> {
    let mut args = std::env::args_os().skip(1);
    let image = args.next().ok_or("no image")?.into_string().map_err(|_| "the image is not text")?;
    let program = args.next().ok_or("no program")?;
    let args = std::iter::once(program.clone()).chain(args).map(|arg| CString::new(arg.as_bytes()));
    leave_host_mounts()?;
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let spec = ContainerSpec {
        root: root(&image)?,
        mounts: text("CARREL_MOUNTS").split_whitespace().map(mount).collect::<Result<_, _>>()?,
        project: project(&text("CARREL_PROJECT"))?,
        disk: disk()?,
        hostname: "carrel".to_owned(),
        network: std::env::var("CARREL_NETWORK_OF").ok().map(|pid| network(&pid)).transpose()?,
        ids: IdRange::allocate(Path::new("/run/carrel/ids"))?,
        program: std::fs::File::open(&program)?.into(),
        args: args.collect::<Result<_, _>>()?,
        env: vec![CString::new("PATH=/usr/local/bin:/usr/bin:/bin")?],
        channel,
        oom_score: std::env::var_os("CARREL_UNSCORED").is_none(),
        isolation: Isolation::Namespaces,
    };
    let cgroup = match limits()? {
        None if std::env::var_os("CARREL_UNIFIED").is_none() => None,
        limits => Some(create(&limits.unwrap_or_default())?),
    };
    // Only the sandbox has the channel: when the other end is closed, it exits.
    let container = launch(spec, cgroup.as_ref())?;
    show_changes(&container)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null")?)?;
    let status = container.wait()?;
    if let Some(cgroup) = cgroup {
        cgroup.kill_all()?;
        cgroup.remove()?;
    }
    Ok(ExitCode::from(u8::try_from(status.exit_status().unwrap_or(128)).unwrap_or(125)))
}

fn root(image: &str) -> Result<RootFs, ExampleError> {
    let mut root = RootFs::resolve(&image.parse()?)?;
    root.layers.splice(..0, text("CARREL_LAYERS").split_whitespace().map(Into::into));
    Ok(root)
}

fn disk() -> Result<Disk, ExampleError> {
    let bytes = number("CARREL_DISK")?.unwrap_or(256 * 1024 * 1024);
    Ok(match std::env::var_os("CARREL_KEPT") {
        None => Disk::Memory { bytes },
        Some(directory) if Path::new(&directory).exists() => {
            Disk::Persistent(PersistentDisk::open(Path::new(&directory))?)
        }
        Some(directory) => Disk::Persistent(match number("CARREL_INODES")? {
            None => PersistentDisk::create(Path::new(&directory), bytes)?,
            inodes => PersistentDisk::create_within(Path::new(&directory), DiskQuota { bytes, inodes })?,
        }),
    })
}

fn network(pid: &str) -> Result<SandboxNetwork, ExampleError> {
    Ok(SandboxNetwork::of(std::fs::File::open(Path::new("/proc").join(pid))?)?)
}

fn mount(text: &str) -> Result<HostMount, ExampleError> {
    let [source, target, user, access] = parts(text)?;
    let (user, group) = owner(user)?;
    let access = if access == "rw" {
        HostMountAccess::Writable { user, group }
    } else {
        HostMountAccess::ReadOnly { user, group }
    };
    Ok(HostMount { source: source.into(), target: GuestPath::new(target)?, access, owner: None })
}

fn project(text: &str) -> Result<Option<ProjectMount>, ExampleError> {
    if text.is_empty() {
        return Ok(None);
    }
    let [source, target, user] = parts(text)?;
    let (user, group) = owner(user)?;
    Ok(Some(ProjectMount { source: source.into(), target: GuestPath::new(target)?, user, group, identity: None }))
}

fn owner(text: &str) -> Result<(u32, u32), ExampleError> {
    let (user, group) = text.split_once('.').unwrap_or((text, text));
    Ok((user.parse()?, group.parse()?))
}

fn parts<const N: usize>(text: &str) -> Result<[&str; N], ExampleError> {
    let parts: Vec<&str> = text.split(':').collect();
    parts.try_into().map_err(|_| format!("{text}: not {N} parts").into())
}

/// Sends the handle to the socket.
fn show_changes(container: &Container) -> Result<(), ExampleError> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let (Some(socket), Some(changes)) = (std::env::var_os("CARREL_CHANGES"), container.changes()) else {
        return Ok(());
    };
    let socket = std::os::unix::net::UnixStream::connect(socket)?;
    let handles = [std::os::fd::AsFd::as_fd(changes)];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&handles));
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    Ok(())
}

fn create(limits: &CgroupLimits) -> Result<Cgroup, ExampleError> {
    let name = format!("example-{}", std::process::id());
    let host = match std::env::var_os("CARREL_UNIFIED") {
        None => HostCgroups::detect()?,
        Some(_) => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
            let v2: Vec<&str> = mounts.lines().filter(|line| line.contains(" - cgroup2 ")).collect();
            HostCgroups::describe(&v2.join("\n"), "")
        }
    };
    Ok(Cgroup::create(&host, &name, limits, LimitPolicy::Refuse)?)
}

fn limits() -> Result<Option<CgroupLimits>, ExampleError> {
    let (memory, pids) = (number("CARREL_MEMORY")?, number("CARREL_PIDS")?);
    if memory.is_none() && pids.is_none() {
        return Ok(None);
    }
    let pids = pids.map(u32::try_from).transpose()?;
    Ok(Some(CgroupLimits::new(memory, pids, None)?))
}

fn text(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn number(name: &str) -> Result<Option<u64>, ExampleError> {
    Ok(std::env::var(name).ok().map(|text| text.parse()).transpose()?)
}
