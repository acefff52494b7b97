//! Trees, files and sockets of the host that a sandbox is given.

use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;

use carrel_control::provider::{How, Provider};
use carrel_control::spec::{Mount, Spec};
use carrel_tests::run;

use crate::world::{World, again, host, script};

#[test]
fn directories_files_and_sockets_are_the_users_inside() {
    run(async {
        let world = World::new();
        let given = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| given.path().join(name);
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
        let place = world.started("demo", &Spec { mounts, ..host() }).await;
        let look =
            "cat ~/.config/tool/file ~/.single; stat -c %U ~/.config ~/.config/tool ~/.config/tool/file ~/.single";
        assert_eq!(world.shell(&place, "look", look).await, "content\nsingle\nagbox\nagbox\nagbox\nagbox\n");
        world
            .shell(&place, "write", "echo new > ~/.config/tool/new; mkdir ~/.config/other; ! echo x > ~/.single")
            .await;
        let written = std::fs::metadata(path("tree/new")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&written), 4242, "what is written belongs to the owner");

        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(b"pong\n").unwrap();
            asked
        });
        let ask = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/ssh-agent'); s.sendall(b'ping'); \
                   print(s.recv(5).decode(), end='')";
        assert_eq!(world.shell(&place, "socket", &format!("python3 -c \"{ask}\"")).await, "pong\n");
        assert_eq!(&answering.join().unwrap(), b"ping");
    });
}

#[test]
fn what_the_host_replaces_in_a_read_only_tree_is_seen_by_the_next_exec() {
    run(async {
        let world = World::new();
        let given = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &str| given.path().join(name);
        std::fs::create_dir(path("below")).unwrap();
        for name in ["file", "below/file", "below/gone"] {
            std::fs::write(path(name), "old\n").unwrap();
        }
        let mounts = vec![Mount { source: given.path().into(), target: "/given".to_owned(), writable: false }];
        let spec = Spec { mounts, ..host() };
        let place = world.started("demo", &spec).await;
        let look = "cd /given; cat file below/file; ls below/gone new 2>/dev/null; true";
        assert_eq!(world.shell(&place, "before", look).await, "old\nold\nbelow/gone\n");
        for name in ["file", "below/file"] {
            std::fs::write(path("temporary"), "new\n").unwrap();
            std::fs::rename(path("temporary"), path(name)).unwrap();
        }
        std::fs::remove_file(path("below/gone")).unwrap();
        std::fs::write(path("new"), "").unwrap();
        assert_eq!(world.ran_in(&place, &spec, &script("after", look)).await, How::Exited(0));
        assert_eq!(world.wrote(&place, "after"), "new\nnew\nnew\n");
    });
}

//= promises.control-plane.starts-sandbox-read-mounts
#[test]
fn a_sandbox_with_a_read_only_tree_is_stopped_and_started_as_often_as_one_likes() {
    run(async {
        let world = World::new();
        let given = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(given.path().join("file"), "content\n").unwrap();
        for disk in [None, Some(32 << 20)] {
            let mounts = ["/one", "/two"].map(|target| Mount {
                source: given.path().into(),
                target: target.to_owned(),
                writable: false,
            });
            let limits = carrel_control::spec::Limits { disk, ..Default::default() };
            let spec = Spec { mounts: mounts.to_vec(), limits, ..host() };
            let mut place = world.started(if disk.is_none() { "demo" } else { "sized" }, &spec).await;
            for start in 0..3 {
                let look = format!("look-{start}");
                assert_eq!(world.shell(&place, &look, "cat /one/file /two/file").await, "content\ncontent\n");
                world.local.stop(&place, std::time::Duration::ZERO).await.unwrap();
                place = again(&place);
                world.local.start(&place, &spec).await.unwrap();
            }
            world.local.remove(&place).await.unwrap();
        }
    });
}
