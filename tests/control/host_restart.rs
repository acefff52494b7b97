//! A restart of the host, orderly or not, and the daemon that starts after it.

use carrel_api::agbox::v1::{self, ExecState, SandboxEvent, SandboxState, sandbox_event};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_api::carrel::v1::{CreateSandboxRequest, RestartPolicy, StopForShutdownRequest};
use carrel_tests::{Daemon, DaemonHome, run};
use rustix::process::Signal;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec};

const NEVER: &str = "never-1";
const ON_BOOT: &str = "on-boot-1";

/// A daemon with one sandbox per restart policy. Each has a running command and a file.
struct RestartScenario {
    home: DaemonHome,
    daemon: Daemon,
    client: Client,
}

// === impl RestartScenario ===

impl RestartScenario {
    async fn start() -> Self {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut scenario = Self { client: Client::connect(&daemon).await, daemon, home };
        for (id, policy) in [(NEVER, RestartPolicy::Unspecified), (ON_BOOT, RestartPolicy::OnBoot)] {
            let (create_spec, sandbox_id) = (Some(host_spec()), id.to_owned());
            let request = Some(v1::CreateSandboxRequest { create_spec, sandbox_id, config_yaml: Vec::new() });
            let request = CreateSandboxRequest { request, restart: policy.into(), ..Default::default() };
            scenario.carrel().await.create_sandbox(request).await.unwrap();
            scenario.client.wait_for_state(id, SandboxState::Ready).await.unwrap();
            let written = scenario.client.run(id, &format!("write-{id}"), "echo written > kept && sync kept").await;
            assert_eq!(written.state(), ExecState::Finished);
            scenario.client.exec(id, &format!("sleep-{id}"), "exec sleep 1000").await.unwrap();
        }
        scenario
    }

    /// A client of Carrel's own API.
    async fn carrel(&self) -> SandboxesClient<tonic::transport::Channel> {
        SandboxesClient::new(carrel_api::connect(self.daemon.socket()).await.unwrap())
    }

    /// Kills the daemon, runs `meanwhile`, and starts the next daemon.
    async fn restart(self, meanwhile: impl FnOnce(&DaemonHome)) -> Self {
        self.daemon.kill().await;
        meanwhile(&self.home);
        let daemon = self.home.start().await;
        Self { client: Client::connect(&daemon).await, daemon, home: self.home }
    }

    /// Checks that both sandboxes were stopped for a reason and that one was resumed by its policy. Resumes the other.
    async fn check(mut self, reason: &str) {
        self.client.wait_for_state(ON_BOOT, SandboxState::Ready).await.unwrap();
        self.client.wait_for_state(NEVER, SandboxState::Stopped).await.unwrap();
        self.client.resume(NEVER).await.unwrap();
        self.client.wait_for_state(NEVER, SandboxState::Ready).await.unwrap();
        for id in [NEVER, ON_BOOT] {
            let history = self.client.history(id).await.unwrap();
            let events: Vec<_> =
                history[6..].iter().map(|event| (event.event_type().as_str_name(), event_reason(event))).collect();
            let expected = [
                ("SANDBOX_STOP_REQUESTED", reason),
                ("EXEC_FAILED", ""),
                ("SANDBOX_STOPPED", reason),
                ("SANDBOX_ACCEPTED", ""),
                ("SANDBOX_READY", ""),
            ];
            assert_eq!(events, expected, "{id}");
            assert_eq!(self.client.run(id, &format!("look-{id}"), "grep -q written kept").await.exit_code, 0);
            self.client.delete_and_wait(id).await;
        }
        stop_and_check(&self.home, self.daemon, &[]).await;
    }
}

/// The reason of an event, if it has one.
fn event_reason(event: &SandboxEvent) -> &str {
    match &event.details {
        Some(sandbox_event::Details::SandboxPhase(phase)) => &phase.reason,
        _ => "",
    }
}

/// Simulates a restart of the host: kills all shims, and changes the boot id in their records.
fn simulate_restart(home: &DaemonHome) {
    for found in home.sandboxes() {
        let mut record = found.record.unwrap();
        rustix::process::pidfd_send_signal(record.shim_handle().unwrap(), Signal::KILL).unwrap();
        "another".clone_into(&mut record.boot_id);
        record.write(std::fs::File::open(&found.directory).unwrap()).unwrap();
    }
}

//= promises.control-plane.host-reboots-loses-power
#[test]
fn a_restart_of_the_host_stops_all_sandboxes_and_those_with_the_policy_on_boot_are_resumed() {
    run(async {
        let scenario = RestartScenario::start().await.restart(simulate_restart).await;
        scenario.check("host_restarted").await;
    });
}

//= promises.control-plane.host-reboots-loses-power
#[test]
fn a_shutdown_of_the_host_stops_all_sandboxes_and_the_next_daemon_resumes_those_with_the_policy_on_boot() {
    run(async {
        let mut scenario = RestartScenario::start().await;
        let stopping = scenario.carrel().await.stop_for_shutdown(StopForShutdownRequest {}).await.unwrap().into_inner();
        let ids: Vec<_> = stopping.sandboxes.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect();
        assert_eq!(ids, [NEVER, ON_BOOT]);
        for id in ids {
            let stopped = scenario.client.wait_for_state(id, SandboxState::Stopped).await.unwrap();
            assert_eq!(stopped.error_code, "");
        }
        scenario.restart(|_| {}).await.check("host_shutdown").await;
    });
}
