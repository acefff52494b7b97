//! Validates a draft, in the documented order, before anything is stored.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use carrel_image::ImageRef;
use carrel_store::Pairs;

use super::caller_access::HostIds;
use super::source::{self, HostAccess, LinkPolicy, SourceKind, SourcePathError};
use super::units::{self, quoted};
use super::{CopySpec, DraftCopy, DraftMount, DraftPort, Host, Limits, Mount, Port, Spec, SpecDraft, services, tools};
use crate::{Code, Refusal};

/// The variable with the supplementary groups of the user in the sandbox.
const RESERVED_VARIABLE: &str = "AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS";

/// The maximum number of ports of a sandbox.
const MAX_PORTS: usize = 64;
/// Ports below it belong to services of the host.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

// === impl SpecDraft ===

impl SpecDraft {
    /// Validates a draft for a caller. Trusted callers may use any path of the host; others may use those that the
    /// operator allows and that they can read themselves. It accesses those paths, so it may block.
    pub fn check(self, host: &Host, caller: &crate::Caller) -> Result<Spec, Refusal> {
        let (trusted, ids) = (caller.trusted, HostIds::from(caller));
        let caller = HostAccess { host, trusted, ids };
        let image = image("image", self.image, caller)?;
        let idle_ttl = services::duration("idle_ttl", self.idle_ttl)?;
        gpus(&self.gpus)?;
        let mut envs = self.envs;
        environment("envs", &envs)?;
        let mut targets = BTreeSet::new();
        let mut mounts = mounts(self.mounts, caller, &mut targets)?;
        let copies = copies(self.copies, caller, &mut targets)?;
        let ports = ports(&self.ports, trusted)?;
        let services = services::check(self.services, caller)?;
        command("command", &self.command)?;
        let limits = limits("", &self.cpu_limit, &self.memory_limit, &self.disk_limit)?;
        tools::add(&self.builtin_tools, caller, targets, &mut mounts, &mut envs)?;
        Ok(Spec {
            image,
            mounts,
            copies,
            builtin_tools: self.builtin_tools,
            services,
            labels: self.labels,
            envs,
            idle_ttl,
            ports,
            command: self.command,
            limits,
            untrusted: !trusted,
            caller: (!trusted).then_some(ids),
            allow_unenforced_limits: false,
            restart: self.restart.unwrap_or_default(),
            user: None,
            workdir: None,
            pids: None,
        })
    }
}

/// Validates an image: the host, a path of it, or a reference to a registry.
pub(super) fn image(field: &str, image: String, caller: HostAccess<'_>) -> Result<String, Refusal> {
    if image.trim().is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    let reference: ImageRef =
        image.parse().map_err(|_| Refusal::invalid(field, format!("{} is not an image reference", quoted(&image))))?;
    let path = match reference {
        ImageRef::Host if !caller.may_use_host() => return Err(SourcePathError::Forbidden.refusal(field, &image)),
        ImageRef::Host | ImageRef::Registry(_) => return Ok(image),
        // Only the operator's home can be used.
        reference if caller.trusted => {
            return Ok(reference.map_path(|path| source::expand_home(&path, caller.host)).to_string());
        }
        ImageRef::Path(path) | ImageRef::Directory(path) => path,
        // Only the operator may use archives.
        _ => return Err(SourcePathError::Forbidden.refusal(field, &image)),
    };
    // The stored path has no links, so that it cannot be redirected later.
    let found = source::resolve(&path, SourceKind::Image, LinkPolicy::Reject, caller);
    let found = found.map_err(|error| error.refusal(field, &image))?;
    found.into_os_string().into_string().map_err(|_| SourcePathError::NotText.refusal(field, &image))
}

fn gpus(gpus: &str) -> Result<(), Refusal> {
    match gpus {
        "" => Ok(()),
        "all" => {
            let message = "gpus: this host has no GPU for sandboxes; leave it out";
            Err(Refusal::new(Code::FailedPrecondition, "GPU_UNAVAILABLE", message).about("field", "gpus"))
        }
        other => Err(Refusal::invalid("gpus", format!("{} is neither empty nor \"all\"", quoted(other)))),
    }
}

/// Validates the names and values of variables.
pub(super) fn environment(field: &str, envs: &Pairs) -> Result<(), Refusal> {
    for (key, value) in envs {
        if key == RESERVED_VARIABLE {
            return Err(Refusal::invalid(field, format!("{RESERVED_VARIABLE} is reserved")));
        }
        if key.is_empty() || key.contains(['=', '\0']) {
            return Err(Refusal::invalid(field, format!("{} is not a valid variable name", quoted(key))));
        }
        if value.contains('\0') {
            return Err(Refusal::invalid(field, format!("the value of {} contains a NUL byte", quoted(key))));
        }
    }
    Ok(())
}

