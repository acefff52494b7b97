//! The HTTP API: routes, authentication and error responses.

mod agents;
pub mod api_types;
mod auth;
mod cors;
mod events;
mod extract;
mod hosts;
mod openapi;
mod problem;
mod serve;
mod sessions;
mod sse;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, Uri},
    middleware,
    response::IntoResponse,
    routing::{get, post},
};
use tokio::sync::watch;

pub use self::{
    auth::ServerToken,
    cors::{CorsError, CorsPolicy},
    events::{EventList, EventQuery, UniversalEvent},
    hosts::{AllowedHosts, HostNameError},
    openapi::document,
    problem::{ApiProblem, ProblemCode, ProblemDetails},
    serve::{HttpServeError, ServerListener, serve},
};
use crate::{agents::AgentRegistry, sessions::SessionRegistry};

/// Maximum size of a request's body: a prompt may contain a file.
const MAX_BODY: usize = 32 * 1024 * 1024;

/// Shared state of all handlers.
pub struct AppState {
    /// The token, if one is required.
    pub token: Option<ServerToken>,
    /// Hosts that are allowed without a token; any on a Unix socket, which no browser can reach.
    pub hosts: Option<AllowedHosts>,
    /// CORS policy.
    pub cors: CorsPolicy,
    /// Agents.
    pub agents: Arc<AgentRegistry>,
    /// Sessions.
    pub sessions: SessionRegistry,
    /// Becomes true when the server shuts down; streams end first.
    pub shutting_down: watch::Receiver<bool>,
}

/// All routes.
pub fn router(app: Arc<AppState>) -> Router {
    let cors = app.cors.clone();
    let authenticated = Router::new()
        .route("/v1/agents", get(agents::list))
        .route("/v1/agents/{agent}/install", post(agents::install))
        .route("/v1/agents/{agent}/modes", get(agents::modes))
        .route("/v1/agents/{agent}/models", get(agents::models))
        .route("/v1/sessions", get(sessions::list))
        .route(
            "/v1/sessions/{session_id}",
            post(sessions::create).get(sessions::get).patch(sessions::change).delete(sessions::delete),
        )
        .route("/v1/sessions/{session_id}/messages", post(sessions::message))
        .route("/v1/sessions/{session_id}/messages/stream", post(events::message_stream))
        .route("/v1/sessions/{session_id}/events", get(events::list))
        .route("/v1/sessions/{session_id}/events/sse", get(events::stream))
        .route("/v1/sessions/{session_id}/questions/{question_id}/reply", post(sessions::reply_question))
        .route("/v1/sessions/{session_id}/questions/{question_id}/reject", post(sessions::reject_question))
        .route("/v1/sessions/{session_id}/permissions/{permission_id}/reply", post(sessions::reply_permission))
        .route("/v1/sessions/{session_id}/abort", post(sessions::abort))
        .route("/v1/sessions/{session_id}/resume", post(sessions::resume))
        .route("/v1/sessions/{session_id}/terminate", post(sessions::terminate))
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), auth::check));
    let router = Router::new()
        .route("/", get(banner))
        .route("/v1/health", get(agents::health))
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/openapi.json", get(openapi::serve))
        .merge(authenticated)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app);
    cors.apply(router)
}

async fn banner() -> &'static str {
    concat!("sandbox-agent ", env!("CARGO_PKG_VERSION"), ": one API over coding agents. See /openapi.json\n")
}

async fn not_found(method: Method, uri: Uri) -> impl IntoResponse {
    ApiProblem::new(ProblemCode::NotFound, format!("there is nothing at {method} {}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> impl IntoResponse {
    ApiProblem::new(ProblemCode::MethodNotAllowed, format!("{} does not take {method}", uri.path()))
}
