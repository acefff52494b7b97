//! HTTP handlers for sessions.

use std::{path::PathBuf, sync::Arc};

use super::{
    ApiProblem, AppState, ProblemCode, ProblemDetails,
    api_types::{
        ChangeSession, CreateSession, Created, PermissionAnswer, PostMessage, QuestionAnswers, SessionInfo, SessionList,
    },
    extract::{JsonBody, OptionalJsonBody, PathParams},
};
use crate::{
    agent::{AgentMode, PermissionMode, Prompt, UserAnswer},
    session::{AgentSession, SessionUpdate, TurnHandle},
    sessions::{CreateSessionError, NewSession},
};
use axum::{
    Json as Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};

/// Lists sessions, newest first.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    responses((status = 200, body = SessionList))
)]
pub(super) async fn list(State(app): State<Arc<AppState>>) -> Body<SessionList> {
    Body(SessionList { sessions: app.sessions.all().iter().rev().map(|session| SessionInfo::of(session)).collect() })
}

/// Creates a session: installs the agent if necessary, and starts it.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}", operation_id = "create_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    request_body = CreateSession,
    responses((status = 200, body = Created), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn create(
    State(app): State<Arc<AppState>>,
    PathParams(session_id): PathParams<String>,
    JsonBody(request): JsonBody<CreateSession>,
) -> Result<Body<Created>, ApiProblem> {
    if session_id.len() > 256 || session_id.chars().any(char::is_control) {
        return Err(ApiProblem::invalid("a session id has at most 256 bytes and no control characters"));
    }
    let agent = app.agents.get(&request.agent).ok_or_else(|| ApiProblem::unsupported_agent(&request.agent))?;
    let (agent_mode, permission_mode) =
        modes(&*agent, request.agent_mode.as_deref(), request.permission_mode.as_deref())?;
    let directory = directory(request.directory)?;
    let reservation = app.sessions.reserve(&session_id)?;
    app.agents.ensure(agent.id(), request.agent_version.as_deref()).await?;
    let request = NewSession {
        session_id,
        agent_mode,
        permission_mode,
        model: request.model,
        variant: request.variant,
        directory,
        title: request.title,
    };
    let session = reservation.create(agent, request).await?;
    Ok(Body(Created { healthy: true, agent_session_id: session.snapshot().record.native_id }))
}

/// Gets a session.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}", operation_id = "get_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    responses((status = 200, body = SessionInfo), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn get(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
) -> Result<Body<SessionInfo>, ApiProblem> {
    Ok(Body(SessionInfo::of(&*find(&app, &id)?)))
}

