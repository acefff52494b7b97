//! Turns the spec of a sandbox into the `shim.create` request.

use std::path::Path;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_fetch::Image;
use carrel_image::accounts::{self, AccountError, ImageUser, UidGid};
use carrel_image::{GuestPath, LayerStack, RootFs, RootFsDirectory};
use carrel_layers::ImageConfig;
use carrel_layout::ID_RANGES;
use carrel_shim_client::Programs;
use carrel_shim_client::messages::{Create, JobRetention, MountSpec, SandboxLimits};

use crate::paths::{HomePaths, name};
use crate::{LocalSettings, failed, host_layer, services};

/// The default working directory of execs, which always exists.
pub(crate) const WORKSPACE: &str = "/workspace";

/// The directory of a disk without a limit, and its overlay upper directory.
const TREE: &str = "tree";
const UPPER: &str = "upper";
/// The exec user, and its uid and gid where the image has no such user.
const USER: &str = "agbox";
const DEFAULT_UID: u32 = 1000;
/// Where the operator's sockets for tools are mounted in a sandbox.
const TOOL_SOCKETS: [&str; 2] = ["/ssh-agent", "/pulse-audio"];
/// The kernel's limit for host names.
pub(crate) const MAX_HOSTNAME_LENGTH: usize = 63;
/// Ended jobs and their output are kept for as long as the sandbox runs.
const KEPT_JOBS: u32 = 100_000;
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// The request that creates a sandbox.
pub(crate) fn create(
    settings: &LocalSettings,
    programs: &Programs,
    (paths, image): (&HomePaths, &Image),
    place: &Place,
    spec: &Spec,
) -> Result<Create, ProviderError> {
    let disk = paths.disk(place)?;
    let mut root = image.root.clone();
    let user = add_exec_user(&mut root, &image.config, spec.user.as_deref())?;
    if spec.limits.disk.is_none() && uses_layers(&disk)? {
        root = host_layer::to_layer(root, &paths.skeletons())?;
    }
    if let Some(workdir) = &spec.workdir {
        add_directory(&mut root, workdir, user.ids.user);
    }
    add_mount_parents(&mut root, spec, &user);
    services::add_service_hosts(&mut root, &spec.services)?;
    let owner = spec.host_owner();
    let mount = |mount: &carrel_control::spec::Mount| MountSpec {
        source: (&mount.source).into(),
        target: (&mount.target).into(),
        writable: mount.writable || is_tool_socket(spec, mount),
        user: user.ids.user,
        group: user.ids.group,
        owner_user: owner.map(|owner| owner.user),
        owner_group: owner.map(|owner| owner.group),
    };
    let limits = SandboxLimits {
        memory: Some(spec.limits.memory.unwrap_or(settings.default_memory)),
        pids: Some(pids(spec, settings.pids)),
        cpu_millis: spec.limits.cpu_millis,
    };
    let kept = settings.kept_disk(disk, spec.limits.disk);
    Ok(Create {
        name: name(&place.sandbox),
        incarnation: place.incarnation.clone(),
        directory: paths.directory(&place.sandbox).into(),
        programs: paths.programs().into(),
        ids: ID_RANGES.into(),
        agentd: (&programs.agentd).into(),
        root: (&root).into(),
        mounts: spec.mounts.iter().map(mount).collect(),
        project: None,
        disk: spec.limits.disk.unwrap_or_default(),
        kept_disk: Some(kept),
        hostname: place.sandbox.local().chars().take(MAX_HOSTNAME_LENGTH).collect(),
        limits,
        allow_unenforced: spec.allow_unenforced_limits,
        image: spec.image.clone(),
        lasting: true,
        logs: Some(settings.logs.directory(&place.sandbox).into()),
        keep: JobRetention {
            total_bytes: settings.output_quota.unwrap_or(JobRetention::TOTAL_BYTES),
            ended_jobs: KEPT_JOBS,
            ended_ms: KEPT_MS,
            ..JobRetention::default()
        },
        network_of: None,
        gvisor: None,
    })
}

/// Whether a mount is the socket of a tool. An earlier release recorded those as read-only, which did not prevent connections
/// then.
fn is_tool_socket(spec: &Spec, mount: &carrel_control::spec::Mount) -> bool {
    !spec.untrusted && !spec.builtin_tools.is_empty() && TOOL_SOCKETS.contains(&mount.target.as_str())
}

