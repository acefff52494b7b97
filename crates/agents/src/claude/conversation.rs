//! A conversation with Claude Code.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use uuid::Uuid;

use super::{
    answer, launch,
    process::{ClaudeProcess, RequestDeadline},
};
use crate::agent::{
    AgentError, AgentEvent, AgentMode, Conversation, ConversationOptions, PermissionMode, Prompt, UserAnswer,
};

/// A conversation with its own process.
#[derive(Debug)]
pub(super) struct ClaudeConversation {
    process: ClaudeProcess,
    id: String,
    permission_mode: PermissionMode,
    model: Option<String>,
    variant: Option<String>,
    /// Whether it was started with permission to bypass: it cannot be changed later.
    may_bypass: bool,
    change_timeout: Duration,
}

// === impl ClaudeConversation ===

impl ClaudeConversation {
    pub(super) fn open(options: &ConversationOptions, change_timeout: Duration) -> Result<Self, AgentError> {
        let id = options.native_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let start = launch::conversation_spec(options, &id, rustix::process::getuid().is_root());
        let may_bypass = launch::mode(options.agent_mode, options.permission_mode) == launch::BYPASS;
        let mut process = ClaudeProcess::spawn(&start)?;
        process.converter.set_agent_mode(options.agent_mode);
        process.converter.set_may_bypass(may_bypass);
        process.send_request("initialize", json!({}))?;
        let (model, variant) = (options.model.clone(), options.variant.clone());
        let permission_mode = options.permission_mode;
        Ok(Self { process, id, permission_mode, model, variant, may_bypass, change_timeout })
    }

    /// Permission mode after a plan is approved.
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
        Some(self.process.converter.native_id().unwrap_or(&self.id).to_owned())
    }

    async fn next(&mut self, events: &mut Vec<AgentEvent>) {
        self.process.next(events).await;
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        // With our own id, the agent reports which of its turns belongs to the prompt.
        let id = Uuid::new_v4().to_string();
        let message = json!({"role": "user", "content": [{"type": "text", "text": prompt.text}]});
        self.process.send(&json!({
            "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "", "uuid": id,
        }))?;
        self.process.prompt_sent(id);
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        // Also cancels a prompt that the agent has not started yet.
        self.process.send_request("interrupt", json!({"cancel_queued": true}))?;
        self.process.converter.interrupt_sent();
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: UserAnswer) -> Result<(), AgentError> {
        let nothing = || AgentError::Unsupported(format!("no pending request {id} of the agent for this answer"));
        let request = self.process.converter.request(id).ok_or_else(nothing)?;
        let response = answer::response(request, &answer, self.mode_after_plan()).ok_or_else(nothing)?;
        let success = json!({"subtype": "success", "request_id": id, "response": response});
        self.process.send(&json!({"type": "control_response", "response": success}))?;
        self.process.converter.remove_request(id);
        Ok(())
    }

    async fn set_permission_mode(&mut self, agent: AgentMode, mode: PermissionMode) -> Result<(), AgentError> {
        let name = launch::mode(agent, mode);
        if name == launch::BYPASS && !self.may_bypass {
            let reason = "Claude Code bypasses permissions only if it was started so";
            return Err(AgentError::Unsupported(reason.to_owned()));
        }
        self.process
            .request("set_permission_mode", json!({"mode": name}), RequestDeadline::after(self.change_timeout))
            .await?;
        self.permission_mode = mode;
        self.process.converter.set_agent_mode(agent);
        Ok(())
    }

    async fn set_model(&mut self, model: Option<&str>, variant: Option<&str>) -> Result<(), AgentError> {
        let timeout = RequestDeadline::after(self.change_timeout);
        if self.model.as_deref() != model {
            self.process.request("set_model", json!({"model": model}), timeout).await?;
            self.model = model.map(str::to_owned);
        }
        if self.variant.as_deref() != variant {
            let settings = json!({"settings": {"effortLevel": variant}});
            self.process.request("apply_flag_settings", settings, timeout).await?;
            self.variant = variant.map(str::to_owned);
        }
        Ok(())
    }

    async fn close(self: Box<Self>, grace: Duration, events: &mut Vec<AgentEvent>) {
        self.process.close(grace, events).await;
    }
}
