//! Persistent disks: their content, their size, and what is left when their sandbox is killed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_tests::{Guest, run};

use crate::{LaunchedSandbox, busybox_image};

const MEBIBYTE: u64 = 1 << 20;

/// Variables that make the launcher use a persistent disk.
fn disk_env(directory: &Path, bytes: u64) -> [(&'static str, String); 2] {
    [("CARREL_KEPT", directory.display().to_string()), ("CARREL_DISK", bytes.to_string())]
}

/// The loop devices whose file is below a directory.
fn loop_devices(directory: &Path) -> Vec<PathBuf> {
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let on = |device: &PathBuf| {
        std::fs::read_to_string(device.join("loop/backing_file"))
            .is_ok_and(|file| Path::new(file.trim()).starts_with(directory))
    };
    devices.filter(on).collect()
}

async fn until_free(directory: &Path) {
    while !loop_devices(directory).is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Writes in one sandbox, and reads in a second.
async fn check_persistence(image: &str, directory: &Path, bytes: u64) {
    let first = LaunchedSandbox::with_env(image, &disk_env(directory, bytes)).await;
    first
        .shell("echo mine > /etc/passwd; mkdir -p /data; echo data > /data/file; chmod 700 /data; rm -rf /workspace")
        .await;
    drop(first);
    let second = LaunchedSandbox::with_env(image, &disk_env(directory, bytes)).await;
    assert_eq!(
        second.shell("cat /etc/passwd /data/file; stat -c '%u %a' /data /data/file").await,
        "mine\ndata\n0 700\n0 644\n"
    );
    assert_eq!(second.shell("ls -A /workspace").await, "");
    drop(second);
}

/// Fills a disk, and checks its size and the error.
async fn check_full(directory: &Path, error: &str) {
    let sandbox = LaunchedSandbox::with_env("host", &disk_env(directory, 32 * MEBIBYTE)).await;
    assert_eq!(sandbox.shell("head -c 8m /dev/zero > /tmp/small && echo fits").await, "fits\n", "the control");
    let refused = sandbox.shell_as("root", "head -c 64m /dev/zero > /tmp/large").await;
    assert!(refused.contains(error), "{refused}");
    let size: u64 = sandbox.shell("stat -c %s /tmp/large").await.trim().parse().unwrap();
    assert!((24 * MEBIBYTE..28 * MEBIBYTE).contains(&size), "{size}");
}

#[test]
fn a_disk_holds_its_size_and_not_twice_as_much() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = busybox_image();
        for mebibytes in [1, 10, 200] {
            let env = disk_env(&home.path().join(mebibytes.to_string()), mebibytes * MEBIBYTE);
            let sandbox = LaunchedSandbox::with_env(image.path().to_str().unwrap(), &env).await;
            let fits =
                format!("busybox head -c {mebibytes}m /dev/zero > /all && busybox sync && echo fits; busybox rm /all");
            assert_eq!(sandbox.shell(&fits).await, "fits\n", "{mebibytes} MiB");
            let twice = format!("busybox head -c {}m /dev/zero > /all || echo full", 2 * mebibytes);
            assert!(sandbox.shell(&twice).await.contains("full"), "{mebibytes} MiB");
        }
        until_free(home.path()).await;
    });
}

//= promises.sandbox.persistent-disk
#[test]
fn files_on_a_persistent_disk_are_there_in_the_next_sandbox() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        check_persistence("host", &home.path().join("host"), 64 * MEBIBYTE).await;
        let image = busybox_image();
        std::fs::create_dir(image.path().join("etc")).unwrap();
        for name in ["mkdir", "chmod", "rm"] {
            std::os::unix::fs::symlink("busybox", image.path().join("bin").join(name)).unwrap();
        }
        check_persistence(image.path().to_str().unwrap(), &home.path().join("layers"), 64 * MEBIBYTE).await;
        assert!(!image.path().join("data").exists());
        until_free(home.path()).await;
    });
}

//= promises.sandbox.persistent-disk
#[test]
fn changes_to_a_project_are_there_in_the_next_sandbox_and_not_on_the_host() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let project = home.path().join("project");
        std::fs::create_dir(&project).unwrap();
        std::os::unix::fs::chown(&project, Some(4242), Some(4242)).unwrap();
        crate::mounts::put(&project.join("file"), "before\n", 4242, 0o644);
        let mut env = disk_env(&home.path().join("disk"), 64 * MEBIBYTE).to_vec();
        env.push(("CARREL_PROJECT", format!("{}:/workspace:1000", project.display())));
        let first = LaunchedSandbox::with_env("host", &env).await;
        assert_eq!(
            first
                .shell_as("agbox", "cd /workspace; echo after > file; mkdir d; echo new > d/new; rm -r d; mkdir d")
                .await,
            ""
        );
        drop(first);
        let second = LaunchedSandbox::with_env("host", &env).await;
        assert_eq!(
            second.shell_as("agbox", "cd /workspace; cat file; ls d; stat -c %u . file d").await,
            "after\n1000\n1000\n1000\n"
        );
        assert_eq!(std::fs::read_to_string(project.join("file")).unwrap(), "before\n");
        assert!(!project.join("d").exists());
        drop(second);
        until_free(home.path()).await;
    });
}

