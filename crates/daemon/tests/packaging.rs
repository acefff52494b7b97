//! The systemd units that are shipped.

#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The values of a key in a section, in order.
fn values(unit: &str, section: &str, key: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in unit.lines().map(str::trim) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => inside = name == section,
            None if inside => {
                found.extend(line.split_once('=').filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()));
            }
            None => {}
        }
    }
    found
}

#[test]
fn stopping_the_service_keeps_sandboxes_running() {
    let unit = std::fs::read_to_string(packaging().join("carrel.service")).unwrap();
    for (key, value) in [
        ("Type", "notify"),
        ("KillMode", "process"),
        ("Delegate", "yes"),
        ("Slice", "carrel-sandboxes.slice"),
        ("TasksMax", "infinity"),
        ("Environment", "HOME=/root XDG_CONFIG_HOME=/etc"),
    ] {
        assert_eq!(values(&unit, "Service", key), [value], "{key}");
    }
    // All child processes would inherit what these filter or hide.
    for key in ["SystemCallFilter", "MemoryDenyWriteExecute", "ProtectSystem", "PrivateTmp", "ProtectHostname"] {
        assert!(values(&unit, "Service", key).is_empty(), "{key}");
    }
    let started = values(&unit, "Service", "ExecStart").concat();
    assert!(started.starts_with("/usr/local/bin/carrel serve "), "{started}");
}

#[test]
fn a_host_shutdown_stops_sandboxes_before_the_daemon_and_a_daemon_stop_does_not() {
    let unit = std::fs::read_to_string(packaging().join("carrel-sandboxes.service")).unwrap();
    // The stop order is the reverse of the start order.
    assert_eq!(values(&unit, "Unit", "After"), ["carrel.service"]);
    assert_eq!(values(&unit, "Unit", "Wants"), ["carrel.service"]);
    for key in ["Requires", "BindsTo", "PartOf", "Requisite"] {
        assert!(values(&unit, "Unit", key).is_empty(), "{key} stops sandboxes with the daemon");
    }
    assert_eq!(values(&unit, "Unit", "DefaultDependencies"), [""; 0], "without them it does not stop at shutdown");
    for (key, value) in [
        ("Type", "oneshot"),
        ("RemainAfterExit", "yes"),
        ("Environment", "CARREL_HOME=/var/lib/carrel"),
        ("ExecStop", "/usr/local/bin/carrel stop --all --for-shutdown --timeout 60s"),
        ("TimeoutStopSec", "75s"),
    ] {
        assert_eq!(values(&unit, "Service", key), [value], "{key}");
    }
}

#[test]
fn the_units_are_valid_for_systemd() {
    let names = ["carrel.service", "carrel-sandboxes.service", "carrel-sandboxes.slice"];
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        let unit = std::fs::read_to_string(packaging().join(name)).unwrap();
        // An existing program, so that only the unit is verified.
        std::fs::write(directory.path().join(name), unit.replace("/usr/local/bin/carrel", "/bin/true")).unwrap();
    }
    let verify = |name: &str| {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(directory.path().join(name)).output()
    };
    for name in names {
        let Ok(output) = verify(name) else {
            // Without systemd on this host, the other tests read the units themselves.
            return;
        };
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && message.is_empty(), "{name}: {message}");
    }
    std::fs::write(directory.path().join("carrel.service"), "[Service]\nKillMod=process\n").unwrap();
    let output = verify("carrel.service").unwrap();
    assert!(!output.stderr.is_empty(), "an invalid unit is reported");
}
