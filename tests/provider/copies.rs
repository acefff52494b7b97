//! Copies: files of the host that are copied into a new sandbox before it is ready.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use carrel_control::provider::Provider;
use carrel_control::spec::{CopySpec, Spec};
use carrel_tests::run;
use tempfile::TempDir;

use crate::harness::{ProviderHarness, host_spec, new_instance, next_incarnation};

fn put(top: &Path, path: &str, content: &[u8]) -> PathBuf {
    let path = top.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

fn source_dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn spec_with_copies(copies: &[(&Path, &str, &[&str])]) -> Spec {
    let copy = |(source, target, exclude): &(&Path, &str, &[&str])| CopySpec {
        source: (*source).to_owned(),
        target: (*target).to_owned(),
        exclude_patterns: exclude.iter().map(|pattern| (*pattern).to_owned()).collect(),
    };
    Spec { copies: copies.iter().map(copy).collect(), ..host_spec() }
}

#[test]
fn the_contents_of_a_directory_are_copied_to_the_target_and_belong_to_the_user() {
    run(async {
        let (harness, tree) = (ProviderHarness::new(), source_dir());
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
        let spec = spec_with_copies(&[
            (tree.path(), "/workspace/project", &["left", "*.log"]),
            (&single, "/opt/new/name", &[]),
            (&single, "/tmp", &[]),
        ]);
        let instance = harness.start("demo", &spec).await;
        let look = "cd project; find . | sort; ./bin/run; cat deep/link; stat -c '%U:%G %a' . deep/er/file empty bin/run deep/link;
                    stat -c %s large; cat /opt/new/name /tmp/a.log; stat -c %U /opt/new /opt/new/name; readlink deep/link";
        let expected = ".\n./bin\n./bin/run\n./deep\n./deep/er\n./deep/er/file\n./deep/link\n./empty\n./large\nran\ncontent\
                        agbox:agbox 700\nagbox:agbox 644\nagbox:agbox 750\nagbox:agbox 755\nagbox:agbox 777\n3145728\n\
                        singlesingleagbox\nagbox\ner/file\n";
        assert_eq!(harness.shell(&instance, "look", look).await, expected);
    });
}

#[test]
fn a_complete_copy_is_not_repeated() {
    run(async {
        let (harness, tree) = (ProviderHarness::new(), source_dir());
        put(tree.path(), "file", b"first\n");
        let spec = spec_with_copies(&[(tree.path(), "/workspace", &[])]);
        let first = harness.start("demo", &spec).await;
        harness.shell(&first, "exec-1", "echo changed > file").await;
        put(tree.path(), "file", b"second\n");
        // Neither a repeated start nor a new incarnation copies again.
        harness.local.start(&first, &spec).await.unwrap();
        assert_eq!(harness.shell(&first, "exec-2", "cat file").await, "changed\n");
        harness.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = next_incarnation(&first);
        harness.local.start(&second, &spec).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-3", "cat file").await, "changed\n");
        harness.local.remove(&second).await.unwrap();
        assert!(harness.traces(&second).is_empty());
    });
}

#[test]
fn an_incomplete_copy_is_repeated() {
    run(async {
        let (harness, tree) = (ProviderHarness::new(), source_dir());
        put(tree.path(), "d/file", b"whole\n");
        symlink("d/file", tree.path().join("link")).unwrap();
        let spec = spec_with_copies(&[(tree.path(), "/workspace", &[])]);
        let instance = harness.start("demo", &spec).await;
        harness.shell(&instance, "exec-1", "echo half > d/file; ln -sf nowhere link").await;
        // As if the daemon had died before it wrote the marker of a complete copy.
        std::fs::remove_file(harness.disk(&instance).join("copied")).unwrap();
        harness.local.start(&instance, &spec).await.unwrap();
        assert_eq!(harness.shell(&instance, "exec-2", "cat link").await, "whole\n");
    });
}

#[test]
fn a_link_out_of_the_copied_tree_fails_the_start_and_leaves_nothing() {
    run(async {
        let (harness, tree) = (ProviderHarness::new(), source_dir());
        put(tree.path(), "file", b"here\n");
        symlink("/etc/passwd", tree.path().join("out")).unwrap();
        let instance = new_instance("demo");
        let spec = spec_with_copies(&[(tree.path(), "/workspace", &[])]);
        let failed = harness.local.start(&instance, &spec).await.unwrap_err();
        assert!(failed.message.contains("points outside the copied tree, to /etc/passwd"), "{failed}");
        assert!(harness.traces(&instance).is_empty());
        // Files that git ignores are not copied, nor are excluded ones.
        put(tree.path(), ".gitignore", b"/out\n");
        harness.local.start(&instance, &spec).await.unwrap();
        assert_eq!(harness.shell(&instance, "exec-1", "ls; cat file").await, "file\nhere\n");
    });
}
