//! Checks after all sandboxes are deleted: the store is consistent, and nothing is left on the host.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use carrel_store::{SandboxState, Store, StoreOptions};
use carrel_tests::{Daemon, DaemonHome};

/// How long the kernel may take to free resources after their last use. It does not report when it has.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Stops a daemon whose sandboxes are deleted, and checks its store, the host and these ports.
pub(crate) async fn stop_and_check(home: &DaemonHome, daemon: Daemon, ports: &[u16]) {
    daemon.stop().await;
    check_store(home);
    let store = Store::open(&home.store(), StoreOptions::default()).unwrap();
    let sandboxes = store.sandboxes();
    assert!(sandboxes.iter().all(|sandbox| sandbox.state == SandboxState::Deleted), "{sandboxes:?}");
    let names = |sandbox: &std::sync::Arc<carrel_store::Sandbox>| [sandbox.incarnation.clone(), sandbox.disk.clone()];
    let incarnations: Vec<String> = sandboxes.iter().flat_map(names).collect();
    store.close().await;
    drop(store);
    check_no_leftovers(home, &incarnations).await;
    for port in ports {
        TcpListener::bind(("127.0.0.1", *port)).unwrap();
    }
}

/// Checks that the store is consistent.
pub(crate) fn check_store(home: &DaemonHome) {
    let report = carrel_store::check(&home.store()).unwrap();
    assert_eq!(report.violations, Vec::<String>::new());
}

/// Waits until nothing is left on this host of the sandboxes of a home.
pub(crate) async fn check_no_leftovers(home: &DaemonHome, incarnations: &[String]) {
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let leftovers = home.leftovers(incarnations);
        if leftovers.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{leftovers:#?}");
        tokio::task::yield_now().await;
    }
}
