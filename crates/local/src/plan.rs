//! From what was asked for to what is asked of a supervisor.

use std::path::Path;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_fetch::Image;
use carrel_image::accounts::{self, AccountError, ImageUser, UidGid};
use carrel_image::{GuestPath, LayerStack, RootFs, RootFsDirectory};
use carrel_layers::Config;
use carrel_shim_client::Programs;
use carrel_shim_client::messages::{Create, Keep, Limits, Mount};

use crate::paths::{HomePaths, name};
use crate::{IDS, Settings, failed, services, skeleton};

/// Where execs begin, and what is always there.
pub(crate) const WORKSPACE: &str = "/workspace";

/// What a disk without a limit has: its directory, and in that what is written over layers.
const TREE: &str = "tree";
const UPPER: &str = "upper";
/// Who execs run as, and the number of that user where the image has none.
const USER: &str = "agbox";
const DEFAULT_UID: u32 = 1000;
/// Where sockets of the operator's are inside that tools talk to.
const TOOL_SOCKETS: [&str; 2] = ["/ssh-agent", "/pulse-audio"];
/// The kernel keeps no longer name of a host.
pub(crate) const MAX_HOSTNAME_LENGTH: usize = 63;
/// Jobs that have ended are known for as long as the sandbox runs, and their output is kept.
const KEPT_JOBS: u32 = 100_000;
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// What a supervisor is asked for.
pub(crate) fn create(
    settings: &Settings,
    programs: &Programs,
    (paths, image): (&HomePaths, &Image),
    place: &Place,
    spec: &Spec,
) -> Result<Create, ProviderError> {
    let disk = paths.disk(place)?;
    let mut root = image.root.clone();
    let user = add_exec_user(&mut root, &image.config, spec.user.as_deref())?;
    if spec.limits.disk.is_none() && uses_layers(&disk)? {
        root = skeleton::to_layer(root, &paths.skeletons())?;
    }
    if let Some(workdir) = &spec.workdir {
        add_directory(&mut root, workdir, user.ids.user);
    }
    add_mount_parents(&mut root, spec, &user);
    services::add_service_hosts(&mut root, &spec.services)?;
    let owner = spec.host_owner();
    let mount = |mount: &carrel_control::spec::Mount| Mount {
        source: (&mount.source).into(),
        target: (&mount.target).into(),
        writable: mount.writable || is_tool_socket(spec, mount),
        user: user.ids.user,
        group: user.ids.group,
        owner_user: owner.map(|owner| owner.user),
        owner_group: owner.map(|owner| owner.group),
    };
    let limits = Limits {
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
        ids: IDS.into(),
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
        keep: Keep {
            total_bytes: settings.output_quota.unwrap_or(Keep::TOTAL_BYTES),
            ended_jobs: KEPT_JOBS,
            ended_ms: KEPT_MS,
            ..Keep::default()
        },
        network_of: None,
        gvisor: None,
    })
}

/// Whether a mount is a socket that a tool talks to. An earlier release wrote those down as read-only, when that did not
/// keep anybody from talking.
fn is_tool_socket(spec: &Spec, mount: &carrel_control::spec::Mount) -> bool {
    !spec.stranger && !spec.builtin_tools.is_empty() && TOOL_SOCKETS.contains(&mount.target.as_str())
}

/// Whether a sandbox lies over what its image brings: a new one does, and one that did when its disk was made.
fn uses_layers(disk: &Path) -> Result<bool, ProviderError> {
    let there = |name: &str| disk.join(TREE).join(name).try_exists().map_err(failed);
    Ok(there(UPPER)? || !there("")?)
}

/// Sees to it that there is a user for execs, with a home and a workspace.
fn add_exec_user(root: &mut RootFs, config: &Config, requested: Option<&str>) -> Result<ImageUser, ProviderError> {
    let user = match (accounts::find(USER, root), image_user(config, root)) {
        (Some(user), _) | (None, Some(Ok(user))) => user,
        (None, Some(Err(error))) => return Err(failed(error)),
        (None, None) => accounts::add(USER, DEFAULT_UID, root).map_err(failed)?,
    };
    resolve_directories(root);
    add_directory(root, &user.home, user.ids.user);
    // Whoever is asked for has the workspace, beside the user whom published clients know.
    let user = match requested {
        Some(name) => resolve_user(name, root).map_err(failed)?,
        None => user,
    };
    let number = user.ids.user;
    add_directory(root, &user.home, number);
    accounts::own(WORKSPACE, 0o755, number, root);
    Ok(user)
}

/// Moves directories to where links of the image lead: they are not to take the place of a link.
fn resolve_directories(root: &mut RootFs) {
    let Ok(layers) = LayerStack::open(&root.layers) else { return };
    for made in &mut root.directories {
        if let Some(found) = layers.resolve_directory(&made.path) {
            made.path = found.path;
        }
    }
}

/// Makes a directory of a user, if it is missing.
fn add_directory(root: &mut RootFs, path: &str, owner: u32) {
    if let Some(path) = root.missing_directory(path) {
        root.directories.push(RootFsDirectory { path, mode: 0o755, owner });
    }
}

/// Sees to it that what is shown below the home or the workspace is not in somebody else's directories.
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

/// Whether a path lies below another.
fn is_below(path: &Path, other: &str) -> bool {
    path != Path::new(other) && path.starts_with(other)
}

/// The user that an image names, if it names one.
fn image_user(config: &Config, root: &RootFs) -> Option<Result<ImageUser, AccountError>> {
    Some(resolve_user(config.user.as_deref()?, root))
}

/// A user by its name or its number.
pub(crate) fn resolve_user(name: &str, root: &RootFs) -> Result<ImageUser, AccountError> {
    let user = |ids| ImageUser { name: name.to_owned(), ids, home: accounts::home(Some(name), root) };
    accounts::ids(Some(name), root).map(user)
}

/// How many processes a sandbox may have. Who shares the host with others gets no more than everybody.
fn pids(spec: &Spec, default: u32) -> u32 {
    match spec.pids {
        Some(requested) if spec.stranger => requested.min(default),
        Some(requested) => requested,
        None => default,
    }
}

/// Who execs run as in a sandbox with that root, whose image is to be run like that.
pub(crate) fn user_of(root: &RootFs, config: &Config) -> ImageUser {
    let named = || image_user(config, root)?.ok();
    accounts::find(USER, root).or_else(named).unwrap_or_else(|| ImageUser {
        name: USER.to_owned(),
        ids: UidGid { user: DEFAULT_UID, group: DEFAULT_UID },
        home: format!("/home/{USER}"),
    })
}

/// Of a root, what tells about its users.
pub(crate) fn accounts_of(root: &RootFs) -> RootFs {
    let lists = ["etc/passwd", "etc/group"].map(|list| GuestPath::new(list).ok());
    let files = root.files.iter().filter(|file| lists.iter().flatten().any(|list| *list == file.path));
    RootFs { layers: root.layers.clone(), files: files.cloned().collect(), ..RootFs::default() }
}

#[cfg(test)]
mod tests;
