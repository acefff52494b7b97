//! A process that cannot be killed, in a sandbox whose shim dies.

use carrel_api::agbox::v1::SandboxState;
use carrel_sandbox::cgroup::{Cgroup, HostCgroups};
use carrel_tests::{DaemonHome, UnkillableProcess, run_within};
use rustix::process::{Pid, Signal};

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec};

/// The test waits several times for the timeouts of the cleanup.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(180);

//= promises.control-plane.process-kernel-kill
#[test]
fn a_process_that_cannot_be_killed_delays_neither_the_daemon_nor_other_sandboxes() {
    run_within(LIMIT, async {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        Client::connect(&daemon).await.create_and_wait("stuck", host_spec()).await;
        let mut unkillable = UnkillableProcess::start();
        let record = home.record("stuck").unwrap();
        let group = Cgroup::adopt(&HostCgroups::detect().unwrap(), &record.incarnation).unwrap();
        group.add(Pid::from_raw(i32::try_from(unkillable.pid()).unwrap()).unwrap()).unwrap();
        group.detach();
        daemon.kill().await;
        rustix::process::pidfd_send_signal(record.shim_handle().unwrap(), Signal::KILL).unwrap();

        let daemon = home.start().await;
        let early = home.log();
        let serving = early.rfind("serving").unwrap();
        assert!(!early[..serving].contains("does not exit"), "the daemon waited for the process: {early}");
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("other", host_spec()).await;
        assert_eq!(client.run("other", "exec-1", "true").await.exit_code, 0);
        client.delete_and_wait("other").await;
        assert!(unkillable.is_alive());

        // The log names the process, and once it can be killed nothing is left.
        client.wait_for_state("stuck", SandboxState::Stopped).await.unwrap();
        let message = format!("process {} cannot be killed", unkillable.pid());
        assert!(home.log().contains(&message), "{}", home.log());
        drop(unkillable);
        client.delete_and_wait("stuck").await;
        stop_and_check(&home, daemon, &[]).await;
    });
}
