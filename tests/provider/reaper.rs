//! The reaper: removes sandboxes that were deleted, and quarantines disks that the control plane does not know.

use std::path::PathBuf;

use carrel_control::provider::{How, InUse, Manifest, Place, Provider};
use carrel_local::{LocalProvider, LocalSettings};
use carrel_shim_client::OwnedSandbox;
use carrel_tests::{create, programs, run};

use crate::harness::{ProviderHarness, host_spec, next_incarnation, script, settings};

#[test]
fn a_deleted_sandbox_is_removed_and_all_others_are_kept() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (used, deleted) = (harness.start("used", &host_spec()).await, harness.start("deleted", &host_spec()).await);
        let stopped = harness.start("stopped", &host_spec()).await;
        harness.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        harness.local.forget(&stopped).await.unwrap();
        // A sandbox of `carrel run` does not belong to the provider.
        let owned = OwnedSandbox::start(&programs(), &create(harness.home.path(), "person")).await.unwrap();
        let in_use = InUse {
            incarnations: [used.incarnation.clone()].into(),
            disks: [used.disk.clone(), stopped.disk.clone()].into(),
            deleted: [deleted.disk.clone()].into(),
        };
        let in_use = move || in_use.clone();
        // A sandbox that this provider started is kept: it may be newer than the list of what is in use.
        harness.local.reap(&in_use).await.unwrap();
        assert_eq!(harness.shell(&deleted, "exec-0", "echo here").await, "here\n");

        harness.restart_provider();
        let reaped = harness.local.reap(&in_use).await.unwrap();
        assert!(reaped.removed >= 2 && reaped.quarantined.is_empty(), "{reaped:?}");
        assert_eq!(harness.traces(&deleted), Vec::<PathBuf>::new());
        assert_eq!(harness.traces(&stopped), [harness.disk(&stopped)]);
        assert!(harness.local.adopt(&used, &host_spec()).await.unwrap());
        assert_eq!(harness.run_exec(&used, &script("exec-1", "true")).await, How::Exited(0));
        assert!(owned.agent_socket().exists());
        harness.local.reap(&in_use).await.unwrap();
        assert_eq!(harness.traces(&stopped), [harness.disk(&stopped)]);
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn an_unknown_disk_is_quarantined_and_listed_until_the_operator_removes_it() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (runs, stopped) = (harness.start("runs", &host_spec()).await, harness.start("stopped", &host_spec()).await);
        harness.shell(&stopped, "exec-0", "echo kept > file").await;
        harness.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        harness.local.forget(&stopped).await.unwrap();
        harness.local.save_manifest(&stopped, &manifest("stopped")).await.unwrap();
        std::fs::create_dir(harness.home.path().join("disks/lost+found")).unwrap();
        harness.restart_provider();
        let nothing = InUse::default;
        let reaped = harness.local.reap(&nothing).await.unwrap();
        assert_eq!(reaped.removed, 0);
        let mut both = [runs.disk.clone(), stopped.disk.clone()];
        both.sort();
        assert_eq!(reaped.quarantined, both, "a directory that is no disk is ignored");
        assert!(harness.local.reap(&nothing).await.unwrap().quarantined.is_empty(), "each disk is reported once");

        let orphans = harness.local.orphans(&nothing).await.unwrap();
        let orphan = |instance: &Place| orphans.iter().find(|orphan| orphan.disk == instance.disk).unwrap();
        assert_eq!(orphan(&runs).running.as_ref(), Some(&runs.incarnation));
        assert_eq!(orphan(&stopped).running, None);
        assert_eq!(orphan(&stopped).manifest, Some(manifest("stopped")));
        assert_eq!(harness.shell(&runs, "exec-1", "echo still").await, "still\n");

        harness.local.remove_orphan(&runs.disk).await.unwrap();
        assert_eq!(harness.traces(&runs), Vec::<PathBuf>::new());
        let orphans = harness.local.orphans(&nothing).await.unwrap();
        assert_eq!(orphans.iter().map(|orphan| &orphan.disk).collect::<Vec<_>>(), [&stopped.disk]);
        // A released orphan can be started again.
        harness.local.release_orphan(&stopped.disk).await.unwrap();
        let second = next_incarnation(&stopped);
        harness.local.start(&second, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-2", "cat file").await, "kept\n");
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn an_orphan_is_removed_when_its_retention_has_elapsed_unless_it_runs() {
    run(async {
        let mut harness = ProviderHarness::new();
        let (runs, stopped) = (harness.start("runs", &host_spec()).await, harness.start("stopped", &host_spec()).await);
        harness.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        let kept = std::time::Duration::from_nanos(1);
        harness.local =
            LocalProvider::new(LocalSettings { orphans_kept: kept, ..settings(harness.home.path()) }, programs())
                .unwrap();
        let nothing = InUse::default;
        // The first reap quarantines it, the next one removes it.
        assert_eq!(harness.local.reap(&nothing).await.unwrap().quarantined.len(), 2);
        harness.local.reap(&nothing).await.unwrap();
        assert!(!harness.disk(&stopped).exists() && harness.disk(&runs).exists());
        assert_eq!(harness.shell(&runs, "exec-1", "echo still").await, "still\n");
    });
}

//= promises.control-plane.store-older-disks-missing
#[test]
fn the_retention_of_an_orphan_restarts_after_it_was_known_in_between() {
    run(async {
        let mut harness = ProviderHarness::new();
        let stopped = harness.start("stopped", &host_spec()).await;
        harness.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        let kept = std::time::Duration::from_nanos(1);
        harness.local =
            LocalProvider::new(LocalSettings { orphans_kept: kept, ..settings(harness.home.path()) }, programs())
                .unwrap();
        let nothing = InUse::default;
        assert_eq!(harness.local.reap(&nothing).await.unwrap().quarantined, std::slice::from_ref(&stopped.disk));
        let disk = stopped.disk.clone();
        let known = move || InUse { disks: [disk.clone()].into(), ..InUse::default() };
        harness.local.reap(&known).await.unwrap();
        // Unknown again: it is quarantined again, and not removed for its first quarantine.
        assert_eq!(harness.local.reap(&nothing).await.unwrap().quarantined, std::slice::from_ref(&stopped.disk));
        assert!(harness.disk(&stopped).exists());
    });
}

#[test]
fn an_orphan_that_runs_is_not_killed_by_a_new_sandbox_of_its_name() {
    run(async {
        let harness = ProviderHarness::new();
        let orphan = harness.start("demo", &host_spec()).await;
        // The store that was restored does not know it, so the name is free.
        let new =
            Place { incarnation: "ffff0000ffff0001".to_owned(), disk: "ffff0000ffff0001".to_owned(), ..orphan.clone() };
        let failed = harness.local.start(&new, &host_spec()).await.unwrap_err();
        assert!(failed.message.contains(&format!("carrel store remove {}", orphan.disk)), "{failed}");
        harness.local.remove(&new).await.unwrap();
        assert_eq!(harness.shell(&orphan, "exec-1", "echo still").await, "still\n");
        harness.local.remove_orphan(&orphan.disk).await.unwrap();
        harness.local.start(&new, &host_spec()).await.unwrap();
        harness.local.remove(&new).await.unwrap();
    });
}

#[test]
fn an_orphan_that_is_removed_during_a_reap_leaves_no_mark() {
    run(async {
        let mut harness = ProviderHarness::new();
        let stopped = harness.start("stopped", &host_spec()).await;
        harness.local.stop(&stopped, std::time::Duration::ZERO).await.unwrap();
        harness.local.forget(&stopped).await.unwrap();
        harness.restart_provider();
        let disk = harness.disk(&stopped);
        // What is in use is requested after all disks were listed.
        let removed = move || {
            std::fs::remove_dir_all(&disk).unwrap();
            InUse::default()
        };
        assert_eq!(harness.local.reap(&removed).await.unwrap().quarantined, Vec::<String>::new());
        let marks = std::fs::read_dir(harness.home.path().join("quarantine")).unwrap();
        assert_eq!(marks.count(), 0);
    });
}

#[test]
fn an_incarnation_that_a_restored_store_does_not_know_is_kept_until_the_sandbox_is_resumed() {
    run(async {
        let mut harness = ProviderHarness::new();
        let former = harness.start("demo", &host_spec()).await;
        harness.local.stop(&former, std::time::Duration::ZERO).await.unwrap();
        harness.local.forget(&former).await.unwrap();
        let later = next_incarnation(&former);
        harness.local.start(&later, &host_spec()).await.unwrap();
        harness.shell(&later, "exec-1", "echo kept > file").await;
        // The restored store knows the disk and the former incarnation.
        harness.restart_provider();
        let (incarnation, disk) = (former.incarnation.clone(), former.disk.clone());
        let in_use = move || InUse {
            incarnations: [incarnation.clone()].into(),
            disks: [disk.clone()].into(),
            ..InUse::default()
        };
        harness.local.reap(&in_use).await.unwrap();
        assert!(harness.local.orphans(&in_use).await.unwrap().is_empty());
        assert_eq!(harness.shell(&later, "exec-2", "cat file").await, "kept\n");
        harness.restart_provider();
        let last = next_incarnation(&former);
        harness.local.start(&last, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&last, "exec-3", "cat file").await, "kept\n");
    });
}

fn manifest(sandbox: &str) -> Manifest {
    let (image, spec) = ("host".to_owned(), "{}".to_owned());
    Manifest { sandbox: sandbox.to_owned(), owner: 0, image, spec, created_at: 1, idle_ms: None }
}

#[test]
fn a_start_replaces_an_earlier_incarnation_that_still_runs() {
    run(async {
        let mut harness = ProviderHarness::new();
        let first = harness.start("demo", &host_spec()).await;
        harness.shell(&first, "exec-1", "echo kept > file").await;
        // The daemon died between two starts: the first still runs.
        harness.restart_provider();
        let second = next_incarnation(&first);
        harness.local.start(&second, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-2", "cat file").await, "kept\n");
        assert!(!harness.local.adopt(&first, &host_spec()).await.unwrap());
        // A removal removes all incarnations.
        harness.restart_provider();
        let third = next_incarnation(&first);
        harness.local.remove(&third).await.unwrap();
        for instance in [&first, &second, &third] {
            assert!(harness.traces(instance).is_empty(), "{:?}", harness.traces(instance));
        }
    });
}
