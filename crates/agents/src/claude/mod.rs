//! Claude Code: one process per session, which exchanges JSON lines.

mod answer;
mod conversation;
pub mod convert;
mod grants;
mod launch;
mod models;
mod plans;
mod process;

use async_trait::async_trait;

use self::{conversation::ClaudeConversation, models::ModelCache};
use crate::agent::{
    AgentDriver, AgentError, AgentId, AgentProgram, Conversation, ConversationOptions, Models, PermissionMode,
};

/// Claude Code.
#[derive(Debug, Default)]
pub struct Claude {
    models: ModelCache,
}

// === impl Claude ===

#[async_trait]
impl AgentDriver for Claude {
    fn id(&self) -> AgentId {
        AgentId::Claude
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &[PermissionMode::Plan, PermissionMode::AcceptEdits, PermissionMode::Bypass]
    }

    fn plan_is_permission_mode(&self) -> bool {
        true
    }

    async fn models(&self, program: &AgentProgram) -> Result<Models, AgentError> {
        self.models.get(program).await
    }

    async fn open(&self, options: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        Ok(Box::new(ClaudeConversation::open(&options)?))
    }
}
