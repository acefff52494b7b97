//! Converts requests to drafts.

use carrel_control::spec::{
    DraftCopy, DraftDuration, DraftHealthcheck, DraftMount, DraftPort, DraftService, RestartPolicy, SpecDraft,
};

use crate::agbox::v1;
use crate::carrel::v1 as own;

/// Converts a spec to a draft.
pub(crate) fn draft(spec: v1::CreateSpec) -> SpecDraft {
    SpecDraft {
        image: spec.image,
        mounts: spec.mounts.into_iter().map(mount).collect(),
        copies: spec.copies.into_iter().map(copy).collect(),
        builtin_tools: spec.builtin_tools,
        services: spec.companion_containers.into_iter().map(service).collect(),
        labels: spec.labels,
        envs: spec.envs,
        idle_ttl: spec.idle_ttl.map(duration),
        ports: spec.ports.into_iter().map(port).collect(),
        command: spec.command,
        cpu_limit: spec.cpu_limit,
        memory_limit: spec.memory_limit,
        disk_limit: spec.disk_limit,
        gpus: spec.gpus,
        restart: None,
    }
}

/// Converts a restart policy; `None` leaves it to the spec.
pub(crate) fn restart_policy(policy: own::RestartPolicy) -> Option<RestartPolicy> {
    match policy {
        own::RestartPolicy::Unspecified => None,
        own::RestartPolicy::No => Some(RestartPolicy::No),
        own::RestartPolicy::OnBoot => Some(RestartPolicy::OnBoot),
    }
}

fn mount(mount: v1::MountSpec) -> DraftMount {
    DraftMount { source: mount.source, target: mount.target, writable: mount.writable }
}

fn copy(copy: v1::CopySpec) -> DraftCopy {
    DraftCopy { source: copy.source, target: copy.target, exclude_patterns: copy.exclude_patterns }
}

fn port(port: v1::PortMapping) -> DraftPort {
    DraftPort { container_port: port.container_port, host_port: port.host_port, protocol: port.protocol }
}

fn service(service: v1::CompanionContainerSpec) -> DraftService {
    DraftService {
        name: service.name,
        image: service.image,
        envs: service.envs,
        healthcheck: service.healthcheck.map(healthcheck),
        post_start_on_primary: service.post_start_on_primary,
        command: service.command,
        cpu_limit: service.cpu_limit,
        memory_limit: service.memory_limit,
        disk_limit: service.disk_limit,
    }
}

fn healthcheck(check: v1::HealthcheckConfig) -> DraftHealthcheck {
    DraftHealthcheck {
        test: check.test,
        interval: check.interval.map(duration),
        timeout: check.timeout.map(duration),
        retries: check.retries,
        start_period: check.start_period.map(duration),
        start_interval: check.start_interval.map(duration),
    }
}

fn duration(duration: prost_types::Duration) -> DraftDuration {
    DraftDuration { seconds: duration.seconds, nanos: duration.nanos }
}
