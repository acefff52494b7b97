//! Disks with and without a limit: kept between incarnations, and removed with the sandbox.

use carrel_control::provider::{How, Provider};
use carrel_control::spec::{Limits, Spec};
use carrel_sandbox::{DiskError, DiskKind, PersistentDisk};
use carrel_tests::{WATCHDOG, run, run_within};

use crate::harness::{ProviderHarness, host_spec, new_instance, next_incarnation, script};

fn limited(bytes: u64) -> Spec {
    Spec { limits: Limits { disk: Some(bytes), ..Limits::default() }, ..host_spec() }
}

#[test]
fn a_disk_without_a_limit_is_a_directory_that_stores_the_user_ids_of_the_sandbox() {
    run(async {
        use std::os::unix::fs::MetadataExt;
        let harness = ProviderHarness::new();
        let first = harness.start("demo", &host_spec()).await;
        harness.shell(&first, "exec-1", "echo kept > file").await;
        let stored = harness.disk(&first).join("tree/upper/workspace/file");
        assert_eq!(stored.metadata().unwrap().uid(), 1000, "independent of the id range of the incarnation");
        harness.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = next_incarnation(&first);
        harness.local.start(&second, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-2", "cat file; stat -c %U file").await, "kept\nagbox\n");
        harness.local.remove(&second).await.unwrap();
        assert!(!harness.disk(&second).exists());
    });
}

#[test]
fn a_new_disk_contains_nothing_of_the_image_and_an_old_disk_with_a_full_root_still_works() {
    run(async {
        let harness = ProviderHarness::new();
        let new = harness.start("newer", &host_spec()).await;
        let written = || std::fs::read_dir(harness.disk(&new).join("tree/upper")).unwrap().count();
        assert_eq!(written(), 0, "the image is a lower layer");
        assert_eq!(harness.shell(&new, "exec-1", "id -un; touch ~/mine").await, "agbox\n");
        assert_eq!(written(), 1);
        // An old disk has a complete root of its own.
        let old = new_instance("older");
        let workspace = harness.disk(&old).join("tree/root/workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        std::fs::write(workspace.join("file"), "kept").unwrap();
        harness.local.start(&old, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&old, "exec-2", "cat file; id -un").await, "keptagbox\n");
        for instance in [new, old] {
            harness.local.remove(&instance).await.unwrap();
        }
    });
}

#[test]
fn a_full_disk_with_a_limit_does_not_affect_other_sandboxes() {
    run(async {
        let harness = ProviderHarness::new();
        let fill = |id| script(id, "head -c 64m /dev/zero > large");
        let small = harness.start("small", &limited(32 << 20)).await;
        assert!(matches!(harness.run_exec(&small, &fill("exec-1")).await, How::Exited(code) if code != 0));
        assert!(
            harness.exec_output(&small, "exec-1").contains("No space"),
            "{}",
            harness.exec_output(&small, "exec-1")
        );
        let large = harness.start("large", &host_spec()).await;
        assert_eq!(harness.run_exec(&large, &fill("exec-2")).await, How::Exited(0), "the control");
        for instance in [small, large] {
            harness.local.remove(&instance).await.unwrap();
            assert!(harness.traces(&instance).is_empty());
        }
    });
}

#[test]
fn a_failed_start_leaves_nothing_except_a_disk_that_existed_before() {
    run(async {
        let harness = ProviderHarness::new();
        let wrong = Spec { image: "/no/such/image".to_owned(), ..host_spec() };
        let mount =
            carrel_control::spec::Mount { source: "/no/such/tree".into(), target: "/x".to_owned(), writable: false };
        let unmountable = Spec { mounts: vec![mount], ..host_spec() };
        for spec in [&wrong, &unmountable] {
            let instance = new_instance("demo");
            let failed = harness.local.start(&instance, spec).await.unwrap_err();
            assert!(failed.message.contains("/no/such"), "{failed}");
            assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
        }
        let first = harness.start("demo", &host_spec()).await;
        harness.shell(&first, "exec-1", "echo kept > file").await;
        harness.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = next_incarnation(&first);
        assert!(harness.local.start(&second, &unmountable).await.is_err());
        let third = next_incarnation(&first);
        harness.local.start(&third, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&third, "exec-2", "cat file").await, "kept\n");
    });
}

