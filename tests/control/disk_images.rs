//! Disks with a size limit, which are ext4 images: on a full disk of the host, and damaged.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_api::agbox::v1::{CreateSpec, MountSpec};
use carrel_tests::{DaemonHome, run};

use crate::client::{Client, host_spec};
use crate::full_disk::DaemonDisk;

/// The log line about the repair of the disk of a sandbox.
fn repair_line(home: &DaemonHome, sandbox: &str) -> Option<String> {
    let log = home.log();
    let field = format!(r#""sandbox":"{sandbox}""#);
    let found =
        log.lines().find(|line| line.contains("the file system of a disk was repaired") && line.contains(&field));
    found.map(str::to_owned)
}

/// The image of the only sandbox.
fn image(disks: &Path) -> PathBuf {
    let mut disks = std::fs::read_dir(disks).unwrap().map(|entry| entry.unwrap().path().join("disk.img"));
    disks.next().unwrap()
}

#[test]
fn writes_fail_when_the_disk_of_the_host_is_full_and_synced_files_survive_a_resume() {
    run(async {
        let home = DaemonHome::new();
        let (memory, mounted) = (home.path("memory").display().to_string(), home.home());
        std::fs::create_dir(&memory).unwrap();
        let mount = format!(
            "mount -t tmpfs -o size=160m tmpfs {memory}; truncate -s 128m {memory}/image
            /usr/sbin/mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0 {memory}/image
            mount -o loop,noinit_itable {memory}/image {}; exec \"$@\"",
            mounted.display()
        );
        let daemon = home.try_start(&mut home.command_after(&mount)).await.unwrap_or_else(|_| panic!("{}", home.log()));
        let mut client = Client::connect_to(&home.path("runtime/agbox/agboxd.sock")).await;
        let disk = DaemonDisk::of(&daemon, &mounted);
        let signal = home.path("signal");
        std::fs::create_dir(&signal).unwrap();
        std::fs::set_permissions(&signal, PermissionsExt::from_mode(0o777)).unwrap();
        let mount = MountSpec { source: signal.display().to_string(), target: "/signal".to_owned(), writable: true };
        client.create_and_wait("box1", CreateSpec { mounts: vec![mount], ..host_spec() }).await;
        let keep = "mkdir kept && for i in $(seq 200); do echo $i > kept/$i; done; \
            head -c 8m /dev/urandom > kept/large; sha256sum kept/* > sums && sync sums . kept kept/*";
        assert_eq!(client.run("box1", "keep", keep).await.exit_code, 0);
        let write = "while ! [ -e /signal/go ]; do sleep 0.01; done; mkdir more; \
            for i in $(seq 2000); do mkdir more/$i; done; sync more; echo directories $? >> /signal/result; \
            dd if=/dev/urandom of=more/data bs=1M count=40 conv=fsync; echo data $? >> /signal/result; \
            echo end >> /signal/result";
        client.exec("box1", "write", write).await.unwrap();
        disk.fill();
        std::fs::write(signal.join("go"), "").unwrap();
        let result = loop {
            let result = std::fs::read_to_string(signal.join("result")).unwrap_or_default();
            if result.ends_with("end\n") {
                break result;
            }
            disk.fill();
            tokio::task::yield_now().await;
        };
        assert!(result.contains("data ") && !result.contains("data 0\n"), "{result}");
        // The sandbox can be stopped while the disk is full.
        disk.fill();
        client.stop_and_wait("box1").await;
        disk.free();
        client.resume_and_wait("box1").await;
        let exec = client.run("box1", "check", "sha256sum --quiet -c sums && touch kept/new && rm -rf more").await;
        assert_eq!(exec.exit_code, 0, "{}", home.log());
        client.delete_and_wait("box1").await;
        daemon.stop().await;
    });
}

#[test]
fn a_damaged_disk_is_repaired_at_resume_and_the_log_names_the_sandbox() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("box1", host_spec()).await;
        assert_eq!(client.run("box1", "keep", "echo kept > file && sync file").await.exit_code, 0);
        client.stop_and_wait("box1").await;
        let image = image(&home.home().join("disks"));
        let lost = lose_directory(&image, &["/upper/var", "/root/var"]);
        assert_eq!(repair_line(&home, "box1"), None);
        client.resume_and_wait("box1").await;
        let line = repair_line(&home, "box1").unwrap_or_else(|| panic!("{lost}: {}", home.log()));
        assert!(line.contains(r#""level":"WARN""#) && line.contains("Directory inode"), "{line}");
        assert_eq!(client.run("box1", "check", "grep kept file && mkdir -p /var/tmp/new").await.exit_code, 0);
        client.delete_and_wait("box1").await;
        daemon.stop().await;
    });
}

#[test]
fn a_disk_has_the_files_of_its_image_before_the_sandbox_is_ready() {
    run(async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("box1", host_spec()).await;
        // As after a power cut, or when the host has no space for what is written later.
        let copy = home.path("copy");
        std::fs::copy(image(&home.home().join("disks")), &copy).unwrap();
        let checked = Command::new("/usr/sbin/e2fsck").args(["-f", "-y"]).arg(&copy).output().unwrap();
        let read = |name: &str| {
            let read = Command::new("/usr/sbin/debugfs").args(["-R", &format!("cat {name}")]).arg(&copy).output();
            String::from_utf8(read.unwrap().stdout).unwrap()
        };
        let passwd = ["/upper/etc/passwd", "/root/etc/passwd"].map(read).concat();
        assert!(passwd.contains("agbox:x:1000:"), "{passwd:?}: {}", String::from_utf8_lossy(&checked.stdout));
        client.delete_and_wait("box1").await;
        daemon.stop().await;
    });
}

/// Zeroes the blocks of the first of these directories that exists, as when the host had no space for them. Waits until
/// no process uses the image.
fn lose_directory(image: &Path, names: &[&str]) -> String {
    let file = File::options().read(true).write(true).open(image).unwrap();
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        std::thread::yield_now();
    }
    for name in names {
        let listed = Command::new("/usr/sbin/debugfs").args(["-R", &format!("blocks {name}")]).arg(image).output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        let blocks: Vec<u64> = listed.split_whitespace().map_while(|block| block.parse().ok()).collect();
        for block in &blocks {
            file.write_all_at(&[0; 4096], block * 4096).unwrap();
        }
        if !blocks.is_empty() {
            file.sync_all().unwrap();
            return format!("{name} in {blocks:?}");
        }
    }
    panic!("there is none of {names:?}");
}
