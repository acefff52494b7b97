//! Claude Code: one process for each session, which speaks JSON lines both ways.

mod answer;
mod conversation;
pub mod convert;
mod grant;
mod launch;
mod models;
mod pipe;
mod plans;

use async_trait::async_trait;

use self::{conversation::ClaudeConversation, models::Known};
use crate::agent::{Agent, AgentError, AgentId, Conversation, Models, Opening, PermissionMode, Place};

/// Claude Code.
#[derive(Debug, Default)]
pub struct Claude {
    models: Known,
}

// === impl Claude ===

#[async_trait]
impl Agent for Claude {
    fn id(&self) -> AgentId {
        AgentId::Claude
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &[PermissionMode::Plan, PermissionMode::AcceptEdits, PermissionMode::Bypass]
    }

    fn plan_is_a_permission(&self) -> bool {
        true
    }

    async fn models(&self, place: &Place) -> Result<Models, AgentError> {
        self.models.get(place).await
    }

    async fn open(&self, opening: Opening) -> Result<Box<dyn Conversation>, AgentError> {
        Ok(Box::new(ClaudeConversation::open(&opening)?))
    }
}
