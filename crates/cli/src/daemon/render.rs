//! Renders what the daemon returns: lines for people, JSON objects for programs.

use carrel_api::agbox::v1::sandbox_event::Details;
use carrel_api::agbox::v1::{
    CreateSpec, EventType, ExecState, ExecStatus, PortMapping, PortProtocol, SandboxEvent, SandboxHandle, SandboxState,
};
use carrel_api::carrel::v1::{DesiredState, InspectSandboxResponse, PauseChange, RestartPolicy, Running};
use prost_types::{Duration, Timestamp};
use serde_json::{Value, json};

use crate::timestamp::UnixMillis;

/// The name of a state.
pub(crate) fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Unspecified => "unknown",
        SandboxState::Pending => "pending",
        SandboxState::Ready => "ready",
        SandboxState::Failed => "failed",
        SandboxState::Stopped => "stopped",
        SandboxState::Deleting => "deleting",
        SandboxState::Deleted => "deleted",
    }
}

/// A protobuf timestamp; 1970 if there is none.
pub(crate) fn timestamp(at: Option<&Timestamp>) -> UnixMillis {
    let at = at.copied().unwrap_or_default();
    let (seconds, nanos) = (u64::try_from(at.seconds).unwrap_or(0), u64::try_from(at.nanos).unwrap_or(0));
    UnixMillis(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

/// A sandbox as JSON.
pub(crate) fn handle(handle: &SandboxHandle) -> Value {
    let failed = !handle.error_code.is_empty() || !handle.error_message.is_empty();
    json!({
        "id": handle.sandbox_id,
        "state": state(handle.state()),
        "image": handle.image,
        "labels": handle.labels,
        "sequence": handle.last_event_sequence,
        "created_at": timestamp(handle.created_at.as_ref()).to_string(),
        "state_changed_at": timestamp(handle.state_changed_at.as_ref()).to_string(),
        "error": failed.then(|| json!({"code": handle.error_code, "message": handle.error_message})),
    })
}

/// A sandbox as JSON, with its pause, its stop reason and its conditions.
pub(crate) fn status(response: &InspectSandboxResponse) -> Value {
    let mut value = response.sandbox.as_ref().map(handle).unwrap_or_else(|| json!({}));
    if let Some(object) = value.as_object_mut() {
        object.extend(paused(response.running.as_ref()).map(|(key, value)| (key.to_owned(), value)));
        object.insert("reason".to_owned(), json!(response.reason));
        object.insert("ports".to_owned(), response.spec.as_ref().map_or_else(|| json!([]), ports));
        object.insert("conditions".to_owned(), conditions(response));
    }
    value
}

fn paused(running: Option<&Running>) -> [(&'static str, Value); 5] {
    let text = |of: fn(&Running) -> &String| running.map(of).filter(|text| !text.is_empty());
    [
        ("paused", json!(running.map(|running| running.paused))),
        ("pause_reason", json!(text(|running| &running.pause_reason))),
        ("pause_message", json!(text(|running| &running.pause_message))),
        ("host_free", json!(running.and_then(|running| running.host_free))),
        ("host_reserve", json!(running.and_then(|running| running.host_reserve))),
    ]
}

/// The state of a paused sandbox with its reason; none if it is not paused.
pub(crate) fn pause_state(running: &Running) -> Option<String> {
    let why = match (running.pause_message.as_str(), running.pause_reason.as_str()) {
        // A daemon of an earlier release.
        ("", "") => "by user",
        ("", reason) => reason,
        (message, _) => message,
    };
    running.paused.then(|| format!("paused ({why})"))
}

/// The event type of a pause or unpause.
fn pause_kind(pause: &PauseChange) -> &'static str {
    if pause.paused { "SANDBOX_PAUSED" } else { "SANDBOX_UNPAUSED" }
}

/// A pause or unpause as JSON.
pub(crate) fn pause(pause: &PauseChange, position: Option<u64>) -> Value {
    let mut value = json!({
        "sandbox": pause.sandbox_id,
        "sequence": pause.sequence,
        "type": pause_kind(pause),
        "at": timestamp(pause.occurred_at.as_ref()).to_string(),
        "state": state(SandboxState::Ready),
        "details": {"reason": pause.reason, "message": pause.message},
    });
    if let (Some(position), Some(object)) = (position, value.as_object_mut()) {
        object.insert("position".to_owned(), position.into());
    }
    value
}

/// A pause or unpause as a line.
pub(crate) fn pause_line(pause: &PauseChange, named: bool) -> String {
    let mut words = vec![timestamp(pause.occurred_at.as_ref()).to_string()];
    if named {
        words.push(pause.sandbox_id.clone());
    }
    words.extend([pause.sequence.to_string(), pause_kind(pause).to_owned()]);
    words.extend([&pause.reason, &pause.message].into_iter().filter(|text| !text.is_empty()).cloned());
    format!("{}\n", carrel_changes::EscapedLine(&words.join("  ")))
}

/// The full inspection of a sandbox as JSON.
pub(crate) fn inspected(response: &InspectSandboxResponse) -> Value {
    let mut value = response.sandbox.as_ref().map(handle).unwrap_or_else(|| json!({}));
    let limits = response.limits.unwrap_or_default();
    let more = [
        ("desired", json!(desired(response.desired()))),
        ("reason", json!(response.reason)),
        ("restart", json!(restart(response.restart()))),
        ("user", json!(response.owner)),
        ("incarnation", json!(response.incarnation)),
        ("idle_ms", json!(response.idle_ttl.as_ref().map(millis))),
        ("active_at", json!(response.active_at.as_ref().map(|at| timestamp(Some(at)).to_string()))),
        ("limits", json!({"memory": limits.memory, "disk": limits.disk, "cpu_millis": limits.cpu_millis})),
        ("unenforced_limits", json!(response.running.as_ref().map(unenforced))),
        ("conditions", conditions(response)),
        ("spec", response.spec.as_ref().map(spec).unwrap_or_default()),
        ("execs", response.execs.iter().map(exec).collect()),
    ];
    if let Some(object) = value.as_object_mut() {
        object.extend(
            more.into_iter().chain(paused(response.running.as_ref())).map(|(key, value)| (key.to_owned(), value)),
        );
    }
    value
}

/// The conditions of a sandbox: what is not as requested and is retried.
pub(crate) fn conditions(response: &InspectSandboxResponse) -> Value {
    response.conditions.iter().map(|one| json!({"type": one.r#type, "message": one.message})).collect()
}

fn unenforced(running: &Running) -> Vec<&str> {
    running.unenforced_limits.iter().map(|one| one.limit.as_str()).collect()
}

fn desired(state: DesiredState) -> &'static str {
    match state {
        DesiredState::Unspecified => "unknown",
        DesiredState::Ready => "ready",
        DesiredState::Stopped => "stopped",
        DesiredState::Deleted => "deleted",
    }
}

fn restart(policy: RestartPolicy) -> &'static str {
    match policy {
        RestartPolicy::Unspecified | RestartPolicy::No => "no",
        RestartPolicy::OnBoot => "on-boot",
    }
}

fn millis(time: &Duration) -> u64 {
    let (seconds, nanos) = (u64::try_from(time.seconds).unwrap_or(0), u64::try_from(time.nanos).unwrap_or(0));
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}

fn spec(spec: &CreateSpec) -> Value {
    let services: Vec<_> =
        spec.companion_containers.iter().map(|one| json!({"name": one.name, "image": one.image})).collect();
    json!({
        "image": spec.image,
        "command": spec.command,
        "mounts": spec.mounts.iter().map(|mount| json!({
            "source": mount.source, "target": mount.target, "writable": mount.writable,
        })).collect::<Vec<_>>(),
        "copies": spec.copies.iter().map(|copy| json!({
            "source": copy.source, "target": copy.target, "exclude_patterns": copy.exclude_patterns,
        })).collect::<Vec<_>>(),
        "ports": ports(spec),
        "builtin_tools": spec.builtin_tools,
        "envs": spec.envs,
        "services": services,
    })
}

/// Published ports as JSON.
fn ports(spec: &CreateSpec) -> Value {
    let object = |port: &PortMapping| json!({"host": port.host_port, "inside": port.container_port, "protocol": protocol(port.protocol())});
    spec.ports.iter().map(object).collect()
}

fn protocol(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
        PortProtocol::Sctp => "sctp",
    }
}

fn exec(exec: &ExecStatus) -> Value {
    json!({"id": exec.exec_id, "state": exec_state(exec.state()), "command": exec.command, "cwd": exec.cwd})
}

fn exec_state(state: ExecState) -> &'static str {
    match state {
        ExecState::Unspecified => "unknown",
        ExecState::Running => "running",
        ExecState::Finished => "finished",
        ExecState::Failed => "failed",
        ExecState::Cancelled => "cancelled",
    }
}

/// The name of an event type. Services have their current name, not that of the published API.
fn kind(kind: EventType) -> &'static str {
    match kind {
        EventType::CompanionContainerReady => "SERVICE_READY",
        EventType::CompanionContainerFailed => "SERVICE_FAILED",
        kind => kind.as_str_name(),
    }
}

