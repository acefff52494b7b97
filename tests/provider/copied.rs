//! What is copied into a sandbox before anybody uses it.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use carrel_control::provider::Provider;
use carrel_control::spec::{Copy, Spec};
use carrel_tests::run;
use tempfile::TempDir;

use crate::world::{World, again, host, place};

fn put(top: &Path, path: &str, content: &[u8]) -> PathBuf {
    let path = top.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

fn source() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn copying(copies: &[(&Path, &str, &[&str])]) -> Spec {
    let copy = |(source, target, exclude): &(&Path, &str, &[&str])| Copy {
        source: (*source).to_owned(),
        target: (*target).to_owned(),
        exclude_patterns: exclude.iter().map(|pattern| (*pattern).to_owned()).collect(),
    };
    Spec { copies: copies.iter().map(copy).collect(), ..host() }
}

#[test]
fn the_contents_of_a_directory_land_in_the_target_and_are_the_users() {
    run(async {
        let (world, tree) = (World::new(), source());
        let run = put(tree.path(), "bin/run", b"#!/bin/sh\necho ran\n");
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(tree.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        put(tree.path(), "large", &vec![b'x'; 3 << 20]);
        put(tree.path(), "deep/er/file", b"content");
        put(tree.path(), "left/out/file", b"");
        put(tree.path(), "a.log", b"");
        symlink("er/file", tree.path().join("deep/link")).unwrap();
        chown(tree.path().join("deep/er/file"), Some(4242), Some(4242)).unwrap();
        std::fs::create_dir(tree.path().join("empty")).unwrap();
        std::fs::set_permissions(tree.path().join("empty"), std::fs::Permissions::from_mode(0o750)).unwrap();
        let single = put(tree.path(), "a.log", b"single");
        let spec = copying(&[
            (tree.path(), "/workspace/project", &["left", "*.log"]),
            (&single, "/opt/new/name", &[]),
            (&single, "/tmp", &[]),
        ]);
        let place = world.started("demo", &spec).await;
        let look = "cd project; find . | sort; ./bin/run; cat deep/link; stat -c '%U:%G %a' . deep/er/file empty bin/run deep/link;
                    stat -c %s large; cat /opt/new/name /tmp/a.log; stat -c %U /opt/new /opt/new/name; readlink deep/link";
        let expected = ".\n./bin\n./bin/run\n./deep\n./deep/er\n./deep/er/file\n./deep/link\n./empty\n./large\nran\ncontent\
                        agbox:agbox 700\nagbox:agbox 644\nagbox:agbox 750\nagbox:agbox 755\nagbox:agbox 777\n3145728\n\
                        singlesingleagbox\nagbox\ner/file\n";
        assert_eq!(world.shell(&place, "look", look).await, expected);
    });
}

#[test]
fn what_was_copied_once_is_not_copied_again() {
    run(async {
        let (world, tree) = (World::new(), source());
        put(tree.path(), "file", b"first\n");
        let spec = copying(&[(tree.path(), "/workspace", &[])]);
        let first = world.started("demo", &spec).await;
        world.shell(&first, "exec-1", "echo changed > file").await;
        put(tree.path(), "file", b"second\n");
        // Asked again, and started again: it is the sandbox's own by now.
        world.local.start(&first, &spec).await.unwrap();
        assert_eq!(world.shell(&first, "exec-2", "cat file").await, "changed\n");
        world.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = again(&first);
        world.local.start(&second, &spec).await.unwrap();
        assert_eq!(world.shell(&second, "exec-3", "cat file").await, "changed\n");
        world.local.remove(&second).await.unwrap();
        assert!(world.traces(&second).is_empty());
    });
}

#[test]
fn a_copy_that_was_not_finished_is_made_again() {
    run(async {
        let (world, tree) = (World::new(), source());
        put(tree.path(), "d/file", b"whole\n");
        symlink("d/file", tree.path().join("link")).unwrap();
        let spec = copying(&[(tree.path(), "/workspace", &[])]);
        let place = world.started("demo", &spec).await;
        world.shell(&place, "exec-1", "echo half > d/file; ln -sf nowhere link").await;
        // As if the daemon had died before it could write down that it is done.
        std::fs::remove_file(world.disk(&place).join("copied")).unwrap();
        world.local.start(&place, &spec).await.unwrap();
        assert_eq!(world.shell(&place, "exec-2", "cat link").await, "whole\n");
    });
}

#[test]
fn a_link_out_of_the_tree_fails_the_start_and_leaves_nothing() {
    run(async {
        let (world, tree) = (World::new(), source());
        put(tree.path(), "file", b"here\n");
        symlink("/etc/passwd", tree.path().join("out")).unwrap();
        let place = place("demo");
        let spec = copying(&[(tree.path(), "/workspace", &[])]);
        let failed = world.local.start(&place, &spec).await.unwrap_err();
        assert!(failed.message.contains("points outside the copied tree, to /etc/passwd"), "{failed}");
        assert!(world.traces(&place).is_empty());
        // What the tree does not count is left out; what is excluded is too.
        put(tree.path(), ".gitignore", b"/out\n");
        world.local.start(&place, &spec).await.unwrap();
        assert_eq!(world.shell(&place, "exec-1", "ls; cat file").await, "file\nhere\n");
    });
}
