//! Mounts: directories, files and sockets of the host in a sandbox.

use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;

use carrel_control::provider::{How, Provider};
use carrel_control::spec::{Mount, Spec};
use carrel_tests::run;

use crate::harness::{ProviderHarness, host_spec, next_incarnation, script};

#[test]
fn mounted_directories_files_and_sockets_belong_to_the_user_inside() {
    run(async {
        let harness = ProviderHarness::new();
        let source = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| source.path().join(name);
        std::fs::create_dir(path("tree")).unwrap();
        std::fs::write(path("tree/file"), "content\n").unwrap();
        std::fs::write(path("single"), "single\n").unwrap();
        for name in ["tree", "tree/file", "single"] {
            chown(path(name), Some(4242), Some(4242)).unwrap();
        }
        let listener = UnixListener::bind(path("socket")).unwrap();
        chown(path("socket"), Some(4242), Some(4242)).unwrap();
        let mount =
            |name: &str, target: &str, writable| Mount { source: path(name), target: target.to_owned(), writable };
        let mounts = vec![
            mount("tree", "/home/agbox/.config/tool", true),
            mount("single", "/home/agbox/.single", false),
            mount("socket", "/ssh-agent", true),
        ];
        let instance = harness.start("demo", &Spec { mounts, ..host_spec() }).await;
        let look =
            "cat ~/.config/tool/file ~/.single; stat -c %U ~/.config ~/.config/tool ~/.config/tool/file ~/.single";
        assert_eq!(harness.shell(&instance, "look", look).await, "content\nsingle\nagbox\nagbox\nagbox\nagbox\n");
        harness
            .shell(&instance, "write", "echo new > ~/.config/tool/new; mkdir ~/.config/other; ! echo x > ~/.single")
            .await;
        let written = std::fs::metadata(path("tree/new")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&written), 4242, "a new file belongs to the owner on the host");

        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"pong\n").unwrap();
            request
        });
        let client = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/ssh-agent'); s.sendall(b'ping'); \
                   print(s.recv(5).decode(), end='')";
        assert_eq!(harness.shell(&instance, "socket", &format!("python3 -c \"{client}\"")).await, "pong\n");
        assert_eq!(&server.join().unwrap(), b"ping");
    });
}

#[test]
fn the_next_exec_reads_what_the_host_replaced_in_a_read_only_mount() {
    run(async {
        let harness = ProviderHarness::new();
        let source = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| source.path().join(name);
        std::fs::create_dir(path("below")).unwrap();
        for name in ["file", "below/file", "below/gone"] {
            std::fs::write(path(name), "old\n").unwrap();
        }
        let mounts = vec![Mount { source: source.path().into(), target: "/given".to_owned(), writable: false }];
        let spec = Spec { mounts, ..host_spec() };
        let instance = harness.start("demo", &spec).await;
        let look = "cd /given; cat file below/file; ls below/gone new 2>/dev/null; true";
        assert_eq!(harness.shell(&instance, "before", look).await, "old\nold\nbelow/gone\n");
        for name in ["file", "below/file"] {
            std::fs::write(path("temporary"), "new\n").unwrap();
            std::fs::rename(path("temporary"), path(name)).unwrap();
        }
        std::fs::remove_file(path("below/gone")).unwrap();
        std::fs::write(path("new"), "").unwrap();
        assert_eq!(harness.run_exec_with_spec(&instance, &spec, &script("after", look)).await, How::Exited(0));
        assert_eq!(harness.exec_output(&instance, "after"), "new\nnew\nnew\n");
    });
}

//= promises.control-plane.starts-sandbox-read-mounts
#[test]
fn a_sandbox_with_read_only_mounts_can_be_stopped_and_started_repeatedly() {
    run(async {
        let harness = ProviderHarness::new();
        let source = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(source.path().join("file"), "content\n").unwrap();
        for disk in [None, Some(32 << 20)] {
            let mounts = ["/one", "/two"].map(|target| Mount {
                source: source.path().into(),
                target: target.to_owned(),
                writable: false,
            });
            let limits = carrel_control::spec::Limits { disk, ..Default::default() };
            let spec = Spec { mounts: mounts.to_vec(), limits, ..host_spec() };
            let mut instance = harness.start(if disk.is_none() { "demo" } else { "sized" }, &spec).await;
            for start in 0..3 {
                let look = format!("look-{start}");
                assert_eq!(harness.shell(&instance, &look, "cat /one/file /two/file").await, "content\ncontent\n");
                harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
                instance = next_incarnation(&instance);
                harness.local.start(&instance, &spec).await.unwrap();
            }
            harness.local.remove(&instance).await.unwrap();
        }
    });
}
