//! Checks the kernel.

use super::HostCheck;

/// The first kernel with id-mapped layers in overlayfs.
const MIN_KERNEL: (u32, u32) = (5, 19);
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
/// The seccomp actions that the filter uses.
const ACTIONS: [&str; 3] = ["kill_process", "errno", "allow"];
/// Enough open files for one sandbox with a few clients.
const MIN_FILES: u64 = 1024;

pub(super) fn checks() -> Vec<HostCheck> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let uname = rustix::system::uname();
    let missing = |name: &&str| !std::path::Path::new("/proc/self/ns").join(name).exists();
    let allowed = |name: &str| text(&format!("/proc/sys/user/max_{name}_namespaces"));
    vec![
        root(rustix::process::geteuid().is_root()),
        kernel(&uname.release().to_string_lossy()),
        namespaces(&NAMESPACES.into_iter().filter(missing).collect::<Vec<_>>(), allowed),
        overlay(&text("/proc/filesystems")),
        seccomp(&text("/proc/sys/kernel/seccomp/actions_avail")),
        files(rustix::process::getrlimit(rustix::process::Resource::Nofile).current),
    ]
}

fn root(is_root: bool) -> HostCheck {
    if is_root {
        HostCheck::ok("root", "running as root")
    } else {
        HostCheck::fail("root", "only root can create sandboxes", "sudo carrel doctor")
    }
}

fn kernel(release: &str) -> HostCheck {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release}");
    if version >= MIN_KERNEL {
        return HostCheck::ok("kernel", found);
    }
    let (major, minor) = MIN_KERNEL;
    HostCheck::fail("kernel", found, format!("run Linux {major}.{minor} or newer"))
}

fn namespaces(missing: &[&str], allowed: impl Fn(&str) -> String) -> HostCheck {
    if !missing.is_empty() {
        let found = format!("the kernel has no namespaces of kind {}", missing.join(", "));
        return HostCheck::fail("namespaces", found, "run a kernel with CONFIG_NAMESPACES and CONFIG_USER_NS");
    }
    let forbidden = |name: &&str| allowed(name).trim() == "0";
    let forbidden: Vec<&str> = NAMESPACES.into_iter().filter(forbidden).collect();
    if forbidden.is_empty() {
        return HostCheck::ok("namespaces", NAMESPACES.join(", "));
    }
    let settings: Vec<String> =
        forbidden.iter().map(|name| format!("sysctl -w user.max_{name}_namespaces=15000")).collect();
    HostCheck::fail("namespaces", format!("none allowed of kind {}", forbidden.join(", ")), settings.join(" && "))
}

fn overlay(filesystems: &str) -> HostCheck {
    let has = filesystems.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if has {
        HostCheck::ok("overlay", "overlayfs is available")
    } else {
        HostCheck::fail("overlay", "the kernel has no overlayfs loaded", "modprobe overlay")
    }
}

fn seccomp(actions: &str) -> HostCheck {
    let has = |action: &&str| actions.split_whitespace().any(|one| one == *action);
    if ACTIONS.iter().all(has) {
        HostCheck::ok("seccomp", "filters are available")
    } else {
        HostCheck::fail("seccomp", "the kernel has no system-call filters", "run a kernel with CONFIG_SECCOMP_FILTER")
    }
}

fn files(soft: Option<u64>) -> HostCheck {
    match soft {
        Some(soft) if soft < MIN_FILES => {
            HostCheck::warn("descriptors", format!("limit of {soft} open files"), "ulimit -n 4096")
        }
        Some(soft) => HostCheck::ok("descriptors", format!("limit of {soft} open files")),
        None => HostCheck::ok("descriptors", "no limit on open files"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn an_old_kernel_fails_with_the_required_version() {
        for (release, status) in [
            ("6.18.2-amd64", CheckStatus::Ok),
            ("5.19.0", CheckStatus::Ok),
            ("5.18.19", CheckStatus::Fail),
            ("4.20", CheckStatus::Fail),
            ("odd", CheckStatus::Fail),
        ] {
            assert_eq!(kernel(release).status, status, "{release}");
        }
        assert_eq!(kernel("5.4.0").remedy.as_deref(), Some("run Linux 5.19 or newer"));
    }

    #[test]
    fn disabled_namespaces_have_a_command_that_enables_them() {
        assert_eq!(namespaces(&[], |_| "63000\n".into()).status, CheckStatus::Ok);
        let check = namespaces(&[], |name| if name == "user" { "0\n".into() } else { String::new() });
        assert_eq!(check.remedy.as_deref(), Some("sysctl -w user.max_user_namespaces=15000"));
        assert_eq!(namespaces(&["net"], |_| String::new()).status, CheckStatus::Fail);
    }

    #[test]
    fn missing_kernel_features_fail() {
        assert_eq!(overlay("nodev\tproc\nnodev\toverlay\n").status, CheckStatus::Ok);
        assert_eq!(overlay("nodev\toverlaid\n").status, CheckStatus::Fail);
        assert_eq!(seccomp("kill_process kill_thread trap errno user_notif trace log allow\n").status, CheckStatus::Ok);
        assert_eq!(seccomp("").status, CheckStatus::Fail);
        assert_eq!(root(false).remedy.as_deref(), Some("sudo carrel doctor"));
        assert_eq!(files(Some(256)).status, CheckStatus::Warn);
        assert_eq!(files(None).status, CheckStatus::Ok);
    }
}
