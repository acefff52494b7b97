//! What cannot be killed holds up nobody else.

use carrel_api::agbox::v1::SandboxState;
use carrel_sandbox::cgroup::{Cgroup, Host};
use carrel_tests::{DaemonHome, Unkillable, run_within};
use rustix::process::{Pid, Signal};

use crate::client::{Client, host};
use crate::left::check;

/// The kernel is given its time, more than once.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(180);

//= promises.control-plane.process-kernel-kill
#[test]
fn a_process_that_cannot_be_killed_delays_neither_the_daemon_nor_other_sandboxes() {
    run_within(LIMIT, async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        Client::of(&daemon).await.ready("stuck", host()).await;
        let mut unkillable = Unkillable::start();
        let record = home.record("stuck").unwrap();
        let group = Cgroup::adopt(&Host::detect().unwrap(), &record.incarnation).unwrap();
        group.add(Pid::from_raw(i32::try_from(unkillable.pid()).unwrap()).unwrap()).unwrap();
        group.leave();
        daemon.kill().await;
        rustix::process::pidfd_send_signal(record.shim_handle().unwrap(), Signal::KILL).unwrap();

        let daemon = home.start().await;
        let early = home.log();
        let begun = early.rfind("serving").unwrap();
        assert!(!early[..begun].contains("does not exit"), "it was waited for: {early}");
        let mut client = Client::of(&daemon).await;
        client.ready("other", host()).await;
        assert_eq!(client.run("other", "exec-1", "true").await.exit_code, 0);
        client.gone("other").await;
        assert!(unkillable.lives());

        // It is told of, and once it can be killed nothing is left.
        client.until("stuck", SandboxState::Stopped).await.unwrap();
        let told = format!("process {} cannot be killed", unkillable.pid());
        assert!(home.log().contains(&told), "{}", home.log());
        drop(unkillable);
        client.gone("stuck").await;
        check(&home, daemon, &[]).await;
    });
}
