//! What a sandbox sees of sysfs.

use std::io::Read;
use std::process::Command;

use carrel_tests::{Guest, run};

use crate::{LaunchedSandbox, example};

//= promises.sandbox.parts-sys
#[test]
fn sysfs_has_what_programs_need_and_nothing_else() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        assert_eq!(sandbox.shell("cat /sys/devices/system/cpu/online").await, cpus);
        assert_eq!(sandbox.shell("ls /sys/class/net; cat /sys/class/net/lo/mtu").await, "lo\n65536\n");
        assert_eq!(
            sandbox.shell("ls /sys /sys/devices /sys/kernel | tr '\\n' ' '").await,
            "/sys: class devices kernel  /sys/devices: system virtual  /sys/kernel: mm "
        );
        // The control: all of it exists outside.
        for name in ["firmware", "fs/cgroup", "kernel/debug", "kernel/security", "block", "bus", "module", "power"] {
            assert!(std::path::Path::new("/sys").join(name).exists(), "{name} proves nothing");
            assert_eq!(sandbox.shell(&format!("ls -d /sys/{name} 2>/dev/null || echo gone")).await, "gone\n");
        }
        // No sysfs is mounted below, and the tree cannot be unmounted.
        assert_eq!(
            sandbox
                .shell("grep -c sysfs /proc/self/mountinfo; umount /sys 2>/dev/null || echo stays")
                .await
                .lines()
                .last(),
            Some("stays")
        );
    });
}

//= promises.sandbox.parts-sys
#[test]
fn sysfs_cannot_be_written() {
    run(async {
        let files = [
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/class/net/lo/mtu",
            "/sys/devices/system/cpu/cpu0/uevent",
        ];
        let open = "import os, sys
for path in sys.argv[1:]:
    try: os.close(os.open(path, os.O_WRONLY)); print(0)
    except OSError as error: print(error.errno)";
        let outside = Command::new("python3").args(["-c", open]).args(files).output().unwrap();
        assert_eq!(String::from_utf8(outside.stdout).unwrap(), "0\n0\n0\n", "the control");
        let sandbox = LaunchedSandbox::start("host").await;
        let inside = sandbox.shell(&format!("python3 -c '{open}' {}", files.join(" "))).await;
        // They belong to root of the host, whom no user inside maps to; besides, every mount is read-only.
        assert_eq!(inside, format!("{0}\n{0}\n{0}\n", libc::EACCES));
        let options = sandbox.shell("grep ' /sys' /proc/self/mountinfo | cut -d' ' -f6").await;
        assert_eq!(
            options.lines().count(),
            options.lines().filter(|line| line.starts_with("ro,nosuid,nodev,noexec")).count(),
            "{options}"
        );
        let make = "n=0; for d in $(find /sys /tmp -type d); do
                mkdir $d/new 2>/dev/null && echo $d; n=$((n+1)); done; echo $n";
        let made = sandbox.shell(make).await;
        let mut made = made.lines();
        assert_eq!(made.next(), Some("/tmp"), "the control");
        assert!(made.next().unwrap().parse::<u32>().unwrap() > 10);
    });
}

//= promises.sandbox.parts-sys
#[test]
fn sysfs_is_empty_where_the_host_has_none() {
    let mut launch = Command::new("unshare");
    launch.args([
        "--mount",
        "sh",
        "-c",
        "umount -l /sys && exec \"$0\" host /bin/sh -c 'ls -A /sys; touch /sys/x; echo $?'",
    ]);
    launch.arg(example("launch"));
    let (mut guest, mut channel) = Guest::start(launch);
    let mut output = String::new();
    channel.read_to_string(&mut output).unwrap();
    assert_eq!((guest.wait(), output.as_str()), (Some(0), "1\n"));
}
