//! Tests with agents that are slow.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{AgentSession, ProgramLocator, SessionError, SessionLimits, SessionParts, SessionStatus, SessionUpdate};
use crate::{
    agent::{
        AgentDriver, AgentError, AgentEvent, AgentExit, AgentId, AgentMode, AgentProgram, Conversation,
        ConversationOptions, Models, PermissionMode, Prompt, UserAnswer,
    },
    child::ChildExit,
    schema::TurnOutcome,
};

/// Never opens a conversation.
struct SlowAgent;

#[async_trait]
impl AgentDriver for SlowAgent {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &[]
    }

    async fn models(&self, _: &AgentProgram) -> Result<Models, AgentError> {
        Ok(Models::default())
    }

    async fn open(&self, _: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        std::future::pending().await
    }
}

fn session() -> Arc<AgentSession> {
    with(Arc::new(SlowAgent), Arc::new(|_, _| Ok(AgentProgram::default())))
}

fn with(agent: Arc<dyn AgentDriver>, locate: ProgramLocator) -> Arc<AgentSession> {
    let record = serde_json::json!({
        "sessionId": "s", "agent": "mock", "agentMode": "build", "permissionMode": "default", "begun": false,
        "createdAt": 0, "updatedAt": 0, "directory": "/", "turns": 0, "running": false, "queue": [],
    });
    AgentSession::start(SessionParts {
        agent,
        locate,
        record: serde_json::from_value(record).unwrap(),
        conversation: None,
        session_dir: None,
        limits: SessionLimits::default(),
    })
}

#[tokio::test]
async fn a_resume_fails_if_the_session_is_terminated_meanwhile() {
    let session = session();
    session.terminate().await.unwrap();
    let (resumed, terminated) = tokio::join!(session.resume(), session.terminate());
    assert!(matches!(resumed, Err(SessionError::Terminated)));
    terminated.unwrap();
    let (resumed, ()) = tokio::join!(session.resume(), session.close(false, super::CLOSE_GRACE));
    assert!(matches!(resumed, Err(SessionError::Gone)));
}

/// Opens a conversation when the gate allows it, and records calls.
struct GatedAgent {
    gate: Arc<Semaphore>,
    calls: Arc<Mutex<Vec<String>>>,
}

