//! What the agent that is built in cannot show: one that takes its time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{Beginning, Change, Locate, Rules, Session, SessionError, Status};
use crate::agent::{
    Agent, AgentError, AgentId, AgentMode, Answer, Conversation, Fact, Models, Opening, PermissionMode, Place, Prompt,
};

/// Never gets as far as a conversation.
struct Slow;

#[async_trait]
impl Agent for Slow {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &[]
    }

    async fn models(&self, _: &Place) -> Result<Models, AgentError> {
        Ok(Models::default())
    }

    async fn open(&self, _: Opening) -> Result<Box<dyn Conversation>, AgentError> {
        std::future::pending().await
    }
}

fn session() -> Arc<Session> {
    with(Arc::new(Slow), Arc::new(|_, _| Ok(Place::default())))
}

fn with(agent: Arc<dyn Agent>, locate: Locate) -> Arc<Session> {
    let record = serde_json::json!({
        "sessionId": "s", "agent": "mock", "agentMode": "build", "permissionMode": "default", "begun": false,
        "createdAt": 0, "updatedAt": 0, "directory": "/", "turns": 0, "running": false, "queue": [],
    });
    Session::start(Beginning {
        agent,
        locate,
        record: serde_json::from_value(record).unwrap(),
        conversation: None,
        shelf: None,
        rules: Rules::default(),
    })
}

#[tokio::test]
async fn whoever_resumes_a_session_that_is_terminated_meanwhile_is_told() {
    let session = session();
    session.terminate().await.unwrap();
    let (resumed, terminated) = tokio::join!(session.resume(), session.terminate());
    assert!(matches!(resumed, Err(SessionError::Terminated)));
    terminated.unwrap();
    let (resumed, ()) = tokio::join!(session.resume(), session.close(false, super::FAREWELL));
    assert!(matches!(resumed, Err(SessionError::Gone)));
}

/// Opens when it is let, and writes down what it is told.
struct Gated {
    gate: Arc<Semaphore>,
    told: Arc<Mutex<Vec<String>>>,
}

struct Deaf(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Agent for Gated {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    async fn models(&self, _: &Place) -> Result<Models, AgentError> {
        Ok(Models::default())
    }

    async fn open(&self, opening: Opening) -> Result<Box<dyn Conversation>, AgentError> {
        self.told.lock().unwrap().push(format!("open {}", opening.permission_mode.as_str()));
        self.gate.acquire().await.unwrap().forget();
        Ok(Box::new(Deaf(Arc::clone(&self.told))))
    }
}

#[async_trait]
impl Conversation for Deaf {
    fn native_id(&self) -> Option<String> {
        None
    }

    async fn next(&mut self, _: &mut Vec<Fact>) {
        std::future::pending().await
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.0.lock().unwrap().push(format!("prompt {}", prompt.text));
        Err(AgentError::Unsupported("deaf".into()))
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        Ok(())
    }

    async fn answer(&mut self, _: &str, _: Answer) -> Result<(), AgentError> {
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

    async fn close(self: Box<Self>, _: Duration, _: &mut Vec<Fact>) {
        self.0.lock().unwrap().push("close".into());
    }
}

fn prompt(text: &str) -> Prompt {
    Prompt { id: text.into(), text: text.into() }
}

#[tokio::test]
async fn no_prompt_is_left_waiting_for_an_agent_that_is_not_there() {
    let session = with(Arc::new(Slow), Arc::new(|id, _| Err(AgentError::NotInstalled(id))));
    let mut tickets = Vec::new();
    for text in ["one", "two", "three"] {
        tickets.push(session.prompt(prompt(text), false).await.unwrap());
    }
    for mut ticket in tickets {
        ticket.wait_for(|state| state.begun.is_some() && state.ended.is_some()).await.unwrap();
    }
    // A session that could not be resumed is as it was.
    session.terminate().await.unwrap();
    assert!(matches!(session.resume().await, Err(SessionError::Agent(AgentError::NotInstalled(_)))));
    let snapshot = session.snapshot();
    assert_eq!((snapshot.status, snapshot.record.end.unwrap().reason.as_str()), (Status::Ended, "terminated"));
}

#[tokio::test]
async fn what_is_changed_while_the_agent_starts_holds_before_it_hears_a_prompt() {
    let (gate, told) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let agent = Gated { gate: Arc::clone(&gate), told: Arc::clone(&told) };
    let session = with(Arc::new(agent), Arc::new(|_, _| Ok(Place::default())));
    let mut first = session.prompt(prompt("one"), false).await.unwrap();
    let mut second = session.prompt(prompt("two"), false).await.unwrap();
    let change =
        Change { permission_mode: Some(PermissionMode::Plan), model: Some("large".into()), ..Change::default() };
    session.change(change).await.unwrap();
    gate.add_permits(2);
    for ticket in [&mut first, &mut second] {
        ticket.wait_for(|state| state.ended.is_some()).await.unwrap();
    }
    // Whoever does not take a prompt is replaced for the next one, and that one is opened as it is now.
    assert_eq!(
        *told.lock().unwrap(),
        ["open default", "mode plan", "model large", "prompt one", "close", "open plan", "prompt two", "close"]
    );
}
