//! Disks: with and without a limit, kept from start to start, and gone when they are to be.

use carrel_control::provider::{How, Provider};
use carrel_control::spec::{Limits, Spec};
use carrel_tests::{WATCHDOG, run, run_within};

use crate::world::{World, again, host, place, script};

fn limited(bytes: u64) -> Spec {
    Spec { limits: Limits { disk: Some(bytes), ..Limits::default() }, ..host() }
}

#[test]
fn a_disk_without_a_limit_is_a_directory_that_ids_of_the_sandbox_are_stored_in() {
    run(async {
        use std::os::unix::fs::MetadataExt;
        let world = World::new();
        let first = world.started("demo", &host()).await;
        world.shell(&first, "exec-1", "echo kept > file").await;
        let stored = world.disk(&first).join("tree/upper/workspace/file");
        assert_eq!(stored.metadata().unwrap().uid(), 1000, "whatever range of ids the sandbox had");
        world.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = again(&first);
        world.local.start(&second, &host()).await.unwrap();
        assert_eq!(world.shell(&second, "exec-2", "cat file; stat -c %U file").await, "kept\nagbox\n");
        world.local.remove(&second).await.unwrap();
        assert!(!world.disk(&second).exists());
    });
}

#[test]
fn what_the_image_brings_is_on_no_disk_and_one_that_has_it_keeps_it() {
    run(async {
        let world = World::new();
        let new = world.started("newer", &host()).await;
        let written = || std::fs::read_dir(world.disk(&new).join("tree/upper")).unwrap().count();
        assert_eq!(written(), 0, "all of it lies below");
        assert_eq!(world.shell(&new, "exec-1", "id -un; touch ~/mine").await, "agbox\n");
        assert_eq!(written(), 1);
        // As a disk was before: with a root of its own.
        let old = place("older");
        let workspace = world.disk(&old).join("tree/root/workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        std::fs::write(workspace.join("file"), "kept").unwrap();
        world.local.start(&old, &host()).await.unwrap();
        assert_eq!(world.shell(&old, "exec-2", "cat file; id -un").await, "keptagbox\n");
        for place in [new, old] {
            world.local.remove(&place).await.unwrap();
        }
    });
}

#[test]
fn a_disk_with_a_limit_ends_where_that_does_and_another_goes_on() {
    run(async {
        let world = World::new();
        let fill = |id| script(id, "head -c 64m /dev/zero > large");
        let small = world.started("small", &limited(32 << 20)).await;
        assert!(matches!(world.ran(&small, &fill("exec-1")).await, How::Exited(code) if code != 0));
        assert!(world.wrote(&small, "exec-1").contains("No space"), "{}", world.wrote(&small, "exec-1"));
        let large = world.started("large", &host()).await;
        assert_eq!(world.ran(&large, &fill("exec-2")).await, How::Exited(0), "the control");
        for place in [small, large] {
            world.local.remove(&place).await.unwrap();
            assert!(world.traces(&place).is_empty());
        }
    });
}

#[test]
fn a_start_that_fails_leaves_nothing_and_a_disk_that_was_there() {
    run(async {
        let world = World::new();
        let wrong = Spec { image: "/no/such/image".to_owned(), ..host() };
        let mount =
            carrel_control::spec::Mount { source: "/no/such/tree".into(), target: "/x".to_owned(), writable: false };
        let unmountable = Spec { mounts: vec![mount], ..host() };
        for spec in [&wrong, &unmountable] {
            let place = place("demo");
            let failed = world.local.start(&place, spec).await.unwrap_err();
            assert!(failed.message.contains("/no/such"), "{failed}");
            assert!(world.traces(&place).is_empty(), "{:?}", world.traces(&place));
        }
        let first = world.started("demo", &host()).await;
        world.shell(&first, "exec-1", "echo kept > file").await;
        world.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = again(&first);
        assert!(world.local.start(&second, &unmountable).await.is_err());
        let third = again(&first);
        world.local.start(&third, &host()).await.unwrap();
        assert_eq!(world.shell(&third, "exec-2", "cat file").await, "kept\n");
    });
}

#[test]
fn a_disk_without_a_limit_is_one_at_a_time_and_gone_whole() {
    use carrel_sandbox::{DiskError, DiskKind, KeptDisk};
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = home.path().join("disk");
    let disk = KeptDisk::create_unlimited(&path).unwrap();
    assert_eq!(disk.kind(), DiskKind::Plain);
    assert!(disk.host_free().unwrap().bytes > 0);
    for other in [KeptDisk::open(&path), KeptDisk::create_unlimited(&path)] {
        assert!(matches!(other, Err(DiskError::InUse(_))));
    }
    assert!(matches!(KeptDisk::remove(&path), Err(DiskError::InUse(_))));
    drop(disk);
    assert!(matches!(KeptDisk::create_unlimited(&path), Err(DiskError::Exists(_))));
    assert!(matches!(KeptDisk::create(&path, 1 << 26), Err(DiskError::Exists(_))));
    assert_eq!(KeptDisk::open(&path).unwrap().kind(), DiskKind::Plain);
    std::fs::write(path.join("beside"), "").unwrap();
    KeptDisk::remove(&path).unwrap();
    assert!(!path.exists());
}

//= promises.control-plane.directories-nested-another-disk
/// Deeper than a thread has stack for, if each directory takes some of it.
#[test]
fn a_tree_of_any_depth_is_removed() {
    run_within(3 * WATCHDOG, async {
        let world = World::new();
        let deep = "python3 -c \"import os\nfor _ in range(20000): os.mkdir('d'); os.chdir('d')\"";
        for (name, spec) in [("plain", host()), ("sized", limited(256 << 20))] {
            let place = world.started(name, &spec).await;
            assert_eq!(world.ran(&place, &script("deep", deep)).await, How::Exited(0));
            world.local.remove(&place).await.unwrap();
            assert!(!world.disk(&place).exists(), "{name}");
        }
    });
}

#[test]
fn a_file_of_the_image_that_a_power_cut_emptied_is_put_in_again() {
    run(async {
        let world = World::new();
        let first = world.started("demo", &limited(32 << 20)).await;
        let emptied = script("exec-1", "echo mine > file; : > /etc/passwd; rm /etc/group; echo changed >> /etc/hosts");
        let emptied = carrel_control::provider::ExecStart {
            options: carrel_control::provider::ExecOptions { user: Some("0".to_owned()), ..emptied.options },
            ..emptied
        };
        assert_eq!(world.ran(&first, &emptied).await, How::Exited(0));
        world.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = again(&first);
        world.local.start(&second, &limited(32 << 20)).await.unwrap();
        let read = "id -un; cat file; tail -n1 /etc/hosts";
        assert_eq!(world.shell(&second, "exec-2", read).await, "agbox\nmine\nchanged\n");
        world.local.remove(&second).await.unwrap();
    });
}
