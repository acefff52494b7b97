//! The configuration of the runtime, in the format of the OCI runtime specification.

use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use crate::spec::ContainerSpec;

/// The root of the sandbox within the runtime's root.
pub(super) const ROOT: &str = "/rootfs";
/// The path of the first program, in the runtime's root and in the sandbox.
pub(super) const PROGRAM: [&str; 2] = ["/bundle/agent", "/dev/carrel"];
/// Its mount point there.
pub(super) const PROGRAM_NAME: &str = "agentd";

/// A host tree in the root of the sandbox: others may change it, so the runtime must not cache it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BundleMount {
    /// The path from the root of the sandbox, without links.
    pub(crate) path: PathBuf,
    pub(crate) writable: bool,
}

/// The configuration of a sandbox. A path that is not UTF-8 cannot be in it.
pub(super) fn configuration(
    spec: &ContainerSpec,
    capabilities: CapabilitySet,
    trees: &[BundleMount],
    descriptors: u64,
) -> Option<Value> {
    let names: Vec<String> = capabilities.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    let texts = |strings: &[std::ffi::CString]| -> Vec<String> {
        strings.iter().map(|string| string.to_string_lossy().into_owned()).collect()
    };
    let mut args = texts(&spec.args);
    if let Some(program) = args.first_mut() {
        *program = format!("{}/{PROGRAM_NAME}", PROGRAM[1]);
    }
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        bind(PROGRAM[0], PROGRAM[1], false),
    ];
    // The runtime would replace an empty /tmp with a tmpfs that the disk limit does not cover.
    let has_tmp = trees.iter().any(|tree| tree.path == Path::new("tmp"));
    if !has_tmp {
        mounts.push(bind(&format!("{ROOT}/tmp"), "/tmp", true));
    }
    for tree in trees {
        let path = tree.path.to_str()?;
        mounts.push(bind(&format!("{ROOT}/{path}"), &format!("/{path}"), tree.writable));
    }
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    Some(json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": texts(&spec.env),
            "cwd": "/",
            "capabilities": {
                "bounding": names,
                "effective": names,
                "permitted": names,
                "inheritable": [],
                "ambient": [],
            },
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1024.min(descriptors), "hard": descriptors}],
        },
        "root": {"path": ROOT, "readonly": false},
        "hostname": spec.hostname,
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    }))
}

fn bind(source: &str, destination: &str, writable: bool) -> Value {
    let access = if writable { "rw" } else { "ro" };
    json!({
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": ["rbind", "nosuid", "nodev", access],
    })
}
