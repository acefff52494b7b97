//! Error responses: problem details with stable codes.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::{agent::AgentError, schema::SessionEnded, session::SessionError};

/// An error response. Boxed, since errors are rare and results common.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiProblem(Box<ProblemDetails>);

/// Details of an error, in the form of RFC 7807.
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

/// Error codes, each with an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemCode {
    InvalidRequest,
    /// The agent is unknown.
    UnsupportedAgent,
    AgentNotInstalled,
    /// The installation failed.
    InstallFailed,
    AgentProcessExited,
    /// The token is missing or wrong.
    TokenInvalid,
    /// The request is not allowed.
    PermissionDenied,
    /// The session does not exist.
    SessionNotFound,
    /// A session of this id exists already.
    SessionAlreadyExists,
    /// The agent does not support the mode.
    ModeNotSupported,
    /// The agent could not be reached.
    StreamError,
    /// The agent did not respond in time.
    Timeout,
    /// The request conflicts with the current state.
    Conflict,
    /// The path does not exist.
    NotFound,
    /// The path does not support the method.
    MethodNotAllowed,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// The body is too large.
    PayloadTooLarge,
}

// === impl ProblemCode ===

impl ProblemCode {
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

    /// The code in title case.
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

// === impl ApiProblem ===

impl ApiProblem {
    /// A problem with this detail.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
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

    /// An invalid request.
    pub fn invalid(detail: impl std::fmt::Display) -> Self {
        Self::new(ProblemCode::InvalidRequest, format!("invalid request: {detail}"))
    }

    /// The session does not exist.
    pub fn session_not_found(id: &str) -> Self {
        Self::new(ProblemCode::SessionNotFound, format!("session not found: {id}")).for_session(id)
    }

    /// The agent is unknown.
    pub fn unsupported_agent(name: &str) -> Self {
        Self::new(ProblemCode::UnsupportedAgent, format!("unsupported agent: {name}")).for_agent(name)
    }

    /// Adds the id of the session.
    #[must_use]
    pub fn for_session(mut self, id: &str) -> Self {
        self.0.session_id = Some(id.to_owned());
        self
    }

    /// Adds the name of the agent.
    #[must_use]
    pub fn for_agent(mut self, agent: &str) -> Self {
        self.0.agent = Some(agent.to_owned());
        self
    }

    /// Adds a field to the details.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// A session's error. A closed session counts as not found.
    pub fn from_session(session_id: &str, error: SessionError) -> Self {
        match error {
            SessionError::Gone => Self::session_not_found(session_id),
            error => Self::from(error).for_session(session_id),
        }
    }

    fn exited(end: &SessionEnded) -> Self {
        let detail = format!("agent process exited: {}", end.message.as_deref().unwrap_or(&end.reason));
        Self::new(ProblemCode::AgentProcessExited, detail)
            .with("exitCode", json!(end.exit_code))
            .with("signal", json!(end.signal))
            .with("stderr", json!(end.stderr))
    }
}

impl From<SessionError> for ApiProblem {
    fn from(error: SessionError) -> Self {
        let detail = error.to_string();
        match error {
            SessionError::Ended(end) => Self::exited(&end),
            SessionError::Terminated | SessionError::UnknownQuestion(_) | SessionError::UnknownPermission(_) => {
                Self::invalid(detail)
            }
            SessionError::Conflict(_) | SessionError::QueueFull(_) | SessionError::LogFull | SessionError::Gone => {
                Self::new(ProblemCode::Conflict, detail)
            }
            SessionError::Agent(error) => error.into(),
        }
    }
}

impl From<AgentError> for ApiProblem {
    fn from(error: AgentError) -> Self {
        let code = match &error {
            AgentError::Child(_) | AgentError::Refused { .. } => ProblemCode::StreamError,
            AgentError::Timeout { .. } => ProblemCode::Timeout,
            AgentError::Unsupported(_) => ProblemCode::ModeNotSupported,
            AgentError::NotInstalled(_) => ProblemCode::AgentNotInstalled,
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for ApiProblem {
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
