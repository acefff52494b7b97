//! Claude Code: one process per session, which exchanges JSON lines.

mod answer;
mod conversation;
pub mod convert;
mod grants;
mod launch;
mod models;
mod plans;
mod process;

use std::time::Duration;

use async_trait::async_trait;

use self::{conversation::ClaudeConversation, models::ModelCache};
use crate::agent::{
    AgentDriver, AgentError, AgentId, AgentProgram, Conversation, ConversationOptions, Models, PermissionMode,
};

/// Claude Code.
#[derive(Debug)]
pub struct Claude {
    models: ModelCache,
    change_timeout: Duration,
}

/// Timeout of a change of mode or model. The session is blocked meanwhile.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);

// === impl Claude ===

impl Claude {
    /// Waits this long for the answer to a change of mode or model.
    #[must_use]
    pub fn with_change_timeout(self, change_timeout: Duration) -> Self {
        Self { change_timeout, ..self }
    }
}

impl Default for Claude {
    fn default() -> Self {
        Self { models: ModelCache::default(), change_timeout: CHANGE_TIMEOUT }
    }
}

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
        Ok(Box::new(ClaudeConversation::open(&options, self.change_timeout)?))
    }
}
