//! Whether a draft is right: in the documented order, before anything is kept.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use carrel_image::ImageRef;
use carrel_store::Pairs;

use super::identity::HostIds;
use super::source::{self, Caller, Kinds, Last, Unusable};
use super::units::{self, shown};
use super::{Copy, Draft, DraftCopy, DraftMount, DraftPort, Host, Limits, Mount, Port, Spec, services, tools};
use crate::{Code, Refusal};

/// The variable that says which groups the user inside has besides its own.
const RESERVED: &str = "AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS";

/// How many ports a sandbox may have.
const MOST_PORTS: usize = 64;
/// Ports below it belong to services of the host.
const FIRST_PLAIN_PORT: u16 = 1024;

// === impl Draft ===

impl Draft {
    /// Checks a draft for a caller: trusted ones may name any path of the host, others what the operator allows and they
    /// can read themselves. It looks at those paths, so it may take a while.
    pub fn check(self, host: &Host, caller: &crate::Caller) -> Result<Spec, Refusal> {
        let (trusted, ids) = (caller.trusted, HostIds::from(caller));
        let caller = Caller { host, trusted, ids };
        let image = image("image", self.image, caller)?;
        let idle_ttl = services::duration("idle_ttl", self.idle_ttl)?;
        gpus(&self.gpus)?;
        let mut envs = self.envs;
        environment("envs", &envs)?;
        let mut taken = BTreeSet::new();
        let mut mounts = mounts(self.mounts, caller, &mut taken)?;
        let copies = copies(self.copies, caller, &mut taken)?;
        let ports = ports(&self.ports, trusted)?;
        let services = services::check(self.services, caller)?;
        command("command", &self.command)?;
        let limits = limits("", &self.cpu_limit, &self.memory_limit, &self.disk_limit)?;
        tools::add(&self.builtin_tools, caller, taken, &mut mounts, &mut envs)?;
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
            stranger: !trusted,
            caller: (!trusted).then_some(ids),
            allow_unenforced_limits: false,
            restart: self.restart.unwrap_or_default(),
            user: None,
            workdir: None,
            pids: None,
        })
    }
}

/// An image is the host, something on it, or a name in a registry.
pub(super) fn image(field: &str, image: String, caller: Caller<'_>) -> Result<String, Refusal> {
    if image.trim().is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    let reference: ImageRef =
        image.parse().map_err(|_| Refusal::invalid(field, format!("{} is no image", shown(&image))))?;
    let path = match reference {
        ImageRef::Host if !caller.may_have_host() => return Err(Unusable::Forbidden.refusal(field, &image)),
        ImageRef::Host | ImageRef::Registry(_) => return Ok(image),
        // A home is the operator's, and named by nobody else.
        reference if caller.trusted => {
            return Ok(reference.map_path(|path| source::at_home(&path, caller.host)).to_string());
        }
        ImageRef::Path(path) | ImageRef::Directory(path) => path,
        // What is in an archive is the operator's to choose.
        _ => return Err(Unusable::Forbidden.refusal(field, &image)),
    };
    // What is kept is the path without links: nobody can turn it into another one later.
    let found = source::look(&path, Kinds::Image, Last::NoLink, caller);
    let found = found.map_err(|unusable| unusable.refusal(field, &image))?;
    found.into_os_string().into_string().map_err(|_| Unusable::NotText.refusal(field, &image))
}

fn gpus(gpus: &str) -> Result<(), Refusal> {
    match gpus {
        "" => Ok(()),
        "all" => {
            let message = "gpus: there is no graphics processor for sandboxes here: leave it out";
            Err(Refusal::new(Code::FailedPrecondition, "GPU_UNAVAILABLE", message).about("field", "gpus"))
        }
        other => Err(Refusal::invalid("gpus", format!("{} is neither empty nor \"all\"", shown(other)))),
    }
}

/// What is no name of a variable could never be given to a program.
pub(super) fn environment(field: &str, envs: &Pairs) -> Result<(), Refusal> {
    for (key, value) in envs {
        if key == RESERVED {
            return Err(Refusal::invalid(field, format!("{RESERVED} is reserved")));
        }
        if key.is_empty() || key.contains(['=', '\0']) {
            return Err(Refusal::invalid(field, format!("{} is no name of a variable", shown(key))));
        }
        if value.contains('\0') {
            return Err(Refusal::invalid(field, format!("the value of {} has a NUL in it", shown(key))));
        }
    }
    Ok(())
}

