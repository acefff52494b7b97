//! What has to be so when all sandboxes are gone.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use carrel_store::{SandboxState, Store, StoreOptions};
use carrel_tests::{Daemon, DaemonHome};

/// How long the kernel may take to be done with what nobody has any more. It says nothing when it is.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends a daemon whose sandboxes are gone: it kept its promises, and nothing of them is left.
pub(crate) async fn check(home: &DaemonHome, daemon: Daemon, ports: &[u16]) {
    daemon.stop().await;
    check_store(home);
    let store = Store::open(&home.store(), StoreOptions::default()).unwrap();
    let sandboxes = store.sandboxes();
    assert!(sandboxes.iter().all(|sandbox| sandbox.state == SandboxState::Deleted), "{sandboxes:?}");
    let names = |sandbox: &std::sync::Arc<carrel_store::Sandbox>| [sandbox.incarnation.clone(), sandbox.disk.clone()];
    let incarnations: Vec<String> = sandboxes.iter().flat_map(names).collect();
    store.close().await;
    drop(store);
    nothing_left(home, &incarnations).await;
    for port in ports {
        TcpListener::bind(("127.0.0.1", *port)).unwrap();
    }
}

/// What is written down fits together.
pub(crate) fn check_store(home: &DaemonHome) {
    let report = carrel_store::check(&home.store()).unwrap();
    assert_eq!(report.violations, Vec::<String>::new());
}

/// Nothing is left on this host of sandboxes of a home.
pub(crate) async fn nothing_left(home: &DaemonHome, incarnations: &[String]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = home.left(incarnations);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{left:#?}");
        tokio::task::yield_now().await;
    }
}
