//! Facts as one can read and compare them.

use carrel_agents::agent::{Fact, Gone};
use serde_json::{Value, json, value::RawValue};

/// A fact as JSON, without the agent's own words for it.
pub(crate) fn rendered(fact: &Fact) -> Value {
    match fact {
        Fact::Event(data, _) => json!(data),
        Fact::NativeId(id) => json!({"nativeId": id}),
        Fact::Modes(agent, permission) => json!({"modes": [agent, permission]}),
        Fact::TurnStarted => json!("turnStarted"),
        Fact::TurnEnded { outcome, message, usage, .. } => {
            json!({"turnEnded": {"outcome": outcome, "message": message, "usage": usage}})
        }
        Fact::PermissionAsked(asked, _) => json!({"permissionAsked": asked}),
        Fact::QuestionAsked(asked, _) => json!({"questionAsked": asked}),
        Fact::Withdrawn(id) => json!({"withdrawn": id}),
        Fact::Gone(Gone::Exited(exit)) => json!({"exited": [exit.code, exit.signal, exit.stderr]}),
        Fact::Gone(Gone::Finished) => json!("finished"),
        Fact::Gone(Gone::ServerExited(exit)) => json!({"serverExited": [exit.code, exit.signal, exit.stderr]}),
    }
}

/// The agent's own words for a fact.
pub(crate) fn raw(fact: &Fact) -> Option<&RawValue> {
    match fact {
        Fact::Event(_, raw)
        | Fact::TurnEnded { raw, .. }
        | Fact::PermissionAsked(_, raw)
        | Fact::QuestionAsked(_, raw) => raw.as_deref(),
        Fact::NativeId(_) | Fact::Modes(..) | Fact::TurnStarted | Fact::Withdrawn(_) | Fact::Gone(_) => None,
    }
}

/// Whether a fact has the agent's own words beside it.
pub(crate) const fn has_raw(fact: &Fact) -> bool {
    !matches!(fact, Fact::NativeId(_) | Fact::Modes(..) | Fact::TurnStarted | Fact::Withdrawn(_) | Fact::Gone(_))
}
