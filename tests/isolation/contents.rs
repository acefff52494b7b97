//! What a sandbox sees of its image and of the host.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use carrel_tests::{Guest, run};

use crate::{LaunchedSandbox, busybox_image, example};

//= promises.sandbox.host-image-host
//= promises.sandbox.network-interfaces
#[test]
fn the_host_image_shows_the_programs_of_the_host_and_none_of_its_other_files() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        assert!(sandbox.shell("ls /").await.contains("workspace"));
        let users = sandbox.shell("cut -d: -f1 /etc/passwd").await;
        assert_eq!(users.lines().collect::<Vec<_>>(), ["root", "agbox", "nobody"]);
        assert_eq!(sandbox.shell("ls -A /root /home/agbox /tmp /workspace | grep -v : | tr -d '\\n'").await, "");
        assert_eq!(
            sandbox.shell("cat /proc/sys/kernel/hostname; id -u; cat /proc/1/comm").await,
            "carrel\n0\ncarrel-agentd\n"
        );
        assert_eq!(
            sandbox.shell("touch /usr/x 2>/dev/null || echo refused; touch /root/x && echo kept").await,
            "refused\nkept\n"
        );
        // Files of root on the host belong to the overflow uid inside.
        assert_eq!(sandbox.shell("stat -c %u /usr/bin/env").await, "65534\n");
        assert_eq!(
            sandbox.shell("grep -c . /proc/net/dev").await,
            "3\n",
            "two header lines and the loopback interface"
        );
        assert_eq!(sandbox.shell("test -w /proc/sys/kernel/hostname && echo writable || echo fixed").await, "fixed\n");
    });
}

//= promises.sandbox.namespaces
//= promises.sandbox.ids-host-maps
#[test]
fn the_first_process_has_its_own_ids_namespaces_and_filter() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.init())).unwrap();
        let uid: u32 =
            status.lines().find(|l| l.starts_with("Uid:")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(uid >= 0x4000_0000, "{uid}");
        assert!(status.contains("Seccomp:\t2"), "{status}");
        for kind in ["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"] {
            let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
            assert_ne!(of("self"), of(&sandbox.init().to_string()), "{kind}");
        }
    });
}

//= promises.sandbox.image-directory
#[test]
fn an_image_directory_is_the_lower_layer_and_never_written() {
    run(async {
        let image = busybox_image();
        let home = image.path().join("home");
        std::fs::create_dir(&home).unwrap();
        chown(&home, Some(1000), Some(1000)).unwrap();
        let sandbox = LaunchedSandbox::start(image.path().to_str().unwrap()).await;
        assert_eq!(sandbox.shell("touch /new /home/new && stat -c '%u' /bin /home /new").await, "0\n1000\n0\n");
        assert!(!image.path().join("new").exists() && !home.join("new").exists());
        assert_eq!(std::fs::metadata(&home).unwrap().uid(), 1000);
    });
}

//= promises.sandbox.links-image-place-dev
#[test]
fn symlinks_in_an_image_do_not_lead_to_the_host() {
    run(async {
        let image = busybox_image();
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["dev", "proc", "tmp", "workspace", "sys"] {
            symlink(outside.path(), image.path().join(name)).unwrap();
        }
        symlink("../../../../../etc", image.path().join("etc")).unwrap();
        let host = || {
            ["hostname", "hosts", "resolv.conf", "passwd", "group"]
                .map(|name| std::fs::read(Path::new("/etc").join(name)).ok())
        };
        let before = host();
        let sandbox = LaunchedSandbox::start(image.path().to_str().unwrap()).await;
        assert_eq!(
            sandbox.shell("readlink /dev /proc /tmp /workspace; test -c /dev/null && cat /proc/1/comm").await,
            "carrel-agentd\n"
        );
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let reached = "cat /sys/secret /etc/machine-id /etc/debian_version 2>/dev/null; touch /sys/new /etc/new 2>/dev/null; true";
        assert_eq!(sandbox.shell(reached).await, "");
        let names = std::fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["secret"]);
        assert!(!Path::new("/etc/new").exists() && host() == before);
        // The control: for a process of the host, the links lead there.
        assert!(image.path().join("sys/secret").exists() && image.path().join("etc").is_symlink());
        assert!(image.path().join("dev").is_symlink());
    });
}

//= promises.sandbox.sandbox-whose-shim-killed
#[test]
fn a_first_process_does_not_outlive_its_launcher() {
    run(async {
        // A program that would never notice by itself.
        let mut launch = Command::new(example("launch"));
        launch.args(["host", "/bin/sleep", "1000"]);
        let (guest, channel) = Guest::start(launch);
        let asleep = || {
            let init = carrel_tests::children_of(guest.pid()).first().copied()?;
            let name = std::fs::read_to_string(format!("/proc/{init}/comm")).ok()?;
            (name == "sleep\n").then_some(init)
        };
        let init = loop {
            match asleep() {
                Some(init) => break init,
                None => tokio::task::yield_now().await,
            }
        };
        let launcher = rustix::process::Pid::from_raw(guest.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
        while std::fs::read_to_string(format!("/proc/{init}/comm")).is_ok_and(|name| name == "sleep\n") {
            tokio::task::yield_now().await;
        }
        drop((guest, channel));
    });
}

//= promises.sandbox.ids-host-maps
//= promises.sandbox.mounts-host-mount-namespace
//= promises.sandbox.processes-files-another-sandbox
#[test]
fn two_sandboxes_are_isolated_from_each_other_and_leave_nothing() {
    run(async {
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = mounts();
        let (one, two) = (LaunchedSandbox::start("host").await, LaunchedSandbox::start("host").await);
        one.shell("echo secret > /tmp/secret; sleep 1000 & echo started").await;
        assert_eq!(two.shell("ls -A /tmp; ls -d /proc/[0-9]* | wc -l").await.lines().next().unwrap().len(), 1);
        let id = |sandbox: &LaunchedSandbox| std::fs::metadata(format!("/proc/{}", sandbox.init())).unwrap().uid();
        let maps = [&one, &two].map(|s| std::fs::read_to_string(format!("/proc/{}/uid_map", s.init())).unwrap());
        assert_ne!(maps[0], maps[1], "{} {}", id(&one), id(&two));
        assert_eq!(mounts(), before, "nothing is mounted where the host sees it");
        let pids = [one.init(), two.init()];
        drop((one, two));
        for pid in pids {
            while std::path::Path::new(&format!("/proc/{pid}")).exists() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(mounts(), before);
    });
}