#[test]
fn a_disk_without_a_limit_is_locked_while_it_is_open_and_removed_completely() {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = home.path().join("disk");
    let disk = PersistentDisk::create_unlimited(&path).unwrap();
    assert_eq!(disk.kind(), DiskKind::Plain);
    assert!(disk.host_free().unwrap().bytes > 0);
    for other in [PersistentDisk::open(&path), PersistentDisk::create_unlimited(&path)] {
        assert!(matches!(other, Err(DiskError::InUse(_))));
    }
    assert!(matches!(PersistentDisk::remove(&path), Err(DiskError::InUse(_))));
    drop(disk);
    for created in
        [when_free(|| PersistentDisk::create_unlimited(&path)), when_free(|| PersistentDisk::create(&path, 1 << 26))]
    {
        assert!(matches!(created, Err(DiskError::Exists(_))));
    }
    assert_eq!(when_free(|| PersistentDisk::open(&path)).unwrap().kind(), DiskKind::Plain);
    std::fs::write(path.join("beside"), "").unwrap();
    when_free(|| PersistentDisk::remove(&path)).unwrap();
    assert!(!path.exists());
}

/// Retries while a disk is in use: a process that another test starts inherits its descriptors until the `exec`.
fn when_free<T>(attempt: impl Fn() -> Result<T, DiskError>) -> Result<T, DiskError> {
    loop {
        match attempt() {
            Err(DiskError::InUse(_)) => std::thread::yield_now(),
            done => return done,
        }
    }
}

//= promises.control-plane.directories-nested-another-disk
/// The tree is so deep that a recursive removal would overflow the stack of its thread.
#[test]
fn a_directory_tree_of_any_depth_is_removed() {
    run_within(3 * WATCHDOG, async {
        let harness = ProviderHarness::new();
        let deep = "python3 -c \"import os\nfor _ in range(20000): os.mkdir('d'); os.chdir('d')\"";
        for (name, spec) in [("plain", host_spec()), ("sized", limited(256 << 20))] {
            let instance = harness.start(name, &spec).await;
            assert_eq!(harness.run_exec(&instance, &script("deep", deep)).await, How::Exited(0));
            harness.local.remove(&instance).await.unwrap();
            assert!(!harness.disk(&instance).exists(), "{name}");
        }
    });
}

#[test]
fn a_system_file_whose_content_was_lost_is_restored_at_the_next_start() {
    run(async {
        let harness = ProviderHarness::new();
        let first = harness.start("demo", &limited(32 << 20)).await;
        let lose = "echo mine > file; : > /etc/passwd; echo changed >> /etc/hosts; \
            size=$(wc -c < /etc/group); head -c $size /dev/zero > /etc/group";
        let emptied = script("exec-1", lose);
        let emptied = carrel_control::provider::ExecStart {
            options: carrel_control::provider::ExecOptions { user: Some("0".to_owned()), ..emptied.options },
            ..emptied
        };
        assert_eq!(harness.run_exec(&first, &emptied).await, How::Exited(0));
        harness.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
        let second = next_incarnation(&first);
        harness.local.start(&second, &limited(32 << 20)).await.unwrap();
        let read = "id -un; id -gn; cat file; tail -n1 /etc/hosts";
        assert_eq!(harness.shell(&second, "exec-2", read).await, "agbox\nagbox\nmine\nchanged\n");
        harness.local.remove(&second).await.unwrap();
    });
}

#[test]
fn a_disk_without_its_files_is_missing_and_is_never_replaced() {
    run(async {
        let harness = ProviderHarness::new();
        for (name, spec) in [("sized", limited(32 << 20)), ("plain", host_spec())] {
            let first = harness.start(name, &spec).await;
            harness.local.stop(&first, std::time::Duration::ZERO).await.unwrap();
            harness.local.forget(&first).await.unwrap();
            let disk = harness.disk(&first);
            for entry in std::fs::read_dir(&disk).unwrap() {
                let path = entry.unwrap().path();
                std::fs::rename(
                    &path,
                    harness.home.path().join(format!("{name}-{}", path.file_name().unwrap().display())),
                )
                .unwrap();
            }
            assert!(!harness.local.has_disk(&first).await.unwrap());
            let second = next_incarnation(&first);
            let failed = harness.local.start(&second, &spec).await.unwrap_err();
            assert!(
                failed.message.contains("missing") && failed.message.contains(&*disk.to_string_lossy()),
                "{failed}"
            );
            let failed = harness.local.read_disk(&first, &spec).await.map(drop).unwrap_err();
            assert!(failed.message.contains("missing"), "{failed}");
            assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
            harness.local.remove(&first).await.unwrap();
        }
    });
}