/// An event as JSON.
pub(crate) fn event(event: &SandboxEvent, position: Option<u64>) -> Value {
    let details = match &event.details {
        None => Value::Null,
        Some(Details::SandboxPhase(phase)) => json!({
            "phase": phase.phase,
            "reason": phase.reason,
            "error_code": phase.error_code,
            "error_message": phase.error_message,
        }),
        Some(Details::Exec(exec)) => json!({
            "exec": exec.exec_id,
            "state": exec_state(exec.exec_state()),
            "exit_code": exec.exit_code,
            "error_code": exec.error_code,
            "error_message": exec.error_message,
        }),
        Some(Details::Service(service)) => json!({
            "service": service.name,
            "error_code": service.error_code,
            "error_message": service.error_message,
        }),
    };
    let mut value = json!({
        "sandbox": event.sandbox_id,
        "sequence": event.sequence,
        "type": kind(event.event_type()),
        "at": timestamp(event.occurred_at.as_ref()).to_string(),
        "state": state(event.sandbox_state()),
        "details": details,
    });
    if let (Some(position), Some(object)) = (position, value.as_object_mut()) {
        object.insert("position".to_owned(), position.into());
    }
    value
}

/// An event as a line: time, sandbox if `named`, sequence, type, details.
pub(crate) fn event_line(event: &SandboxEvent, named: bool) -> String {
    let mut words = vec![timestamp(event.occurred_at.as_ref()).to_string()];
    if named {
        words.push(event.sandbox_id.clone());
    }
    words.extend([event.sequence.to_string(), kind(event.event_type()).to_owned()]);
    let push = |words: &mut Vec<String>, code: &str, message: &str| {
        words.extend([code, message].into_iter().filter(|text| !text.is_empty()).map(str::to_owned));
    };
    match &event.details {
        None => {}
        Some(Details::SandboxPhase(phase)) => {
            push(&mut words, &phase.phase, &phase.reason);
            push(&mut words, &phase.error_code, &phase.error_message);
        }
        Some(Details::Exec(exec)) => {
            words.push(exec.exec_id.clone());
            if matches!(exec.exec_state(), ExecState::Finished | ExecState::Failed) {
                words.push(format!("exit {}", exec.exit_code));
            }
            push(&mut words, &exec.error_code, &exec.error_message);
        }
        Some(Details::Service(service)) => {
            words.push(service.name.clone());
            push(&mut words, &service.error_code, &service.error_message);
        }
    }
    format!("{}\n", carrel_changes::EscapedLine(&words.join("  ")))
}

