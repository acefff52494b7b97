//! Modes, in Codex's own words.
//!
//! What asks, tried with 0.166.0: only `untrusted` asks before a command or a patch, whatever the sandbox. `on-request`
//! asks when the model wants to, and `granular` asks after Codex's own sandbox stopped a command. That sandbox is
//! bubblewrap, which cannot run within most containers: every command then fails, even one that was permitted. So there
//! is no sandbox of Codex's in any mode: what protects is that every command and every patch is asked for, and the
//! sandbox around us. Its read-only sandbox would not stop more: what is permitted runs outside of it.
//!
//! That edits are accepted, or declined while it plans, is decided here: Codex has no such modes.

use serde_json::{Value, json};

use crate::agent::{AgentMode, PermissionMode};

/// Put before a prompt where Codex has no mode for plans.
const PLAN_FIRST: &str = "Make a plan first, and change nothing: say step by step what you would do.\n\n";

/// How a thread works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes {
    /// To build, or to plan.
    pub(super) agent: AgentMode,
    /// What it may do unasked.
    pub(super) permission: PermissionMode,
}

/// What happens to a request to change files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edits {
    /// The user is asked.
    Asked,
    /// Permitted in the session's directory.
    Accepted,
    /// Not now.
    Declined,
}

// === impl Modes ===

impl Modes {
    /// When Codex asks.
    pub(super) const fn approval_policy(self) -> &'static str {
        match self.permission {
            PermissionMode::Bypass => "never",
            PermissionMode::Default | PermissionMode::Plan | PermissionMode::AcceptEdits => "untrusted",
        }
    }

    /// Codex's own sandbox, as a thread is opened with it.
    pub(super) const fn sandbox(self) -> &'static str {
        "danger-full-access"
    }

    /// The same, as a turn is begun with it.
    pub(super) fn sandbox_policy(self) -> Value {
        json!({"type": "dangerFullAccess"})
    }

    /// What happens to a request to change files: neither mode is one of Codex's.
    pub(super) const fn edits(self) -> Edits {
        match self.permission {
            PermissionMode::Plan => Edits::Declined,
            PermissionMode::AcceptEdits => Edits::Accepted,
            PermissionMode::Default | PermissionMode::Bypass => Edits::Asked,
        }
    }

    /// Whether it plans, by either mode.
    pub(super) fn plans(self) -> bool {
        self.agent == AgentMode::Plan || self.permission == PermissionMode::Plan
    }

    /// Codex's mode for plans, or the one without. It needs the model's name, and takes the effort from here too.
    pub(super) fn collaboration(self, model: &str, effort: Option<&str>) -> Value {
        let mode = if self.plans() { "plan" } else { "default" };
        json!({"mode": mode, "settings": {"model": model, "reasoning_effort": effort, "developer_instructions": null}})
    }
}

/// The prompt where Codex has no mode for plans.
pub(super) fn plan_first(text: &str) -> String {
    format!("{PLAN_FIRST}{text}")
}
