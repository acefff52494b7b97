//! What a sandbox sees of procfs.

use std::path::Path;

use carrel_tests::run;

use crate::LaunchedSandbox;

const FILES: [&str; 24] = [
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "locks",
    "modules",
    "partitions",
    "slabinfo",
    "softirqs",
    "swaps",
    "timer_list",
    "vmallocinfo",
    "zoneinfo",
];

#[test]
fn files_with_information_about_the_host_are_empty() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let there: Vec<_> = FILES.into_iter().filter(|name| Path::new("/proc").join(name).exists()).collect();
        assert!(there.len() > 12 && there.contains(&"interrupts") && there.contains(&"cmdline"), "{there:?}");
        for name in &there {
            let path = format!("/proc/{name}");
            // The control: the host has it as a regular file. (Some are empty at times.)
            let kind = std::fs::metadata(&path).unwrap().file_type();
            assert!(kind.is_file(), "{name} proves nothing");
        }
        let interrupts = std::fs::read_to_string("/proc/interrupts").unwrap();
        assert!(!interrupts.is_empty() && !std::fs::read("/proc/cmdline").unwrap().is_empty(), "the control");
        let sizes = sandbox.shell(&format!("cd /proc; for f in {}; do cat $f | wc -c; done", there.join(" "))).await;
        assert_eq!(sizes, "0\n".repeat(there.len()), "{there:?}");
        // Files that programs need are there.
        let needed = ["cpuinfo", "meminfo", "stat", "loadavg", "uptime", "vmstat", "filesystems", "devices", "version"];
        let missing = format!("cd /proc; for f in {}; do grep -q . $f || echo $f; done", needed.join(" "));
        assert_eq!(sandbox.shell(&missing).await, "");
    });
}

/// Four thousand pressure triggers kept a processor of the host busy, and a sandbox from exiting.
#[test]
fn a_sandbox_cannot_create_pressure_triggers() {
    run(async {
        // Each trigger is a file that is open for writing.
        let watch = "import os
made, error = 0, 0
for name in 'cpu', 'memory', 'io':
    for _ in range(10):
        try:
            trigger = os.open('/proc/pressure/' + name, os.O_RDWR | os.O_NONBLOCK)
            os.write(trigger, b'some 500000 2000000 ')
            made += 1
        except OSError as refused: error = refused.errno
print(made, error)";
        if Path::new("/proc/pressure/cpu").exists() {
            let control = std::process::Command::new("python3").args(["-c", watch]).output().unwrap();
            assert_eq!(String::from_utf8(control.stdout).unwrap(), "30 0\n", "the control");
        }
        let sandbox = LaunchedSandbox::start("host").await;
        for user in ["root", "agbox"] {
            let output = sandbox.shell_as(user, &format!("python3 -c \"{watch}\"")).await;
            assert_eq!(output, format!("0 {}\n", libc::ENOENT), "{user}");
        }
        assert_eq!(
            sandbox.shell("ls -A /proc/pressure /proc/acpi /proc/driver 2>/dev/null | grep -v : | wc -w").await,
            "0\n"
        );
    });
}

#[test]
fn kernel_settings_cannot_be_written() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let open = "find /proc/sys /proc/fs /proc/irq /proc/bus -type f 2>/dev/null | python3 -c '
import os, sys
count = 0
for path in sys.stdin.read().split(chr(10))[:-1]:
    count += 1
    try: os.close(os.open(path, os.O_WRONLY)); print(path)
    except OSError: pass
print(count > 100)'";
        assert_eq!(sandbox.shell(open).await, "True\n");
        // The control: outside, such a file can be written.
        assert!(std::fs::File::options().write(true).open("/proc/sys/kernel/core_pattern").is_ok());
    });
}
