//! Converts sandboxes to messages.

use carrel_control::spec::{Healthcheck, Limits, RestartPolicy, Service, Spec};
use carrel_store::{DesiredState, IdNamespace, Sandbox, SandboxState};

use super::{duration, timestamp_of};
use crate::agbox::v1;
use crate::carrel::v1 as own;

/// Converts a sandbox.
pub(crate) fn handle(sandbox: &Sandbox, spec: &Spec, namespace: IdNamespace) -> v1::SandboxHandle {
    // A sandbox that exited by itself is stopped, and has an error nevertheless.
    let has_error = matches!(sandbox.state, SandboxState::Failed | SandboxState::Stopped);
    let error_text = |text: &str| if has_error { text.to_owned() } else { String::new() };
    v1::SandboxHandle {
        sandbox_id: sandbox.id.seen_from(namespace).to_owned(),
        state: sandbox.state.number().into(),
        last_event_sequence: sandbox.last_sequence,
        companion_containers: spec.services.iter().map(service).collect(),
        labels: sandbox.labels.clone(),
        created_at: timestamp_of(sandbox.created_at),
        image: sandbox.image.clone(),
        error_code: error_text(&sandbox.error_code),
        error_message: error_text(&sandbox.error_message),
        state_changed_at: timestamp_of(sandbox.state_changed_at),
    }
}

/// Converts a validated spec.
pub(crate) fn create_spec(spec: &Spec) -> v1::CreateSpec {
    let mounts = spec.mounts.iter().map(|mount| v1::MountSpec {
        source: mount.source.display().to_string(),
        target: mount.target.clone(),
        writable: mount.writable,
    });
    let copies = spec.copies.iter().map(|copy| v1::CopySpec {
        source: copy.source.display().to_string(),
        target: copy.target.clone(),
        exclude_patterns: copy.exclude_patterns.clone(),
    });
    let ports = spec.ports.iter().map(|port| v1::PortMapping {
        container_port: port.inside.into(),
        host_port: port.host.into(),
        protocol: v1::PortProtocol::Tcp.into(),
    });
    let bytes = |limit: Option<u64>| limit.map(|bytes| bytes.to_string()).unwrap_or_default();
    v1::CreateSpec {
        image: spec.image.clone(),
        mounts: mounts.collect(),
        copies: copies.collect(),
        builtin_tools: spec.builtin_tools.clone(),
        companion_containers: spec.services.iter().map(service).collect(),
        labels: spec.labels.clone(),
        envs: spec.envs.clone(),
        idle_ttl: spec.idle_ttl.map(duration),
        ports: ports.collect(),
        command: spec.command.clone(),
        cpu_limit: spec.limits.cpu_millis.map(processors).unwrap_or_default(),
        memory_limit: bytes(spec.limits.memory),
        disk_limit: bytes(spec.limits.disk),
        gpus: String::new(),
    }
}

/// Converts resource limits.
pub(crate) fn limits(limits: &Limits) -> own::Limits {
    own::Limits { cpu_millis: limits.cpu_millis, memory: limits.memory, disk: limits.disk }
}

/// Converts a restart policy.
pub(crate) fn restart(policy: RestartPolicy) -> own::RestartPolicy {
    match policy {
        RestartPolicy::No => own::RestartPolicy::No,
        RestartPolicy::OnBoot => own::RestartPolicy::OnBoot,
    }
}

/// Converts the desired state.
pub(crate) fn desired(desired: DesiredState) -> own::DesiredState {
    match desired {
        DesiredState::Ready => own::DesiredState::Ready,
        DesiredState::Stopped => own::DesiredState::Stopped,
        DesiredState::Deleted => own::DesiredState::Deleted,
    }
}

fn service(service: &Service) -> v1::CompanionContainerSpec {
    v1::CompanionContainerSpec {
        name: service.name.clone(),
        image: service.image.clone(),
        envs: service.envs.clone(),
        healthcheck: service.healthcheck.as_ref().map(healthcheck),
        post_start_on_primary: service.post_start_on_primary.clone(),
        command: service.command.clone(),
        cpu_limit: service.cpu_limit.clone(),
        memory_limit: service.memory_limit.clone(),
        disk_limit: service.disk_limit.clone(),
    }
}

fn healthcheck(check: &Healthcheck) -> v1::HealthcheckConfig {
    v1::HealthcheckConfig {
        test: check.test.clone(),
        interval: check.interval.map(duration),
        timeout: check.timeout.map(duration),
        retries: check.retries,
        start_period: check.start_period.map(duration),
        start_interval: check.start_interval.map(duration),
    }
}

fn processors(millis: u32) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_written_as_people_write_them() {
        let texts = [1, 500, 1000, 1250, 16_000, 10].map(processors);
        assert_eq!(texts, ["0.001", "0.5", "1", "1.25", "16", "0.01"]);
    }
}