/// Changes the settings of a session.
#[utoipa::path(
    patch, path = "/v1/sessions/{sessionId}", operation_id = "change_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    request_body = ChangeSession,
    responses((status = 200, body = SessionInfo), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn change(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    JsonBody(request): JsonBody<ChangeSession>,
) -> Result<Body<SessionInfo>, ApiProblem> {
    let session = find(&app, &id)?;
    let record = session.snapshot().record;
    let agent = app.agents.driver(session.agent);
    let agent_mode = request.agent_mode.as_deref().unwrap_or(record.agent_mode.as_str());
    // A permission mode that follows from plan mode is no conflict.
    let linked =
        agent.plan_is_permission_mode() && (agent_mode == "plan" || record.permission_mode == PermissionMode::Plan);
    let kept = Some(record.permission_mode.as_str()).filter(|_| !linked);
    let (agent_mode, permission_mode) = modes(&*agent, Some(agent_mode), request.permission_mode.as_deref().or(kept))?;
    let update = SessionUpdate {
        agent_mode: request.agent_mode.is_some().then_some(agent_mode),
        permission_mode: (request.permission_mode.is_some() || request.agent_mode.is_some()).then_some(permission_mode),
        model: request.model,
        variant: request.variant,
        title: request.title,
    };
    session.update(update).await.map_err(|error| ApiProblem::from_session(&id, error))?;
    Ok(Body(SessionInfo::of(&session)))
}

/// Terminates and deletes a session.
#[utoipa::path(
    delete, path = "/v1/sessions/{sessionId}", operation_id = "delete_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn delete(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
) -> Result<StatusCode, ApiProblem> {
    let session = find(&app, &id)?;
    // Runs to its end even if the client disconnects.
    let _done = tokio::spawn(async move { app.sessions.remove(&session).await }).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Queues a prompt.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/messages", operation_id = "post_message", tag = "sessions",
    params(("sessionId" = String, Path)),
    request_body = PostMessage,
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn message(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    headers: HeaderMap,
    JsonBody(message): JsonBody<PostMessage>,
) -> Result<StatusCode, ApiProblem> {
    enqueue(&*find(&app, &id)?, &headers, message).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers a question request.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/questions/{questionId}/reply", tag = "sessions",
    params(("sessionId" = String, Path), ("questionId" = String, Path)), request_body = QuestionAnswers,
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn reply_question(
    State(app): State<Arc<AppState>>,
    PathParams((id, question)): PathParams<(String, String)>,
    JsonBody(answers): JsonBody<QuestionAnswers>,
) -> Result<StatusCode, ApiProblem> {
    answer(&app, &id, question, UserAnswer::Question(answers.answers)).await
}

/// Rejects a question request.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/questions/{questionId}/reject", tag = "sessions",
    params(("sessionId" = String, Path), ("questionId" = String, Path)),
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn reject_question(
    State(app): State<Arc<AppState>>,
    PathParams((id, question)): PathParams<(String, String)>,
) -> Result<StatusCode, ApiProblem> {
    answer(&app, &id, question, UserAnswer::QuestionRejected).await
}

/// Replies to a permission request.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/permissions/{permissionId}/reply", tag = "sessions",
    params(("sessionId" = String, Path), ("permissionId" = String, Path)), request_body = PermissionAnswer,
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn reply_permission(
    State(app): State<Arc<AppState>>,
    PathParams((id, permission)): PathParams<(String, String)>,
    JsonBody(reply): JsonBody<PermissionAnswer>,
) -> Result<StatusCode, ApiProblem> {
    answer(&app, &id, permission, UserAnswer::Permission(reply.reply, reply.message)).await
}

/// Interrupts the turn; the session continues.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/abort", operation_id = "abort_turn", tag = "sessions",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn abort(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
) -> Result<StatusCode, ApiProblem> {
    find(&app, &id)?.abort().await.map_err(|error| ApiProblem::from_session(&id, error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resumes a session that has ended.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/resume", operation_id = "resume_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn resume(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
) -> Result<StatusCode, ApiProblem> {
    find(&app, &id)?.resume().await.map_err(|error| ApiProblem::from_session(&id, error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Terminates a session. Its events are kept.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/terminate", operation_id = "terminate_session", tag = "sessions",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn terminate(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    OptionalJsonBody(_): OptionalJsonBody<serde_json::Value>,
) -> Result<StatusCode, ApiProblem> {
    find(&app, &id)?.terminate().await.map_err(|error| ApiProblem::from_session(&id, error))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn find(app: &AppState, id: &str) -> Result<Arc<AgentSession>, ApiProblem> {
    app.sessions.get(id).ok_or_else(|| ApiProblem::session_not_found(id))
}

/// Queues a prompt.
pub(super) async fn enqueue(
    session: &AgentSession,
    headers: &HeaderMap,
    message: PostMessage,
) -> Result<TurnHandle, ApiProblem> {
    let header = headers.get("idempotency-key").map(|value| value.to_str()).transpose();
    // Ignoring an invalid key could run the prompt twice.
    let header = header.map_err(|_| ApiProblem::invalid("Idempotency-Key has to be visible ASCII"))?.map(str::to_owned);
    let name = message.message_id.or(header).filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.len() > 256) {
        return Err(ApiProblem::invalid("a message id has at most 256 bytes"));
    }
    let has_client_id = name.is_some();
    let prompt = Prompt { id: name.unwrap_or_else(|| uuid::Uuid::new_v4().to_string()), text: message.message };
    let taken = session.prompt(prompt, has_client_id).await;
    taken.map_err(|error| ApiProblem::from_session(&session.id, error).for_agent(session.agent.as_str()))
}

async fn answer(app: &AppState, id: &str, request: String, answer: UserAnswer) -> Result<StatusCode, ApiProblem> {
    find(app, id)?.answer(request, answer).await.map_err(|error| ApiProblem::from_session(id, error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses and checks the requested modes.
fn modes(
    agent: &dyn crate::agent::AgentDriver,
    agent_mode: Option<&str>,
    permission_mode: Option<&str>,
) -> Result<(AgentMode, PermissionMode), ApiProblem> {
    let unsupported = |mode: &str| {
        let detail = format!("mode not supported: {} has no {mode}", agent.id());
        ApiProblem::new(ProblemCode::ModeNotSupported, detail).for_agent(agent.id().as_str()).with("mode", mode)
    };
    let agent_mode = match agent_mode {
        Some(name) => name.parse().map_err(|()| unsupported(name))?,
        None => AgentMode::default(),
    };
    let permission: PermissionMode = match permission_mode {
        Some(name) => name.parse().map_err(|()| ApiProblem::invalid(format!("unknown permission mode: {name}")))?,
        None if agent_mode == AgentMode::Plan && agent.plan_is_permission_mode() => PermissionMode::Plan,
        None => PermissionMode::default(),
    };
    if permission != PermissionMode::Default && !agent.permission_modes().contains(&permission) {
        return Err(unsupported(permission.as_str()));
    }
    if agent_mode == AgentMode::Plan && permission != PermissionMode::Plan && agent.plan_is_permission_mode() {
        return Err(ApiProblem::invalid(format!(
            "the plan mode of {} comes with the permission mode plan",
            agent.id()
        )));
    }
    Ok((agent_mode, permission))
}

fn directory(request: Option<PathBuf>) -> Result<PathBuf, ApiProblem> {
    let here =
        std::env::current_dir().map_err(|error| ApiProblem::invalid(format!("no working directory: {error}")))?;
    let directory = match request {
        Some(path) => here.join(path),
        None => here,
    };
    if directory.is_dir() {
        Ok(directory)
    } else {
        Err(ApiProblem::invalid(format!("{} is not a directory", directory.display())))
    }
}

impl From<CreateSessionError> for ApiProblem {
    fn from(error: CreateSessionError) -> Self {
        let detail = error.to_string();
        match error {
            CreateSessionError::Exists(id) => Self::new(ProblemCode::SessionAlreadyExists, detail).for_session(&id),
            CreateSessionError::Agent(error) => error.into(),
            CreateSessionError::Store(_) => Self::new(ProblemCode::StreamError, detail),
        }
    }
}
