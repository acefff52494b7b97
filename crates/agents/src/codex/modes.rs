//! Modes of Codex.
//!
//! Tested with 0.166.0: only `untrusted` asks before every command and patch, whatever the sandbox. `on-request` asks
//! when the model decides to, and `granular` asks after Codex's own sandbox denied a command. That sandbox is
//! bubblewrap, which cannot run in most containers: every command then fails, even a permitted one. So Codex's sandbox
//! is off in all modes; protection comes from the permission requests and from the sandbox around the server. Its
//! read-only sandbox would add nothing: permitted commands run outside of it.
//!
//! Codex has no modes that accept or decline edits, so this driver decides about them.

use serde_json::{Value, json};

use crate::agent::{AgentMode, PermissionMode};

/// Prefix of a prompt if Codex has no plan mode.
const PLAN_FIRST: &str = "Make a plan first, and change nothing: say step by step what you would do.\n\n";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadModes {
    pub(super) agent: AgentMode,
    pub(super) permission: PermissionMode,
}

/// How requests to change files are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EditPolicy {
    /// Ask the user.
    Ask,
    /// Accept inside the session's directory.
    Accept,
    /// Decline all.
    Decline,
}

// === impl ThreadModes ===

impl ThreadModes {
    /// Codex's approval policy.
    pub(super) const fn approval_policy(self) -> &'static str {
        match self.permission {
            PermissionMode::Bypass => "never",
            PermissionMode::Default | PermissionMode::Plan | PermissionMode::AcceptEdits => "untrusted",
        }
    }

    /// Codex's sandbox, as a parameter of a thread.
    pub(super) const fn sandbox(self) -> &'static str {
        "danger-full-access"
    }

    /// Codex's sandbox, as a parameter of a turn.
    pub(super) fn sandbox_policy(self) -> Value {
        json!({"type": "dangerFullAccess"})
    }

    pub(super) const fn edits(self) -> EditPolicy {
        match self.permission {
            PermissionMode::Plan => EditPolicy::Decline,
            PermissionMode::AcceptEdits => EditPolicy::Accept,
            PermissionMode::Default | PermissionMode::Bypass => EditPolicy::Ask,
        }
    }

    /// Whether either mode is plan.
    pub(super) fn plans(self) -> bool {
        self.agent == AgentMode::Plan || self.permission == PermissionMode::Plan
    }

    /// Codex's collaboration mode. It requires the model's name, and also sets the effort.
    pub(super) fn collaboration(self, model: &str, effort: Option<&str>) -> Value {
        let mode = if self.plans() { "plan" } else { "default" };
        json!({"mode": mode, "settings": {"model": model, "reasoning_effort": effort, "developer_instructions": null}})
    }
}

/// A prompt for a Codex without plan mode.
pub(super) fn plan_first_prompt(text: &str) -> String {
    format!("{PLAN_FIRST}{text}")
}