fn mounts(
    drafts: Vec<DraftMount>,
    caller: HostAccess<'_>,
    targets: &mut BTreeSet<String>,
) -> Result<Vec<Mount>, Refusal> {
    let mount = |(index, draft): (usize, DraftMount)| {
        let kinds = if draft.writable { SourceKind::TreeOrSocket } else { SourceKind::Passive };
        let source = source(&format!("mounts[{index}].source"), &draft.source, kinds, caller)?;
        let field = format!("mounts[{index}].target");
        let target = take(&field, &draft.target, targets)?;
        if target == "/" {
            return Err(Refusal::invalid(&field, "is the root of the sandbox"));
        }
        // A writable mount writes with the rights of the owner, so untrusted callers do not get one.
        if draft.writable && !caller.trusted {
            let field = format!("mounts[{index}].writable");
            let message = format!("{field}: {} is read-only for this caller", quoted(&draft.source));
            return Err(Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", message).about("field", field));
        }
        Ok(Mount { source, target, writable: draft.writable })
    };
    drafts.into_iter().enumerate().map(mount).collect()
}

fn copies(
    drafts: Vec<DraftCopy>,
    caller: HostAccess<'_>,
    targets: &mut BTreeSet<String>,
) -> Result<Vec<CopySpec>, Refusal> {
    let copy = |(index, draft): (usize, DraftCopy)| {
        let field = format!("copies[{index}].source");
        let source = source(&field, &draft.source, SourceKind::Tree, caller)?;
        if source == Path::new("/") {
            return Err(Refusal::invalid(&field, "is the root of the host"));
        }
        let target = take(&format!("copies[{index}].target"), &draft.target, targets)?;
        Ok(CopySpec { source, target, exclude_patterns: draft.exclude_patterns })
    };
    drafts.into_iter().enumerate().map(copy).collect()
}

fn source(field: &str, text: &str, kinds: SourceKind, caller: HostAccess<'_>) -> Result<PathBuf, Refusal> {
    if text.is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    let path = source::expand(field, text, caller.host)?;
    source::resolve(&path, kinds, LinkPolicy::Reject, caller).map_err(|error| error.refusal(field, text))
}

/// Validates a path in the sandbox, which must be unique.
fn take(field: &str, text: &str, targets: &mut BTreeSet<String>) -> Result<String, Refusal> {
    let target = source::target(field, text)?;
    if !targets.insert(target.clone()) {
        return Err(Refusal::invalid(field, format!("{} is used twice", quoted(&target))));
    }
    Ok(target)
}

fn ports(drafts: &[DraftPort], trusted: bool) -> Result<Vec<Port>, Refusal> {
    if drafts.len() > MAX_PORTS {
        let message = format!("{} are too many; the limit is {MAX_PORTS} ports", drafts.len());
        return Err(Refusal::invalid("ports", message));
    }
    let mut ports = Vec::with_capacity(drafts.len());
    let mut targets = BTreeSet::new();
    for (index, draft) in drafts.iter().enumerate() {
        let number = |name: &str, number: u32| match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => {
                Err(Refusal::invalid(&format!("ports[{index}].{name}"), format!("{number} is not between 1 and 65535")))
            }
        };
        let port = Port {
            inside: number("container_port", draft.container_port)?,
            host: number("host_port", draft.host_port)?,
        };
        protocol(&format!("ports[{index}].protocol"), draft.protocol)?;
        if !trusted && port.host < FIRST_UNPRIVILEGED_PORT {
            let field = format!("ports[{index}].host_port");
            let message = format!(
                "{field}: {} is not allowed for this caller; use {FIRST_UNPRIVILEGED_PORT} or higher",
                port.host
            );
            return Err(Refusal::new(Code::PermissionDenied, "HOST_PORT_FORBIDDEN", message).about("field", field));
        }
        if !targets.insert(port.host) {
            return Err(Refusal::invalid(&format!("ports[{index}].host_port"), format!("{} is used twice", port.host)));
        }
        ports.push(port);
    }
    Ok(ports)
}

fn protocol(field: &str, number: i32) -> Result<(), Refusal> {
    let name = match number {
        0 => return Ok(()),
        1 => "UDP",
        2 => "SCTP",
        _ => return Err(Refusal::invalid(field, format!("{number} is not a protocol"))),
    };
    let message = format!("{field}: {name} ports are not supported, only TCP");
    Err(Refusal::new(Code::InvalidArgument, "PORT_PROTOCOL_UNSUPPORTED", message).about("field", field))
}

/// Validates the arguments of a command: none may be empty or contain a NUL.
pub(super) fn command(field: &str, arguments: &[String]) -> Result<(), Refusal> {
    match arguments.iter().enumerate().find(|(_, word)| word.is_empty() || word.contains('\0')) {
        Some((index, word)) => {
            let what = if word.is_empty() { "is empty" } else { "contains a NUL byte" };
            Err(Refusal::invalid(&format!("{field}[{index}]"), what))
        }
        None => Ok(()),
    }
}

/// Parses limits; empty means none.
pub(super) fn limits(before: &str, cpu: &str, memory: &str, disk: &str) -> Result<Limits, Refusal> {
    let is_given = |text: &str| !text.is_empty();
    let refused =
        |name: &'static str| move |bad: units::ParseAmountError| Refusal::invalid(&format!("{before}{name}"), bad);
    Ok(Limits {
        cpu_millis: is_given(cpu).then(|| units::processors(cpu)).transpose().map_err(refused("cpu_limit"))?,
        memory: is_given(memory).then(|| units::size(memory)).transpose().map_err(refused("memory_limit"))?,
        disk: is_given(disk).then(|| units::size(disk)).transpose().map_err(refused("disk_limit"))?,
    })
}