/// A published port, as Docker shows it.
pub(crate) fn port(host: impl std::fmt::Display, inside: impl std::fmt::Display) -> String {
    format!("127.0.0.1:{host}->{inside}")
}

#[cfg(test)]
mod tests {
    use carrel_api::agbox::v1::{ExecEventDetails, SandboxPhaseDetails};

    use super::*;

    fn example(kind: EventType, details: Option<Details>) -> SandboxEvent {
        SandboxEvent {
            sandbox_id: "web1".to_owned(),
            sequence: 7,
            event_type: kind.into(),
            occurred_at: Some(Timestamp { seconds: 1_709_210_096, nanos: 7_000_000 }),
            sandbox_state: SandboxState::Ready.into(),
            details,
            ..SandboxEvent::default()
        }
    }

    #[test]
    fn the_type_of_an_event_has_the_name_that_the_daemon_logs() {
        for logged in carrel_store::EventType::ALL.iter().filter(|kind| kind.is_published()) {
            let shown = kind(EventType::try_from(i32::from(logged.number())).unwrap());
            assert_eq!(shown.replace('_', "").to_lowercase(), format!("{logged:?}").to_lowercase());
        }
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let failed = ExecEventDetails {
            exec_id: "exec".to_owned(),
            exit_code: 127,
            exec_state: ExecState::Failed.into(),
            error_code: "EXEC_RUN_FAILED".to_owned(),
            error_message: "no\u{1b}[2J\nprogram".to_owned(),
        };
        assert_eq!(
            event_line(&example(EventType::ExecFailed, Some(Details::Exec(failed))), false),
            "2024-02-29T12:34:56.007Z  7  EXEC_FAILED  exec  exit 127  EXEC_RUN_FAILED  no\\x1b[2J\\x0aprogram\n"
        );
        assert_eq!(
            event_line(&example(EventType::SandboxReady, None), true),
            "2024-02-29T12:34:56.007Z  web1  7  SANDBOX_READY\n"
        );
        let phase = SandboxPhaseDetails { reason: "idle_ttl".to_owned(), ..SandboxPhaseDetails::default() };
        assert_eq!(
            event_line(&example(EventType::SandboxStopped, Some(Details::SandboxPhase(phase))), false),
            "2024-02-29T12:34:56.007Z  7  SANDBOX_STOPPED  idle_ttl\n"
        );
    }

