//! Images from registries and directories: a stop does not wait for a pull, and symbolic links of an image are kept.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;

use carrel_control::provider::{Place, Provider, ProviderError};
use carrel_control::spec::Spec;
use carrel_local::{LocalProvider, LocalSettings};
use carrel_tests::{programs, run};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{GRACE, ProviderHarness, host_spec, new_instance, next_incarnation, settings};
use crate::users::image;

/// A registry that sends the first byte of each response and then stalls.
struct StallingRegistry {
    address: SocketAddr,
    /// The connections with a request, which stay open until they are dropped.
    connections: mpsc::UnboundedReceiver<TcpStream>,
}

impl StallingRegistry {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, connections) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // The request itself does not matter.
                let stalled = stream.read(&mut [0]).is_ok_and(|length| length > 0) && stream.write_all(b"H").is_ok();
                if stalled && sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { address, connections }
    }

    /// A provider whose configuration allows the registry for all users.
    fn provider(&self, harness: &ProviderHarness) -> LocalProvider {
        let registry = (self.address.to_string(), carrel_registry::RegistryConfig::default());
        let registries = carrel_registry::RegistriesConfig::new([registry]);
        LocalProvider::new(LocalSettings { registries, ..settings(harness.home.path()) }, programs()).unwrap()
    }

    fn spec(&self) -> Spec {
        Spec { image: format!("{}/demo:1", self.address), ..Spec::default() }
    }
}

/// Starts a sandbox, and returns while it waits for its image. Each needs a registry of its own: a cancelled pull may
/// still be retried, and its request would be taken for that of the next.
async fn start_waiting(
    harness: &ProviderHarness,
    registry: &mut StallingRegistry,
    untrusted: bool,
) -> (Place, StartTask) {
    let (local, instance, spec) = (harness.local.clone(), new_instance("demo"), Spec { untrusted, ..registry.spec() });
    let own = instance.clone();
    let start = tokio::spawn(async move { local.start(&own, &spec).await });
    let _open = registry.connections.recv().await.unwrap();
    assert!(!start.is_finished(), "the start waits for the pull");
    (instance, start)
}

type StartTask = JoinHandle<Result<(), ProviderError>>;

//= promises.images.pull-without-waiting-request
#[test]
fn a_stop_or_removal_does_not_wait_for_the_pull_of_the_image() {
    run(async {
        let mut harness = ProviderHarness::new();
        for untrusted in [false, true] {
            let mut registry = StallingRegistry::new();
            harness.local = registry.provider(&harness);
            // Another task removes it while the start waits.
            let (instance, start) = start_waiting(&harness, &mut registry, untrusted).await;
            harness.local.remove(&instance).await.unwrap();
            assert_eq!(start.await.unwrap().unwrap_err().message, "the start was cancelled");
            assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
            let mut registry = StallingRegistry::new();
            harness.local = registry.provider(&harness);
            let (instance, start) = start_waiting(&harness, &mut registry, untrusted).await;
            harness.local.stop(&instance, GRACE).await.unwrap();
            assert!(start.await.unwrap().is_err());
            harness.local.remove(&instance).await.unwrap();
            assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
        }
        // The name is free for another sandbox.
        let instance = harness.start("demo", &host_spec()).await;
        harness.local.remove(&instance).await.unwrap();
    });
}

//= promises.images.registry-another-user-machine
#[test]
fn a_pull_for_another_user_reaches_a_private_address_only_if_the_operator_allows_the_registry() {
    run(async {
        let mut harness = ProviderHarness::new();
        let mut registry = StallingRegistry::new();
        let spec = Spec { untrusted: true, ..registry.spec() };
        let refused = harness.local.start(&new_instance("demo"), &spec).await.unwrap_err();
        assert!(refused.message.contains("not a public address"), "{refused}");
        assert!(registry.connections.try_recv().is_err(), "the registry received no request");
        harness.local = registry.provider(&harness);
        let (instance, start) = start_waiting(&harness, &mut registry, true).await;
        harness.local.remove(&instance).await.unwrap();
        assert!(start.await.unwrap().is_err());
    });
}

#[test]
fn a_start_whose_future_is_dropped_is_cancelled_during_the_pull_and_delays_no_other_start() {
    run(async {
        let harness = ProviderHarness::new();
        let mut registry = StallingRegistry::new();
        let (first, start) = start_waiting(&harness, &mut registry, false).await;
        start.abort();
        assert!(start.await.unwrap_err().is_cancelled());
        // A start without a pull does not wait for a start with one.
        let mut registry = StallingRegistry::new();
        let (other, start) = start_waiting(&harness, &mut registry, false).await;
        let beside = harness.start("beside", &host_spec()).await;
        assert!(!start.is_finished());
        for instance in [first, other, beside] {
            harness.local.remove(&instance).await.unwrap();
            assert!(harness.traces(&instance).is_empty(), "{:?}", harness.traces(&instance));
        }
        assert!(start.await.unwrap().is_err());
    });
}

#[test]
fn a_missing_home_directory_is_created_behind_symbolic_links_of_the_image() {
    run(async {
        let harness = ProviderHarness::new();
        let (root, spec) = image(None);
        std::fs::create_dir_all(root.path().join("var/lib")).unwrap();
        symlink("var/lib/home", root.path().join("home")).unwrap();
        let instance = harness.start("demo", &spec).await;
        let look = "echo $HOME; stat -c %N /home; touch ~/may; stat -c '%U %F' /var/lib/home/agbox ~/may";
        let expected = "/home/agbox\n'/home' -> 'var/lib/home'\nagbox directory\nagbox regular empty file\n";
        assert_eq!(harness.shell(&instance, "exec-1", look).await, expected);
        harness.local.remove(&instance).await.unwrap();
    });
}

#[test]
fn a_directory_that_the_sandbox_replaced_by_a_link_stays_a_link() {
    run(async {
        let harness = ProviderHarness::new();
        let (_root, spec) = image(Some("agbox:x:0:0::/srv/own:/bin/sh\n"));
        let first = harness.start("demo", &spec).await;
        let change = "cd /; touch ~/file; busybox mv /srv/own /srv/other && busybox ln -s other /srv/own";
        harness.shell(&first, "exec-1", change).await;
        harness.local.stop(&first, GRACE).await.unwrap();
        let second = next_incarnation(&first);
        harness.local.start(&second, &spec).await.unwrap();
        let look = "stat -c %N /srv/own; cat ~/file && echo there";
        assert_eq!(harness.shell(&second, "exec-2", look).await, "'/srv/own' -> 'other'\nthere\n");
        harness.local.remove(&second).await.unwrap();
    });
}

#[test]
fn the_root_directory_of_a_sandbox_has_the_mode_and_owner_of_its_image() {
    use std::os::unix::fs::PermissionsExt;
    run(async {
        let harness = ProviderHarness::new();
        let (root, spec) = image(None);
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o1775)).unwrap();
        std::os::unix::fs::chown(root.path(), Some(12), Some(34)).unwrap();
        let instance = harness.start("demo", &spec).await;
        let look = "stat -c '%a %u:%g' /";
        assert_eq!(harness.shell(&instance, "exec-1", look).await, "1775 12:34\n");
        // A later change to the image does not affect the sandbox.
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        harness.local.stop(&instance, GRACE).await.unwrap();
        let second = next_incarnation(&instance);
        harness.local.start(&second, &spec).await.unwrap();
        assert_eq!(harness.shell(&second, "exec-2", look).await, "1775 12:34\n");
        harness.local.remove(&second).await.unwrap();
    });
}
