//! Every refusal in one shape: problem details, with a code that clients can rely on.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::{agent::AgentError, schema::SessionEnded, session::SessionError};

/// What went wrong. It travels in a box, since refusals are rare and results many.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem(Box<ProblemDetails>);

/// What went wrong, in the form of RFC 7807.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ProblemDetails {
    /// `urn:sandbox-agent:error:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// Whose agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Whose session.
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What else is known.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
}

/// The codes, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request makes no sense.
    InvalidRequest,
    /// There is no such agent.
    UnsupportedAgent,
    /// The agent is not there.
    AgentNotInstalled,
    /// And could not be fetched.
    InstallFailed,
    /// The agent's process has ended.
    AgentProcessExited,
    /// The token is wrong or missing.
    TokenInvalid,
    /// That is not for whoever asks.
    PermissionDenied,
    /// There is no such session.
    SessionNotFound,
    /// There is one already.
    SessionAlreadyExists,
    /// The agent cannot work that way.
    ModeNotSupported,
    /// The agent could not be told something.
    StreamError,
    /// The agent did not answer in time.
    Timeout,
    /// Something else stands in the way.
    Conflict,
    /// There is nothing at this path.
    NotFound,
    /// There is, but not for this method.
    MethodNotAllowed,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// The body is too large.
    PayloadTooLarge,
}

// === impl Code ===

impl Code {
    const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedAgent => "unsupported_agent",
            Self::AgentNotInstalled => "agent_not_installed",
            Self::InstallFailed => "install_failed",
            Self::AgentProcessExited => "agent_process_exited",
            Self::TokenInvalid => "token_invalid",
            Self::PermissionDenied => "permission_denied",
            Self::SessionNotFound => "session_not_found",
            Self::SessionAlreadyExists => "session_already_exists",
            Self::ModeNotSupported => "mode_not_supported",
            Self::StreamError => "stream_error",
            Self::Timeout => "timeout",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::PayloadTooLarge => "payload_too_large",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::UnsupportedAgent | Self::ModeNotSupported => StatusCode::BAD_REQUEST,
            Self::AgentNotInstalled | Self::SessionNotFound | Self::NotFound => StatusCode::NOT_FOUND,
            Self::InstallFailed | Self::AgentProcessExited => StatusCode::INTERNAL_SERVER_ERROR,
            Self::TokenInvalid => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::SessionAlreadyExists | Self::Conflict => StatusCode::CONFLICT,
            Self::StreamError => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// The code in words, each with a capital letter.
    fn title(self) -> String {
        let mut title = String::new();
        for word in self.name().split('_') {
            if !title.is_empty() {
                title.push(' ');
            }
            let mut letters = word.chars();
            title.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
            title.push_str(letters.as_str());
        }
        title
    }
}

// === impl Problem ===

impl Problem {
    /// A problem with what happened.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemDetails {
            kind: format!("urn:sandbox-agent:error:{}", code.name()),
            title: code.title(),
            status: code.status().as_u16(),
            detail: detail.into(),
            agent: None,
            session_id: None,
            details: Map::new(),
        }))
    }

    /// A request that makes no sense.
    pub fn invalid(detail: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidRequest, format!("invalid request: {detail}"))
    }

    /// There is no such session.
    pub fn no_session(id: &str) -> Self {
        Self::new(Code::SessionNotFound, format!("session not found: {id}")).of_session(id)
    }

    /// There is no such agent.
    pub fn no_agent(name: &str) -> Self {
        Self::new(Code::UnsupportedAgent, format!("unsupported agent: {name}")).of_agent(name)
    }

    /// Names the session that it is about.
    #[must_use]
    pub fn of_session(mut self, id: &str) -> Self {
        self.0.session_id = Some(id.to_owned());
        self
    }

    /// Names the agent that it is about.
    #[must_use]
    pub fn of_agent(mut self, agent: &str) -> Self {
        self.0.agent = Some(agent.to_owned());
        self
    }

    /// Adds what else is known.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// A session's refusal. One that is gone is not there, for whoever asks.
    pub fn refused(session_id: &str, error: SessionError) -> Self {
        match error {
            SessionError::Gone => Self::no_session(session_id),
            error => Self::from(error).of_session(session_id),
        }
    }

    fn exited(end: &SessionEnded) -> Self {
        let detail = format!("agent process exited: {}", end.message.as_deref().unwrap_or(&end.reason));
        Self::new(Code::AgentProcessExited, detail)
            .with("exitCode", json!(end.exit_code))
            .with("signal", json!(end.signal))
            .with("stderr", json!(end.stderr))
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        let detail = error.to_string();
        match error {
            SessionError::Ended(end) => Self::exited(&end),
            SessionError::Terminated | SessionError::UnknownQuestion(_) | SessionError::UnknownPermission(_) => {
                Self::invalid(detail)
            }
            SessionError::Conflict(_) | SessionError::QueueFull(_) | SessionError::LogFull | SessionError::Gone => {
                Self::new(Code::Conflict, detail)
            }
            SessionError::Agent(error) => error.into(),
        }
    }
}

impl From<AgentError> for Problem {
    fn from(error: AgentError) -> Self {
        let code = match &error {
            AgentError::Child(_) | AgentError::Refused { .. } => Code::StreamError,
            AgentError::Timeout { .. } => Code::Timeout,
            AgentError::Unsupported(_) => Code::ModeNotSupported,
            AgentError::NotInstalled(_) => Code::AgentNotInstalled,
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, body).into_response();
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
