//! HTTP handlers for agents.

use std::sync::Arc;

use super::{
    ApiProblem, AppState, ProblemDetails,
    api_types::{AgentList, Health, InstallAgent, Mode, ModeList},
    extract::{OptionalJsonBody, PathParams},
};
use crate::agent::Models;
use axum::{Json as Body, extract::State, http::StatusCode};

const MODES: [Mode; 2] = [
    Mode { id: "build", name: "Build", description: "Works on the prompt" },
    Mode { id: "plan", name: "Plan", description: "Says first how it would do it, and changes nothing" },
];

/// Checks that the server is healthy.
#[utoipa::path(get, path = "/v1/health", tag = "meta", responses((status = 200, body = Health)), security(()))]
pub(super) async fn health() -> Body<Health> {
    Body(Health { status: "ok" })
}

/// Lists the agents.
#[utoipa::path(
    get, path = "/v1/agents", operation_id = "list_agents", tag = "agents",
    responses((status = 200, body = AgentList))
)]
pub(super) async fn list(State(app): State<Arc<AppState>>) -> Body<AgentList> {
    Body(AgentList { agents: app.agents.list().await })
}

/// Installs an agent.
#[utoipa::path(
    post, path = "/v1/agents/{agent}/install", operation_id = "install_agent", tag = "agents",
    params(("agent" = String, Path)),
    request_body = InstallAgent,
    responses((status = 204), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn install(
    State(app): State<Arc<AppState>>,
    PathParams(name): PathParams<String>,
    OptionalJsonBody(request): OptionalJsonBody<InstallAgent>,
) -> Result<StatusCode, ApiProblem> {
    let agent = app.agents.get(&name).ok_or_else(|| ApiProblem::unsupported_agent(&name))?;
    app.agents.install(agent.id(), request.reinstall, request.version.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the modes of an agent.
#[utoipa::path(
    get, path = "/v1/agents/{agent}/modes", operation_id = "list_modes", tag = "agents",
    params(("agent" = String, Path)),
    responses((status = 200, body = ModeList), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn modes(
    State(app): State<Arc<AppState>>,
    PathParams(name): PathParams<String>,
) -> Result<Body<ModeList>, ApiProblem> {
    app.agents.get(&name).ok_or_else(|| ApiProblem::unsupported_agent(&name))?;
    Ok(Body(ModeList { modes: MODES.to_vec() }))
}

/// Lists the models of an agent.
#[utoipa::path(
    get, path = "/v1/agents/{agent}/models", operation_id = "list_models", tag = "agents",
    params(("agent" = String, Path)),
    responses((status = 200, body = Models), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn models(
    State(app): State<Arc<AppState>>,
    PathParams(name): PathParams<String>,
) -> Result<Body<Models>, ApiProblem> {
    let agent = app.agents.get(&name).ok_or_else(|| ApiProblem::unsupported_agent(&name))?;
    Ok(Body(app.agents.models(&*agent).await.map_err(|error| ApiProblem::from(error).for_agent(&name))?))
}