struct RecordingConversation(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl AgentDriver for GatedAgent {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    async fn models(&self, _: &AgentProgram) -> Result<Models, AgentError> {
        Ok(Models::default())
    }

    async fn open(&self, options: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        self.calls.lock().unwrap().push(format!("open {}", options.permission_mode.as_str()));
        self.gate.acquire().await.unwrap().forget();
        Ok(Box::new(RecordingConversation(Arc::clone(&self.calls))))
    }
}

#[async_trait]
impl Conversation for RecordingConversation {
    fn native_id(&self) -> Option<String> {
        None
    }

    async fn next(&mut self, _: &mut Vec<AgentEvent>) {
        std::future::pending().await
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.0.lock().unwrap().push(format!("prompt {}", prompt.text));
        Err(AgentError::Unsupported("deaf".into()))
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        Ok(())
    }

    async fn answer(&mut self, _: &str, _: UserAnswer) -> Result<(), AgentError> {
        Ok(())
    }

    async fn set_permission_mode(&mut self, _: AgentMode, mode: PermissionMode) -> Result<(), AgentError> {
        self.0.lock().unwrap().push(format!("mode {}", mode.as_str()));
        Ok(())
    }

    async fn set_model(&mut self, model: Option<&str>, _: Option<&str>) -> Result<(), AgentError> {
        self.0.lock().unwrap().push(format!("model {}", model.unwrap_or_default()));
        Ok(())
    }

    async fn close(self: Box<Self>, _: Duration, _: &mut Vec<AgentEvent>) {
        self.0.lock().unwrap().push("close".into());
    }
}

fn prompt(text: &str) -> Prompt {
    Prompt { id: text.into(), text: text.into() }
}

#[tokio::test]
async fn queued_prompts_fail_if_the_agent_is_not_installed() {
    let session = with(Arc::new(SlowAgent), Arc::new(|id, _| Err(AgentError::NotInstalled(id))));
    let mut handles = Vec::new();
    for text in ["one", "two", "three"] {
        handles.push(session.prompt(prompt(text), false).await.unwrap());
    }
    for mut handle in handles {
        handle.wait_for(|state| state.started.is_some() && state.ended.is_some()).await.unwrap();
    }
    // A failed resume changes nothing.
    session.terminate().await.unwrap();
    assert!(matches!(session.resume().await, Err(SessionError::Agent(AgentError::NotInstalled(_)))));
    let snapshot = session.snapshot();
    assert_eq!((snapshot.status, snapshot.record.end.unwrap().reason.as_str()), (SessionStatus::Ended, "terminated"));
}

#[tokio::test]
async fn settings_that_change_while_the_agent_starts_apply_before_the_first_prompt() {
    let (gate, calls) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let agent = GatedAgent { gate: Arc::clone(&gate), calls: Arc::clone(&calls) };
    let session = with(Arc::new(agent), Arc::new(|_, _| Ok(AgentProgram::default())));
    let mut first = session.prompt(prompt("one"), false).await.unwrap();
    let mut second = session.prompt(prompt("two"), false).await.unwrap();
    let change = SessionUpdate {
        permission_mode: Some(PermissionMode::Plan),
        model: Some("large".into()),
        ..SessionUpdate::default()
    };
    session.update(change).await.unwrap();
    gate.add_permits(2);
    for handle in [&mut first, &mut second] {
        handle.wait_for(|state| state.ended.is_some()).await.unwrap();
    }
    // An agent that rejects a prompt is replaced, and the new one is opened with the current settings.
    assert_eq!(
        *calls.lock().unwrap(),
        ["open default", "mode plan", "model large", "prompt one", "close", "open plan", "prompt two", "close"]
    );
}

/// Completes each turn, then exits with a code.
struct ExitingAgent {
    code: i32,
    closed: Arc<Semaphore>,
}

struct ExitingConversation {
    code: i32,
    events: Vec<AgentEvent>,
    closed: Arc<Semaphore>,
}

#[async_trait]
impl AgentDriver for ExitingAgent {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    async fn models(&self, _: &AgentProgram) -> Result<Models, AgentError> {
        Ok(Models::default())
    }

    async fn open(&self, _: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        Ok(Box::new(ExitingConversation { code: self.code, events: Vec::new(), closed: Arc::clone(&self.closed) }))
    }
}

#[async_trait]
impl Conversation for ExitingConversation {
    fn native_id(&self) -> Option<String> {
        None
    }

    async fn next(&mut self, events: &mut Vec<AgentEvent>) {
        match self.events.pop() {
            Some(event) => events.push(event),
            None => std::future::pending().await,
        }
    }

    async fn prompt(&mut self, _: &Prompt) -> Result<(), AgentError> {
        let exit = ChildExit { code: Some(self.code), signal: None, stderr: String::new() };
        let completed =
            AgentEvent::TurnEnded { outcome: TurnOutcome::Completed, message: None, usage: None, raw: None };
        self.events = vec![AgentEvent::Exited(AgentExit::Exited(exit)), completed];
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        Ok(())
    }

    async fn answer(&mut self, _: &str, _: UserAnswer) -> Result<(), AgentError> {
        Ok(())
    }

    async fn set_permission_mode(&mut self, _: AgentMode, _: PermissionMode) -> Result<(), AgentError> {
        Ok(())
    }

    async fn set_model(&mut self, _: Option<&str>, _: Option<&str>) -> Result<(), AgentError> {
        Ok(())
    }

    async fn close(self: Box<Self>, _: Duration, _: &mut Vec<AgentEvent>) {
        self.closed.add_permits(1);
    }
}

//= agents.lifecycle.process-terminates-session-marked
#[tokio::test]
async fn an_agent_that_exits_between_turns_ends_its_session_unless_its_code_is_0() {
    for code in [0, 3] {
        let closed = Arc::new(Semaphore::new(0));
        let agent = ExitingAgent { code, closed: Arc::clone(&closed) };
        let session = with(Arc::new(agent), Arc::new(|_, _| Ok(AgentProgram::default())));
        let mut first = session.prompt(prompt("one"), false).await.unwrap();
        first.wait_for(|state| state.ended.is_some()).await.unwrap();
        // The session closes a conversation whose agent has exited; the answer to a further request comes after that.
        closed.acquire().await.unwrap().forget();
        let second = session.prompt(prompt("two"), false).await;
        let (status, end) = (session.snapshot().status, session.snapshot().record.end);
        if code == 0 {
            assert!(status != SessionStatus::Ended && end.is_none(), "{status:?} {end:?}");
            second.unwrap().wait_for(|state| state.ended.is_some()).await.unwrap();
        } else {
            assert_eq!((status, end.unwrap().exit_code, second.is_err()), (SessionStatus::Ended, Some(3), true));
        }
        session.close(false, super::CLOSE_GRACE).await;
    }
}