/// Whether a sandbox runs on image layers: a new one does, and one whose disk was created so.
fn uses_layers(disk: &Path) -> Result<bool, ProviderError> {
    let there = |name: &str| disk.join(TREE).join(name).try_exists().map_err(failed);
    Ok(there(UPPER)? || !there("")?)
}

/// Adds the exec user with its home and workspace to a root.
fn add_exec_user(root: &mut RootFs, config: &ImageConfig, requested: Option<&str>) -> Result<ImageUser, ProviderError> {
    let user = match (accounts::find(USER, root), image_user(config, root)) {
        (Some(user), _) | (None, Some(Ok(user))) => user,
        (None, Some(Err(error))) => return Err(failed(error)),
        (None, None) => accounts::add(USER, DEFAULT_UID, root).map_err(failed)?,
    };
    resolve_directories(root);
    add_directory(root, &user.home, user.ids.user);
    // A requested user owns the workspace; the exec user still exists, for published clients.
    let user = match requested {
        Some(name) => resolve_user(name, root).map_err(failed)?,
        None => user,
    };
    let number = user.ids.user;
    add_directory(root, &user.home, number);
    accounts::own(WORKSPACE, 0o755, number, root);
    Ok(user)
}

/// Resolves directories through links of the image, so that they do not replace a link.
fn resolve_directories(root: &mut RootFs) {
    let Ok(layers) = LayerStack::open(&root.layers) else { return };
    for made in &mut root.directories {
        if let Some(found) = layers.resolve_directory(&made.path) {
            made.path = found.path;
        }
    }
}

/// Adds a directory of a user, if it is missing.
fn add_directory(root: &mut RootFs, path: &str, owner: u32) {
    if let Some(path) = root.missing_directory(path) {
        root.directories.push(RootFsDirectory { path, mode: 0o755, owner });
    }
}

/// Adds the parent directories of mounts below the home or the workspace, owned by the exec user.
fn add_mount_parents(root: &mut RootFs, spec: &Spec, user: &ImageUser) {
    for mount in &spec.mounts {
        let target = Path::new(&mount.target);
        let below = |top: &&Path| [user.home.as_str(), WORKSPACE].iter().any(|own| is_below(top, own));
        let between: Vec<&Path> = target.ancestors().skip(1).take_while(below).collect();
        for directory in between.into_iter().rev().filter_map(Path::to_str) {
            add_directory(root, directory, user.ids.user);
        }
    }
}

fn is_below(path: &Path, other: &str) -> bool {
    path != Path::new(other) && path.starts_with(other)
}

/// The user of the image's configuration, if it has one.
fn image_user(config: &ImageConfig, root: &RootFs) -> Option<Result<ImageUser, AccountError>> {
    Some(resolve_user(config.user.as_deref()?, root))
}

/// Resolves a user by name or number.
pub(crate) fn resolve_user(name: &str, root: &RootFs) -> Result<ImageUser, AccountError> {
    let user = |ids| ImageUser { name: name.to_owned(), ids, home: accounts::home(Some(name), root) };
    accounts::ids(Some(name), root).map(user)
}

/// The process limit of a sandbox. Other users of the host cannot exceed the default.
fn pids(spec: &Spec, default: u32) -> u32 {
    match spec.pids {
        Some(requested) if spec.untrusted => requested.min(default),
        Some(requested) => requested,
        None => default,
    }
}

/// The exec user of a sandbox with this root and image configuration.
pub(crate) fn user_of(root: &RootFs, config: &ImageConfig) -> ImageUser {
    let named = || image_user(config, root)?.ok();
    accounts::find(USER, root).or_else(named).unwrap_or_else(|| ImageUser {
        name: USER.to_owned(),
        ids: UidGid { user: DEFAULT_UID, group: DEFAULT_UID },
        home: format!("/home/{USER}"),
    })
}

/// The parts of a root that define its users.
pub(crate) fn accounts_of(root: &RootFs) -> RootFs {
    let lists = ["etc/passwd", "etc/group"].map(|list| GuestPath::new(list).ok());
    let files = root.files.iter().filter(|file| lists.iter().flatten().any(|list| *list == file.path));
    RootFs { layers: root.layers.clone(), files: files.cloned().collect(), ..RootFs::default() }
}

#[cfg(test)]
mod tests;
