//! Converts arguments to requests for the shim: a sandbox, and a job in it.

use std::path::{Path, PathBuf};

use carrel_agent_client::sandbox_directory;
use carrel_changes::EscapedName;
use carrel_fetch::Image;
use carrel_image::GuestPath;
use carrel_layers::Digest;
use carrel_layout::ID_RANGES;
use carrel_local::HostCopy;
use carrel_sandbox::cgroup;
use carrel_shim_client::Programs;
use carrel_shim_client::messages::{Create, JobCommand, JobRetention, MountSpec, ProjectSpec, SandboxLimits};
use carrel_units::{ByteSize, TimeSpan};

use super::project::RunProject;
use super::{image, isolation};
use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::jobs::command::CommandSpec;
use crate::jobs::session::detach::DetachKeys;
use crate::jobs::session::terminal::TerminalSize;
use crate::mount::{MountMode, MountPair};
use crate::{jobs, user};

/// Where a project is mounted.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Enough for the files that every sandbox has.
const MIN_DISK: ByteSize = ByteSize(1 << 20);
/// The limit of the kernel.
const MAX_HOSTNAME: usize = 64;

/// A validated run.
#[derive(Debug)]
pub(crate) struct RunPlan {
    pub(crate) create: Create,
    pub(crate) command: JobCommand,
    pub(crate) timeout: Option<TimeSpan>,
    /// The memory limit, for messages.
    pub(crate) memory: ByteSize,
    pub(crate) project: Option<RunProject>,
    /// Copies to make before the command starts.
    pub(crate) copies: Vec<HostCopy>,
    /// The directory of running sandboxes.
    pub(crate) sandboxes: PathBuf,
    pub(crate) keys: DetachKeys,
    /// Held while the image is in use.
    image: Image,
}

// === impl RunPlan ===

impl RunPlan {
    pub(crate) fn new(arguments: &RunArguments, programs: &Programs, quiet: bool) -> Result<Self, Failure> {
        check_targets(&arguments.mounts, arguments.project.is_some())?;
        let home = CarrelHome::find()?;
        home.prepare()?;
        user::check(arguments.user.as_deref())?;
        let keys = jobs::keys(&arguments.detach_keys)?;
        // Without input, no keys are read either.
        let keys = if arguments.no_stdin { DetachKeys::default() } else { keys };
        let memory = arguments.memory.unwrap_or_else(half_of_memory);
        let image = image::prepare(arguments, &home, programs, quiet)?;
        let command = command(arguments, &image)?;
        let project = RunProject::new(arguments, &home)?;
        let create = create(arguments, &home, programs, &image, memory, project.as_ref())?;
        let copies = copies(arguments, &image)?;
        let (timeout, sandboxes) = (arguments.timeout, home.sandboxes());
        Ok(Self { create, command, timeout, memory, project, copies, sandboxes, keys, image })
    }

    /// The digest of the image, if it is in the store.
    pub(crate) fn image_digest(&self) -> Option<Digest> {
        self.image.digest
    }
}

fn command(arguments: &RunArguments, image: &Image) -> Result<JobCommand, Failure> {
    let workspace = || arguments.project.is_some().then(|| WORKSPACE.to_owned());
    let terminal = TerminalSize::requested(arguments.tty, arguments.no_tty);
    let words = image::command_words(arguments, &image.config)?;
    let spec = CommandSpec {
        argv: &words,
        image_env: &image.config.env,
        env: &arguments.env,
        cwd: arguments.workdir.clone().or_else(workspace).or_else(|| image.config.workdir.clone()),
        user: image::user(arguments, image),
        terminal,
        stdin: !arguments.no_stdin,
        timeout: arguments.timeout,
    };
    spec.command(&image.root)
}

/// The request for the sandbox.
fn create(
    arguments: &RunArguments,
    home: &CarrelHome,
    programs: &Programs,
    image: &Image,
    memory: ByteSize,
    project: Option<&RunProject>,
) -> Result<Create, Failure> {
    // The shim has the same bounds, but here the error names the argument.
    cgroup::CgroupLimits::new(Some(memory.0), Some(arguments.pids), arguments.cpus)
        .map_err(|error| Failure::new("invalid_limit", error))?;
    if arguments.disk < MIN_DISK {
        let message = format!("a disk of {} is too small: the minimum is {MIN_DISK}", arguments.disk);
        return Err(Failure::new("invalid_limit", message));
    }
    check_hostname(&arguments.hostname)?;
    let incarnation = incarnation()?;
    let name = arguments.name.clone().unwrap_or_else(|| format!("run-{incarnation}"));
    let ids = || user::ids(image::user(arguments, image), &image.root);
    let mut mounts = Vec::new();
    for mount in arguments.mounts.iter().filter(|mount| mount.mode != MountMode::Copy) {
        let (source, target) = (existing(&mount.source)?.into(), (&mount.target).into());
        let user::UidGid { user, group } = ids()?;
        let writable = mount.mode == MountMode::Writable;
        mounts.push(MountSpec { source, target, writable, user, group, owner_user: None, owner_group: None });
    }
    let project = match project {
        Some(project) => {
            let user::UidGid { user, group } = ids()?;
            let identity = Some(project.identity());
            Some(ProjectSpec { source: project.path().into(), target: WORKSPACE.into(), user, group, identity })
        }
        None => None,
    };
    Ok(Create {
        directory: sandbox_directory(home.path(), &name)?.into(),
        name,
        incarnation,
        programs: home.programs().into(),
        ids: ID_RANGES.into(),
        agentd: (&programs.agentd).into(),
        root: (&image.root).into(),
        mounts,
        project,
        disk: arguments.disk.0,
        kept_disk: None,
        hostname: arguments.hostname.clone(),
        limits: SandboxLimits {
            memory: Some(memory.0),
            pids: Some(arguments.pids),
            cpu_millis: arguments.cpus.map(cgroup::CpuShare::thousandths),
        },
        allow_unenforced: arguments.allow_unenforced_limits,
        image: arguments.image.to_string(),
        lasting: false,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: isolation::gvisor(arguments.isolation)?,
    })
}

