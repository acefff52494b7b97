//! Trees, files and sockets of the host that a sandbox is given.

use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;

use carrel_control::spec::{Mount, Spec};
use carrel_tests::run;

use crate::world::{World, host};

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
