//! Fixtures for unit tests.

use carrel_store::{DesiredState, Pairs, Sandbox, SandboxId, SandboxState, Timestamp};

/// A pending sandbox.
pub(crate) fn sandbox() -> Sandbox {
    Sandbox {
        id: SandboxId::new("sandbox").unwrap(),
        owner: 0,
        state: SandboxState::Pending,
        desired: DesiredState::Ready,
        reason: String::new(),
        incarnation: "first".to_owned(),
        disk: "first".to_owned(),
        journal: 0,
        spec: "{}".to_owned(),
        image: "host".to_owned(),
        labels: Pairs::new(),
        idle_ms: None,
        created_at: Timestamp(1),
        state_changed_at: Timestamp(1),
        active_at: Timestamp(1),
        error_code: String::new(),
        error_message: String::new(),
        last_sequence: 0,
    }
}