//= promises.sandbox.persistent-disk
#[test]
fn a_disk_image_is_full_at_its_size() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        check_full(&home.path().join("disk"), "No space").await;
        until_free(home.path()).await;
    });
}

//= promises.sandbox.loop-devices-persistent-disk
#[test]
fn a_loop_device_does_not_outlive_its_sandbox() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let sandbox = LaunchedSandbox::with_env("host", &disk_env(&home.path().join("disk"), 64 * MEBIBYTE)).await;
        assert_eq!(loop_devices(home.path()).len(), 1);
        // Kills its launcher with SIGKILL.
        drop(sandbox);
        until_free(home.path()).await;
    });
}

//= promises.sandbox.persistent-disk
#[test]
fn a_disk_is_used_by_one_sandbox_at_a_time() {
    run(async {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = home.path().join("disk");
        let sandbox = LaunchedSandbox::with_env("host", &disk_env(&disk, 64 * MEBIBYTE)).await;
        let mut second = Command::new(crate::example("launch"));
        second.args(["host", "/bin/true"]).envs(disk_env(&disk, 64 * MEBIBYTE)).stdin(std::process::Stdio::null());
        let refused = second.output().unwrap();
        assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"), "{refused:?}");
        assert_eq!(sandbox.shell("echo still > /root/x; cat /root/x").await, "still\n");
        drop(sandbox);
        until_free(home.path()).await;
        assert!(second.status().unwrap().success(), "the control");
        until_free(home.path()).await;
    });
}

/// Runs a script in a file system with project quotas, in its own mount namespace; `$0` is the launcher.
fn with_quotas(script: &str) -> String {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = home.path().join("quotas.img");
    std::fs::File::create(&image).unwrap().set_len(256 * MEBIBYTE).unwrap();
    let mut mkfs = Command::new("/usr/sbin/mkfs.ext4");
    mkfs.args(["-q", "-O", "quota,project", "-E", "quotatype=prjquota"]).arg(&image);
    assert!(mkfs.status().unwrap().success());
    std::fs::create_dir(home.path().join("mnt")).unwrap();
    let script = format!("set -e; mount -o loop,prjquota quotas.img mnt; cd mnt; mkdir free\n{script}");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(crate::example("launch"));
    shell.current_dir(home.path());
    let (mut guest, mut channel) = Guest::start(shell);
    let mut text = String::new();
    channel.read_to_string(&mut text).unwrap();
    assert_eq!(guest.wait(), Some(0), "{text}");
    run(until_free(home.path()));
    text
}

/// Needs a kernel with the quotas of ext4 (`CONFIG_QFMT_V2`), which is not every kernel.
#[test]
#[ignore = "needs a kernel with CONFIG_QFMT_V2"]
fn a_project_quota_limits_the_size_of_a_disk() {
    let script = "run() { CARREL_KEPT=$PWD/disk CARREL_DISK=33554432 \"$0\" host /bin/sh -c \"$1\"; }
        run 'echo x > /root/kept; head -c 8m /dev/zero > /tmp/small && echo fits; head -c 64m /dev/zero > /tmp/large
            stat -c %s /tmp/large'
        run 'cat /root/kept; ls /tmp'
        head -c 100m /dev/zero > free/control && echo control
        stat -c '%u:%g %a' disk disk/files disk/files/root/root/kept; ls disk";
    let text = with_quotas(script);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"fits"), "{text}");
    let size: u64 = lines[1].parse().unwrap();
    assert!(size > 0 && size <= 24 * MEBIBYTE, "{size}");
    assert_eq!(lines[2..], ["x", "large", "small", "control", "0:0 700", "0:0 755", "0:0 644", "files"], "{text}");
}

/// Needs a kernel with the quotas of ext4 (`CONFIG_QFMT_V2`), which is not every kernel.
#[test]
#[ignore = "needs a kernel with CONFIG_QFMT_V2"]
fn a_project_quota_limits_the_size_and_inodes_of_a_default_disk() {
    let script = "run() { CARREL_KEPT=$PWD/disk CARREL_DISK=33554432 CARREL_INODES=500 \"$0\" host /bin/sh -c \"$1\"; }
        run 'head -c 8m /dev/zero > /tmp/small && echo fits; head -c 64m /dev/zero > /tmp/large || echo full; rm /tmp/large
            mkdir /tmp/d; cd /tmp/d; n=0; while [ $n -lt 600 ] && true > $n; do n=$((n+1)); done; [ $n -lt 500 ] && echo inodes'
        head -c 100m /dev/zero > free/control && echo control; ls disk";
    let text = with_quotas(script);
    assert_eq!(text.lines().collect::<Vec<_>>(), ["fits", "full", "inodes", "control", "files"], "{text}");
}