/// The mounts with mode `copy`, which belong to the user of the command.
fn copies(arguments: &RunArguments, image: &Image) -> Result<Vec<HostCopy>, Failure> {
    let copy = |mount: &MountPair| {
        let user::UidGid { user, group } = user::ids(image::user(arguments, image), &image.root)?;
        let target = mount.target.to_str().map(str::to_owned).ok_or_else(|| {
            Failure::new("invalid_mount", format!("the path {} is not UTF-8", EscapedName::path(&mount.target)))
        })?;
        Ok(HostCopy { source: existing(&mount.source)?, target, user, group })
    };
    arguments.mounts.iter().filter(|mount| mount.mode == MountMode::Copy).map(copy).collect()
}

/// Fails if two mounts have the same target.
fn check_targets(mounts: &[MountPair], project: bool) -> Result<(), Failure> {
    let mut taken: Vec<GuestPath> = GuestPath::new(WORKSPACE).ok().filter(|_| project).into_iter().collect();
    for (number, mount) in mounts.iter().enumerate() {
        let Ok(target) = GuestPath::new(&mount.target) else { continue };
        if taken.contains(&target) {
            let with_project = project && taken.iter().position(|other| *other == target) == Some(0);
            let other = if with_project { "the project" } else { "another --mount" };
            let message = format!(
                "--mount number {} and {other} have the same target {}",
                number + 1,
                EscapedName::path(&mount.target)
            );
            return Err(Failure::new("invalid_mount", message).hint("give each its own target"));
        }
        taken.push(target);
    }
    Ok(())
}

fn check_hostname(name: &str) -> Result<(), Failure> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if (1..=MAX_HOSTNAME).contains(&name.len()) && name.bytes().all(known) {
        return Ok(());
    }
    let message = format!("{name:?} is not a host name: expected 1 to {MAX_HOSTNAME} letters, digits, `-`, `.` or `_`");
    Err(Failure::new("invalid_hostname", message))
}

/// The canonical path of a mount source.
fn existing(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| {
        Failure::new("mount_unavailable", format!("{}: {error}", EscapedName::path(path)))
            .hint("the source of --mount must exist on this host")
    };
    std::fs::canonicalize(path).map_err(failed)
}

/// A random incarnation id.
fn incarnation() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(format!("{:016x}", u64::from_ne_bytes(bytes))),
        Ok(_) | Err(_) => Err(Failure::new("randomness_unavailable", "the kernel provides no random bytes")),
    }
}

fn half_of_memory() -> ByteSize {
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(u64::from(info.mem_unit));
    ByteSize((total / 2).clamp(cgroup::CgroupLimits::MIN_MEMORY, cgroup::CgroupLimits::MAX_MEMORY))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::arguments::CarrelCommand;

    fn planned(words: &[&str]) -> Result<Create, Failure> {
        let words = ["carrel", "run"].iter().chain(words).chain(&["host", "--", "true"]).map(OsString::from);
        let CarrelCommand::Run(arguments) = crate::usage::parse(words).unwrap().command else {
            panic!("not a run command")
        };
        let dir = tempfile::tempdir().unwrap();
        let home = CarrelHome::at(dir.path());
        check_targets(&arguments.mounts, arguments.project.is_some())?;
        let image = Image::from(carrel_image::RootFs::resolve(&arguments.image).unwrap());
        let programs = Programs { shim: "/shim".into(), agentd: "/agentd".into() };
        let project = RunProject::new(&arguments, &home)?;
        create(&arguments, &home, &programs, &image, ByteSize(1 << 30), project.as_ref())
    }

    //= promises.command.owner-mounts-project-inside
    #[test]
    fn mounts_and_the_project_belong_to_the_user_of_the_command() {
        let project = tempfile::tempdir().unwrap();
        let project = project.path().to_str().unwrap();
        for (user, expected) in [("0", (0, 0)), ("12:34", (12, 34)), ("agbox", (1000, 1000)), ("agbox:root", (1000, 0))]
        {
            let create = planned(&["--user", user, "--mount", "/usr:/x", "--project", project]).unwrap();
            let mount = create.mounts.first().unwrap();
            assert_eq!((mount.user, mount.group), expected, "{user}");
            let project = create.project.unwrap();
            assert_eq!((project.user, project.group), expected, "{user}");
        }
    }

    //= promises.sandbox.refused-mount-points
    #[test]
    fn two_mounts_with_the_same_target_are_refused() {
        let check = |words: &[&str]| planned(words).map(drop).map_err(|failure| failure.message);
        assert_eq!(
            check(&["--mount", "/usr:/x", "--mount", "/bin:/y", "--mount", "/lib://x/"]),
            Err("--mount number 3 and another --mount have the same target //x/".to_owned())
        );
        assert_eq!(
            check(&["--project", "/usr/lib/os-release", "--mount", "/usr:/workspace"]),
            Err("--mount number 1 and the project have the same target /workspace".to_owned())
        );
        assert_eq!(check(&["--mount", "/usr:/x", "--mount", "/bin:/x/y", "--mount", "/usr:/workspace"]), Ok(()));
    }
}
