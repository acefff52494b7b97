//! What the agent that is built in cannot show: one that takes its time.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Beginning, Rules, Session, SessionError};
use crate::agent::{Agent, AgentError, AgentId, Conversation, Models, Opening, PermissionMode, Place};

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
    let record = serde_json::json!({
        "sessionId": "s", "agent": "mock", "agentMode": "build", "permissionMode": "default", "begun": false,
        "createdAt": 0, "updatedAt": 0, "directory": "/", "turns": 0, "running": false, "queue": [],
    });
    Session::start(Beginning {
        agent: Arc::new(Slow),
        locate: Arc::new(|_, _| Ok(Place::default())),
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
