//! Interrupted starts: cancelled futures, remains of a dead daemon, dead shims, and names that are in use.

use std::os::unix::fs::PermissionsExt;

use carrel_control::provider::Provider;
use carrel_local::LocalProvider;
use carrel_shim_client::Programs;
use carrel_tests::{install, programs, run};

use crate::harness::{ProviderHarness, host_spec, new_instance, settings};

#[test]
fn a_sandbox_whose_start_was_cancelled_can_be_removed() {
    run(async {
        let harness = ProviderHarness::new();
        let (instance, spec) = (new_instance("demo"), host_spec());
        tokio::select! {
            biased;
            _ = harness.local.start(&instance, &spec) => panic!("the start finished before it could be cancelled"),
            () = tokio::task::yield_now() => {}
        }
        harness.local.remove(&instance).await.unwrap();
        assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
    });
}

#[test]
fn remains_of_a_start_that_a_dead_daemon_did_not_finish_can_be_removed() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = new_instance("demo");
        harness.local.remove(&instance).await.unwrap();
        // An empty disk, and a directory that was claimed and not filled.
        std::fs::create_dir(harness.disk(&instance)).unwrap();
        let directory = harness.directory(&instance);
        std::fs::create_dir_all(&directory).unwrap();
        for path in [directory.parent().unwrap(), &directory] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        std::fs::write(directory.join("lock"), "").unwrap();
        std::fs::write(directory.join("incarnation"), &instance.incarnation).unwrap();
        assert!(!harness.local.adopt(&instance, &host_spec()).await.unwrap());
        harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
        harness.local.remove(&instance).await.unwrap();
        assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
        // They do not prevent a start either.
        std::fs::create_dir(harness.disk(&instance)).unwrap();
        harness.local.start(&instance, &host_spec()).await.unwrap();
    });
}

#[test]
fn a_prestarted_shim_that_died_does_not_fail_a_start() {
    run(async {
        let mut harness = ProviderHarness::new();
        // The first shim exits at once.
        let shim = harness.home.path().join("shim");
        let script = "#!/bin/sh\nmkdir \"$0.first\" 2>/dev/null && exit 1\nexec REAL\n";
        let text = harness.home.path().join("text");
        std::fs::write(&text, script.replace("REAL", programs().shim.to_str().unwrap())).unwrap();
        install(&text, &shim, 0o755, 0);
        let programs = Programs { shim, ..programs() };
        harness.local = LocalProvider::new(settings(harness.home.path()), programs).unwrap();
        while !harness.home.path().join("shim.first").exists() {
            tokio::task::yield_now().await;
        }
        let instance = harness.start("demo", &host_spec()).await;
        assert_eq!(harness.shell(&instance, "exec-1", "echo here").await, "here\n");
    });
}

#[test]
fn a_running_sandbox_of_carrel_run_with_the_same_name_is_left_alone() {
    run(async {
        let harness = ProviderHarness::new();
        let create = carrel_tests::create(harness.home.path(), "demo");
        let owned = carrel_shim_client::OwnedSandbox::start(&programs(), &create).await.unwrap();
        let instance = new_instance("demo");
        let failed = harness.local.start(&instance, &host_spec()).await.unwrap_err();
        assert!(failed.message.contains("a sandbox with this name is running"), "{failed}");
        assert!(!harness.disk(&instance).exists());
        harness.local.stop(&instance, std::time::Duration::ZERO).await.unwrap();
        harness.local.remove(&instance).await.unwrap();
        assert!(owned.agent_socket().exists());
        drop(owned);
        harness.local.start(&instance, &host_spec()).await.unwrap();
    });
}
