//! Renders events for comparison.

use carrel_agents::agent::{AgentEvent, AgentExit};
use serde_json::{Value, json, value::RawValue};

/// An event as JSON, without its raw message.
pub(crate) fn rendered(event: &AgentEvent) -> Value {
    match event {
        AgentEvent::Event(data, _) => json!(data),
        AgentEvent::NativeId(id) => json!({"nativeId": id}),
        AgentEvent::Modes(agent, permission) => json!({"modes": [agent, permission]}),
        AgentEvent::TurnStarted => json!("turnStarted"),
        AgentEvent::TurnEnded { outcome, message, usage, .. } => {
            json!({"turnEnded": {"outcome": outcome, "message": message, "usage": usage}})
        }
        AgentEvent::PermissionAsked(requested, _) => json!({"permissionAsked": requested}),
        AgentEvent::QuestionAsked(requested, _) => json!({"questionAsked": requested}),
        AgentEvent::Withdrawn(id) => json!({"withdrawn": id}),
        AgentEvent::Exited(AgentExit::Exited(exit)) => json!({"exited": [exit.code, exit.signal, exit.stderr]}),
        AgentEvent::Exited(AgentExit::Finished) => json!("finished"),
        AgentEvent::Exited(AgentExit::ServerExited(exit)) => {
            json!({"serverExited": [exit.code, exit.signal, exit.stderr]})
        }
    }
}

/// The raw message of an event.
pub(crate) fn raw(event: &AgentEvent) -> Option<&RawValue> {
    match event {
        AgentEvent::Event(_, raw)
        | AgentEvent::TurnEnded { raw, .. }
        | AgentEvent::PermissionAsked(_, raw)
        | AgentEvent::QuestionAsked(_, raw) => raw.as_deref(),
        AgentEvent::NativeId(_)
        | AgentEvent::Modes(..)
        | AgentEvent::TurnStarted
        | AgentEvent::Withdrawn(_)
        | AgentEvent::Exited(_) => None,
    }
}

/// Whether an event should have a raw message.
pub(crate) const fn has_raw(event: &AgentEvent) -> bool {
    !matches!(
        event,
        AgentEvent::NativeId(_)
            | AgentEvent::Modes(..)
            | AgentEvent::TurnStarted
            | AgentEvent::Withdrawn(_)
            | AgentEvent::Exited(_)
    )
}
