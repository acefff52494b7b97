//! A conversation with Claude Code.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use uuid::Uuid;

use super::{
    answer, launch,
    pipe::{Patience, Pipe},
};
use crate::agent::{AgentError, AgentMode, Answer, Conversation, Fact, Opening, PermissionMode, Prompt};

/// A conversation, for which a process runs.
#[derive(Debug)]
pub(super) struct ClaudeConversation {
    pipe: Pipe,
    id: String,
    permission_mode: PermissionMode,
    model: Option<String>,
    variant: Option<String>,
    /// Whether it was started to bypass permissions: only then it can.
    may_bypass: bool,
}

/// For how long a change may take. Meanwhile the session does nothing else.
const CHANGE: Duration = Duration::from_secs(5);

// === impl ClaudeConversation ===

impl ClaudeConversation {
    pub(super) fn open(opening: &Opening) -> Result<Self, AgentError> {
        let id = opening.native_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let start = launch::conversation(opening, &id, rustix::process::getuid().is_root());
        let may_bypass = launch::mode(opening.agent_mode, opening.permission_mode) == launch::BYPASS;
        let mut pipe = Pipe::start(&start)?;
        pipe.converter.works(opening.agent_mode);
        pipe.converter.bypasses(may_bypass);
        pipe.tell("initialize", json!({}))?;
        let (model, variant) = (opening.model.clone(), opening.variant.clone());
        Ok(Self { pipe, id, permission_mode: opening.permission_mode, model, variant, may_bypass })
    }

    /// How the agent goes on once its plan is approved.
    const fn mode_after_plan(&self) -> &'static str {
        match self.permission_mode {
            PermissionMode::AcceptEdits => "acceptEdits",
            PermissionMode::Default | PermissionMode::Plan | PermissionMode::Bypass => "default",
        }
    }
}

#[async_trait]
impl Conversation for ClaudeConversation {
    fn native_id(&self) -> Option<String> {
        Some(self.pipe.converter.native_id().unwrap_or(&self.id).to_owned())
    }

    async fn next(&mut self, facts: &mut Vec<Fact>) {
        self.pipe.next(facts).await;
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        // With an id of ours the agent says which of its turns is the prompt's.
        let id = Uuid::new_v4().to_string();
        let message = json!({"role": "user", "content": [{"type": "text", "text": prompt.text}]});
        self.pipe.send(&json!({
            "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "", "uuid": id,
        }))?;
        self.pipe.prompted(id);
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        // Together with a prompt that the agent has not begun with.
        self.pipe.tell("interrupt", json!({"cancel_queued": true}))?;
        self.pipe.converter.interrupted();
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: Answer) -> Result<(), AgentError> {
        let nothing = || AgentError::Unsupported(format!("the agent asked nothing under {id} that this answers"));
        let asked = self.pipe.converter.asked(id).ok_or_else(nothing)?;
        let response = answer::response(asked, &answer, self.mode_after_plan()).ok_or_else(nothing)?;
        let success = json!({"subtype": "success", "request_id": id, "response": response});
        self.pipe.send(&json!({"type": "control_response", "response": success}))?;
        self.pipe.converter.answered(id);
        Ok(())
    }

    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError> {
        let name = launch::mode(agent, mode);
        if name == launch::BYPASS && !self.may_bypass {
            let reason = "Claude Code bypasses permissions only if it was started so";
            return Err(AgentError::Unsupported(reason.to_owned()));
        }
        self.pipe.request("set_permission_mode", json!({"mode": name}), Patience::of(CHANGE)).await?;
        self.permission_mode = mode;
        self.pipe.converter.works(agent);
        Ok(())
    }

    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError> {
        let patience = Patience::of(CHANGE);
        if self.model.as_deref() != model {
            self.pipe.request("set_model", json!({"model": model}), patience).await?;
            self.model = model.map(str::to_owned);
        }
        if self.variant.as_deref() != variant {
            let settings = json!({"settings": {"effortLevel": variant}});
            self.pipe.request("apply_flag_settings", settings, patience).await?;
            self.variant = variant.map(str::to_owned);
        }
        Ok(())
    }

    async fn close(self: Box<Self>, patience: Duration, facts: &mut Vec<Fact>) {
        self.pipe.close(patience, facts).await;
    }
}