    #[test]
    fn a_pause_is_rendered_like_an_event() {
        let paused = PauseChange {
            sandbox_id: "web1".to_owned(),
            sequence: 9,
            occurred_at: Some(Timestamp { seconds: 1_709_210_096, nanos: 7_000_000 }),
            paused: true,
            reason: "host_disk".to_owned(),
            message: "host disk low: 1 GiB free, 2 GiB reserved".to_owned(),
        };
        assert_eq!(
            pause_line(&paused, true),
            "2024-02-29T12:34:56.007Z  web1  9  SANDBOX_PAUSED  host_disk  host disk low: 1 GiB free, 2 GiB reserved\n"
        );
        assert_eq!(
            pause(&paused, Some(4)),
            json!({
                "sandbox": "web1", "sequence": 9, "type": "SANDBOX_PAUSED", "at": "2024-02-29T12:34:56.007Z",
                "state": "ready", "position": 4,
                "details": {"reason": "host_disk", "message": "host disk low: 1 GiB free, 2 GiB reserved"},
            })
        );
        let unpaused = PauseChange { paused: false, reason: String::new(), message: String::new(), ..paused };
        assert_eq!(pause_line(&unpaused, false), "2024-02-29T12:34:56.007Z  9  SANDBOX_UNPAUSED\n");
    }

    #[test]
    fn an_event_as_json_has_all_fields() {
        let value = event(&example(EventType::CompanionContainerReady, None), Some(9));
        assert_eq!(
            value,
            json!({
                "sandbox": "web1", "sequence": 7, "type": "SERVICE_READY", "at": "2024-02-29T12:34:56.007Z",
                "state": "ready", "details": null, "position": 9,
            })
        );
    }

    #[test]
    fn the_status_has_the_published_ports() {
        let port = PortMapping { host_port: 8080, container_port: 80, ..PortMapping::default() };
        let spec = Some(CreateSpec { ports: vec![port], ..CreateSpec::default() });
        let value = status(&InspectSandboxResponse { spec, ..InspectSandboxResponse::default() });
        assert_eq!(value["ports"], json!([{"host": 8080, "inside": 80, "protocol": "tcp"}]));
        assert_eq!(status(&InspectSandboxResponse::default())["ports"], json!([]));
    }

    #[test]
    fn a_sandbox_without_an_error_has_a_null_error() {
        let value = handle(&SandboxHandle { sandbox_id: "web1".to_owned(), ..SandboxHandle::default() });
        assert_eq!((value.get("error"), value.get("state")), (Some(&Value::Null), Some(&json!("unknown"))));
        let value = handle(&SandboxHandle { error_code: "X".to_owned(), ..SandboxHandle::default() });
        assert_eq!(value.pointer("/error/code"), Some(&json!("X")));
    }
}
