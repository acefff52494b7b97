//! A host that restarts, in order or not, and the daemon that starts after it.

use carrel_api::agbox::v1::{self, ExecState, SandboxEvent, SandboxState, sandbox_event};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_api::carrel::v1::{CreateSandboxRequest, RestartPolicy, StopForShutdownRequest};
use carrel_tests::{Daemon, DaemonHome, run};
use rustix::process::Signal;

use crate::client::{Client, host};
use crate::left::check;

const NEVER: &str = "never-1";
const ON_BOOT: &str = "on-boot-1";

/// A daemon with a sandbox of each policy, in each of which a command runs and something was written.
struct Scene {
    home: DaemonHome,
    daemon: Daemon,
    client: Client,
}

// === impl Scene ===

impl Scene {
    async fn set() -> Self {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let mut scene = Self { client: Client::of(&daemon).await, daemon, home };
        for (id, policy) in [(NEVER, RestartPolicy::Unspecified), (ON_BOOT, RestartPolicy::OnBoot)] {
            let (create_spec, sandbox_id) = (Some(host()), id.to_owned());
            let request = Some(v1::CreateSandboxRequest { create_spec, sandbox_id, config_yaml: Vec::new() });
            let request = CreateSandboxRequest { request, restart: policy.into(), ..Default::default() };
            scene.own().await.create_sandbox(request).await.unwrap();
            scene.client.until(id, SandboxState::Ready).await.unwrap();
            let written = scene.client.run(id, &format!("write-{id}"), "echo written > kept && sync kept").await;
            assert_eq!(written.state(), ExecState::Finished);
            scene.client.exec(id, &format!("sleep-{id}"), "exec sleep 1000").await.unwrap();
        }
        scene
    }

    async fn own(&self) -> SandboxesClient<tonic::transport::Channel> {
        SandboxesClient::new(carrel_api::connect(self.daemon.socket()).await.unwrap())
    }

    /// The next daemon, once this one is gone and so is what that does.
    async fn next(self, meanwhile: impl FnOnce(&DaemonHome)) -> Self {
        self.daemon.kill().await;
        meanwhile(&self.home);
        let daemon = self.home.start().await;
        Self { client: Client::of(&daemon).await, daemon, home: self.home }
    }

    /// Both are stopped for a reason, then one of them is resumed by its policy, and the other by hand.
    async fn end(mut self, reason: &str) {
        self.client.until(ON_BOOT, SandboxState::Ready).await.unwrap();
        self.client.until(NEVER, SandboxState::Stopped).await.unwrap();
        self.client.resume(NEVER).await.unwrap();
        self.client.until(NEVER, SandboxState::Ready).await.unwrap();
        for id in [NEVER, ON_BOOT] {
            let history = self.client.history(id).await.unwrap();
            let told: Vec<_> =
                history[6..].iter().map(|event| (event.event_type().as_str_name(), why(event))).collect();
            let expected = [
                ("SANDBOX_STOP_REQUESTED", reason),
                ("EXEC_FAILED", ""),
                ("SANDBOX_STOPPED", reason),
                ("SANDBOX_ACCEPTED", ""),
                ("SANDBOX_READY", ""),
            ];
            assert_eq!(told, expected, "{id}");
            assert_eq!(self.client.run(id, &format!("look-{id}"), "grep -q written kept").await.exit_code, 0);
            self.client.gone(id).await;
        }
        check(&self.home, self.daemon, &[]).await;
    }
}

fn why(event: &SandboxEvent) -> &str {
    match &event.details {
        Some(sandbox_event::Details::SandboxPhase(phase)) => &phase.reason,
        _ => "",
    }
}

/// What a restart of the host makes of a sandbox: everything is dead, and its record is of another boot.
fn restart_host(home: &DaemonHome) {
    for found in home.found() {
        let mut record = found.record.unwrap();
        rustix::process::pidfd_send_signal(record.shim_handle().unwrap(), Signal::KILL).unwrap();
        "another".clone_into(&mut record.boot_id);
        record.write(std::fs::File::open(&found.directory).unwrap()).unwrap();
    }
}

//= promises.control-plane.host-reboots-loses-power
#[test]
fn a_restart_of_the_host_stops_sandboxes_and_resumes_those_whose_policy_says_so() {
    run(async {
        let scene = Scene::set().await.next(restart_host).await;
        scene.end("host_restarted").await;
    });
}

//= promises.control-plane.host-reboots-loses-power
#[test]
fn an_orderly_shutdown_stops_sandboxes_and_the_next_daemon_resumes_those_whose_policy_says_so() {
    run(async {
        let mut scene = Scene::set().await;
        let stopping = scene.own().await.stop_for_shutdown(StopForShutdownRequest {}).await.unwrap().into_inner();
        let ids: Vec<_> = stopping.sandboxes.iter().map(|sandbox| sandbox.sandbox_id.as_str()).collect();
        assert_eq!(ids, [NEVER, ON_BOOT]);
        for id in ids {
            let stopped = scene.client.until(id, SandboxState::Stopped).await.unwrap();
            assert_eq!(stopped.error_code, "");
        }
        scene.next(|_| {}).await.end("host_shutdown").await;
    });
}
