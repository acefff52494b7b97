//! The lifecycle of a sandbox, from start to removal.

use std::time::Duration;

use carrel_control::provider::{EndCause, Fact, Provider};
use carrel_tests::run;

use crate::harness::{GRACE, ProviderHarness, collect_facts, host_spec, new_instance, next_incarnation};

#[test]
fn a_sandbox_is_started_stopped_resumed_and_removed() {
    run(async {
        let harness = ProviderHarness::new();
        let first = harness.start("demo", &host_spec()).await;
        assert_eq!(
            harness.shell(&first, "exec-1", "echo kept > /workspace/file; id -un; pwd; echo $HOME").await,
            "agbox\n/workspace\n/home/agbox\n"
        );
        let mut facts = harness.watch(&first, 0);
        harness.local.stop(&first, GRACE).await.unwrap();
        let facts = collect_facts(&mut facts).await;
        let sequences: Vec<_> = facts.iter().map(|noted| noted.sequence).collect();
        assert_eq!(sequences, (1..=facts.len() as u64).collect::<Vec<_>>());
        assert!(matches!(facts.last().unwrap().fact, Fact::Ended { cause: EndCause::Stopped, .. }));
        // The facts of a stopped incarnation can still be read.
        assert_eq!(collect_facts(&mut harness.watch(&first, 3)).await, facts[3..]);
        assert_eq!(collect_facts(&mut harness.watch(&first, facts.len() as u64)).await, []);
        harness.local.forget(&first).await.unwrap();
        assert_eq!(collect_facts(&mut harness.watch(&first, 0)).await, []);
        assert_eq!(harness.traces(&first), [harness.disk(&first)]);

        let second = next_incarnation(&first);
        harness.local.start(&second, &host_spec()).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-2", "cat /workspace/file").await, "kept\n");
        harness.local.remove(&second).await.unwrap();
        assert_eq!(harness.traces(&second), Vec::<std::path::PathBuf>::new());
        assert_eq!(harness.exec_output(&second, "exec-1"), "agbox\n/workspace\n/home/agbox\n", "the logs are kept");
        harness.local.remove_logs(&second.sandbox).await.unwrap();
        harness.local.remove_logs(&second.sandbox).await.unwrap();
        assert_eq!(std::fs::read_dir(harness.home.path().join("logs")).unwrap().count(), 0);
    });
}

#[test]
fn every_operation_is_idempotent() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = new_instance("demo");
        for _ in 0..2 {
            harness.local.start(&instance, &host_spec()).await.unwrap();
            assert!(harness.local.adopt(&instance, &host_spec()).await.unwrap());
        }
        for _ in 0..2 {
            harness.local.stop(&instance, Duration::ZERO).await.unwrap();
        }
        assert!(!harness.local.adopt(&instance, &host_spec()).await.unwrap());
        for _ in 0..2 {
            harness.local.forget(&instance).await.unwrap();
        }
        for _ in 0..2 {
            harness.local.remove(&instance).await.unwrap();
        }
        assert!(harness.traces(&instance).is_empty());
    });
}
