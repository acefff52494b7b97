//! Converts events to messages.

use carrel_store::{Event, EventDetails, EventType, Exec, IdNamespace};

use super::timestamp_of;
use crate::agbox::v1::{self, sandbox_event};
use crate::carrel::v1::PauseChange;

/// Converts an event of a published type.
pub(crate) fn event(event: &Event, namespace: IdNamespace) -> v1::SandboxEvent {
    let sandbox = event.sandbox.seen_from(namespace);
    v1::SandboxEvent {
        event_id: format!("{sandbox}-{}", event.sequence),
        sequence: event.sequence,
        sandbox_id: sandbox.to_owned(),
        event_type: event.kind.number().into(),
        occurred_at: timestamp_of(event.at),
        replay: false,
        snapshot: false,
        sandbox_state: event.state.number().into(),
        details: details(&event.details, namespace),
    }
}

/// Converts a pause or an unpause; `None` for another event.
pub(crate) fn pause(event: &Event, namespace: IdNamespace) -> Option<PauseChange> {
    let paused = match event.kind {
        EventType::SandboxPaused => true,
        EventType::SandboxUnpaused => false,
        _ => return None,
    };
    let EventDetails::Phase { reason, error_message, .. } = &event.details else { return None };
    Some(PauseChange {
        sandbox_id: event.sandbox.seen_from(namespace).to_owned(),
        sequence: event.sequence,
        occurred_at: timestamp_of(event.at),
        paused,
        reason: reason.clone(),
        message: error_message.clone(),
    })
}

/// The event of a running exec in a snapshot, with the sequence of the newest event.
pub(crate) fn running(exec: &Exec, newest: &Event, namespace: IdNamespace) -> v1::SandboxEvent {
    let (sandbox, exec_id) = (newest.sandbox.seen_from(namespace), exec.id.seen_from(namespace));
    v1::SandboxEvent {
        event_id: format!("{sandbox}-snapshot-{exec_id}"),
        sequence: newest.sequence,
        sandbox_id: sandbox.to_owned(),
        event_type: v1::EventType::ExecStarted.into(),
        occurred_at: timestamp_of(exec.created_at),
        replay: true,
        snapshot: true,
        sandbox_state: newest.state.number().into(),
        details: Some(sandbox_event::Details::Exec(v1::ExecEventDetails {
            exec_id: exec_id.to_owned(),
            exec_state: v1::ExecState::Running.into(),
            ..Default::default()
        })),
    }
}

fn details(details: &EventDetails, namespace: IdNamespace) -> Option<sandbox_event::Details> {
    Some(match details {
        EventDetails::None => return None,
        EventDetails::Phase { phase, error_code, error_message, reason } => {
            sandbox_event::Details::SandboxPhase(v1::SandboxPhaseDetails {
                phase: phase.clone(),
                error_code: error_code.clone(),
                error_message: error_message.clone(),
                reason: reason.clone(),
            })
        }
        EventDetails::Exec { exec, state, exit_code, error_code, error_message } => {
            sandbox_event::Details::Exec(v1::ExecEventDetails {
                exec_id: exec.seen_from(namespace).to_owned(),
                exit_code: *exit_code,
                exec_state: state.number().into(),
                error_code: error_code.clone(),
                error_message: error_message.clone(),
            })
        }
        EventDetails::Service { name, error_code, error_message } => {
            sandbox_event::Details::Service(v1::ServiceEventDetails {
                name: name.clone(),
                error_code: error_code.clone(),
                error_message: error_message.clone(),
            })
        }
    })
}

#[cfg(test)]
mod tests {
    use carrel_store::{ExecState, SandboxState};

    use super::*;

    #[test]
    fn numbers_of_states_and_kinds_are_those_of_the_wire() {
        for (own, wire) in SandboxState::ALL.iter().zip(1..) {
            assert_eq!(i32::from(own.number()), wire);
            assert!(v1::SandboxState::try_from(wire).is_ok());
        }
        let published: Vec<_> = EventType::ALL.iter().filter(|kind| kind.is_published()).collect();
        for (own, wire) in published.iter().zip(1..) {
            assert_eq!(i32::from(own.number()), wire);
            assert!(v1::EventType::try_from(wire).is_ok());
        }
        for (own, wire) in ExecState::ALL.iter().zip(1..) {
            assert_eq!(i32::from(own.number()), wire);
            assert!(v1::ExecState::try_from(wire).is_ok());
        }
        let counts = (SandboxState::ALL.len(), published.len(), ExecState::ALL.len());
        assert_eq!(counts, (6, 14, 4));
    }
}
