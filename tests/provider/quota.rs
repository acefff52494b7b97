//! The quota for output, which all incarnations of a sandbox share.

use carrel_control::provider::Provider;
use carrel_local::{LocalProvider, LocalSettings, TrimmedOutput};
use carrel_store::ExecId;
use carrel_tests::{programs, run};

use crate::harness::{GRACE, ProviderHarness, host_spec, next_incarnation, settings};

#[test]
fn output_of_earlier_incarnations_counts_and_its_trimming_is_reported() {
    run(async {
        let mut harness = ProviderHarness::new();
        let settings = LocalSettings { output_quota: Some(1 << 20), ..settings(harness.home.path()) };
        harness.local = LocalProvider::new(settings, programs()).unwrap();
        let instance = harness.start("demo", &host_spec()).await;
        for id in ["first", "second"] {
            harness.shell(&instance, id, "head -c 300000 /dev/zero; head -c 5 /dev/zero >&2").await;
        }
        let trimmed = |id: &str| {
            let exec = ExecId::new(id).unwrap();
            harness.local.log_trimmed(&instance.sandbox, &exec).unwrap()
        };
        assert_eq!((trimmed("first"), trimmed("second"), trimmed("none")), (None, None, None));
        harness.local.stop(&instance, GRACE).await.unwrap();
        harness.local.forget(&instance).await.unwrap();
        let resumed = next_incarnation(&instance);
        harness.local.start(&resumed, &host_spec()).await.unwrap();
        harness.shell(&resumed, "third", "head -c 600000 /dev/zero").await;
        assert_eq!(trimmed("first").map(|trimmed| trimmed.stdout), Some(300_000), "the oldest output is trimmed first");
        let paths = harness.local.logs(&instance.sandbox, &ExecId::new("first").unwrap());
        assert!(!paths.stdout.exists());
        assert_eq!(trimmed("second"), None);
        // More than the whole quota: its beginning and its end are kept.
        harness.shell(&resumed, "fourth", "head -c 3000000 /dev/zero").await;
        let fourth = trimmed("fourth").unwrap();
        assert!(fourth.stdout > 1_500_000 && fourth.stdout < 3_000_000, "{fourth:?}");
        assert_eq!(trimmed("second"), Some(TrimmedOutput { stdout: 300_000, stderr: 5 }));
    });
}