fn mounts(drafts: Vec<DraftMount>, caller: Caller<'_>, taken: &mut BTreeSet<String>) -> Result<Vec<Mount>, Refusal> {
    let mount = |(index, draft): (usize, DraftMount)| {
        let kinds = if draft.writable { Kinds::TreeOrSocket } else { Kinds::Passive };
        let source = source(&format!("mounts[{index}].source"), &draft.source, kinds, caller)?;
        let field = format!("mounts[{index}].target");
        let target = take(&field, &draft.target, taken)?;
        if target == "/" {
            return Err(Refusal::invalid(&field, "is the root of the sandbox"));
        }
        // What is written in the name of the owner of a tree is not a stranger's to write.
        if draft.writable && !caller.trusted {
            let field = format!("mounts[{index}].writable");
            let words = format!("{field}: {} can only be read by this caller", shown(&draft.source));
            return Err(Refusal::new(Code::PermissionDenied, "HOST_PATH_FORBIDDEN", words).about("field", field));
        }
        Ok(Mount { source, target, writable: draft.writable })
    };
    drafts.into_iter().enumerate().map(mount).collect()
}

fn copies(drafts: Vec<DraftCopy>, caller: Caller<'_>, taken: &mut BTreeSet<String>) -> Result<Vec<Copy>, Refusal> {
    let copy = |(index, draft): (usize, DraftCopy)| {
        let field = format!("copies[{index}].source");
        let source = source(&field, &draft.source, Kinds::Tree, caller)?;
        if source == Path::new("/") {
            return Err(Refusal::invalid(&field, "is the root of the host"));
        }
        let target = take(&format!("copies[{index}].target"), &draft.target, taken)?;
        Ok(Copy { source, target, exclude_patterns: draft.exclude_patterns })
    };
    drafts.into_iter().enumerate().map(copy).collect()
}

fn source(field: &str, text: &str, kinds: Kinds, caller: Caller<'_>) -> Result<PathBuf, Refusal> {
    if text.is_empty() {
        return Err(Refusal::invalid(field, "is missing"));
    }
    let path = source::expanded(field, text, caller.host)?;
    source::look(&path, kinds, Last::NoLink, caller).map_err(|unusable| unusable.refusal(field, text))
}

/// A place inside, which only one thing can have.
fn take(field: &str, text: &str, taken: &mut BTreeSet<String>) -> Result<String, Refusal> {
    let target = source::target(field, text)?;
    if !taken.insert(target.clone()) {
        return Err(Refusal::invalid(field, format!("{} is taken", shown(&target))));
    }
    Ok(target)
}

fn ports(drafts: &[DraftPort], trusted: bool) -> Result<Vec<Port>, Refusal> {
    if drafts.len() > MOST_PORTS {
        let words = format!("{} are too many: a sandbox has {MOST_PORTS} ports at most", drafts.len());
        return Err(Refusal::invalid("ports", words));
    }
    let mut ports = Vec::with_capacity(drafts.len());
    let mut taken = BTreeSet::new();
    for (index, draft) in drafts.iter().enumerate() {
        let number = |name: &str, number: u32| match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(Refusal::invalid(&format!("ports[{index}].{name}"), format!("{number} is not from 1 to 65535"))),
        };
        let port = Port {
            inside: number("container_port", draft.container_port)?,
            host: number("host_port", draft.host_port)?,
        };
        protocol(&format!("ports[{index}].protocol"), draft.protocol)?;
        if !trusted && port.host < FIRST_PLAIN_PORT {
            let field = format!("ports[{index}].host_port");
            let words = format!("{field}: {} is not for this caller: give one from {FIRST_PLAIN_PORT} on", port.host);
            return Err(Refusal::new(Code::PermissionDenied, "HOST_PORT_FORBIDDEN", words).about("field", field));
        }
        if !taken.insert(port.host) {
            return Err(Refusal::invalid(
                &format!("ports[{index}].host_port"),
                format!("{} is there twice", port.host),
            ));
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
        _ => return Err(Refusal::invalid(field, format!("{number} is no protocol"))),
    };
    let message = format!("{field}: {name} ports cannot be had, only those of TCP");
    Err(Refusal::new(Code::InvalidArgument, "PORT_PROTOCOL_UNSUPPORTED", message).about("field", field))
}

/// No word of a command may be empty, or what no program can be given.
pub(super) fn command(field: &str, words: &[String]) -> Result<(), Refusal> {
    match words.iter().enumerate().find(|(_, word)| word.is_empty() || word.contains('\0')) {
        Some((index, word)) => {
            let what = if word.is_empty() { "is empty" } else { "has a NUL in it" };
            Err(Refusal::invalid(&format!("{field}[{index}]"), what))
        }
        None => Ok(()),
    }
}

/// Limits, as text; empty is none.
pub(super) fn limits(before: &str, cpu: &str, memory: &str, disk: &str) -> Result<Limits, Refusal> {
    let given = |text: &str| !text.is_empty();
    let refused = |name: &'static str| move |bad: units::BadAmount| Refusal::invalid(&format!("{before}{name}"), bad);
    Ok(Limits {
        cpu_millis: given(cpu).then(|| units::processors(cpu)).transpose().map_err(refused("cpu_limit"))?,
        memory: given(memory).then(|| units::size(memory)).transpose().map_err(refused("memory_limit"))?,
        disk: given(disk).then(|| units::size(disk)).transpose().map_err(refused("disk_limit"))?,
    })
}
