//! The HTTP face: routes, who may come in, and how answers and refusals look.

mod agents;
mod auth;
mod cors;
mod events;
mod extract;
mod hosts;
mod openapi;
mod problem;
mod serve;
mod sessions;
pub mod shape;
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
    auth::Token,
    cors::{Cors, CorsError},
    events::{EventList, EventQuery, UniversalEvent},
    hosts::{AllowedHosts, HostNameError},
    openapi::document,
    problem::{Code, Problem, ProblemDetails},
    serve::{Listener, ServeError, serve},
};
use crate::{agents::Agents, sessions::Sessions};

/// How large a request's body may be: a prompt with a file pasted into it.
const BODY: usize = 32 * 1024 * 1024;

/// Everything that requests need.
pub struct App {
    /// The token, unless anybody may come in.
    pub token: Option<Token>,
    /// Which hosts a request without a token may be for; any, on a socket that no browser can reach.
    pub hosts: Option<AllowedHosts>,
    /// Whose pages may come.
    pub cors: Cors,
    /// The agents.
    pub agents: Arc<Agents>,
    /// The sessions.
    pub sessions: Sessions,
    /// Whether the server is about to end: streams end first.
    pub stopping: watch::Receiver<bool>,
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let cors = app.cors.clone();
    let guarded = Router::new()
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
        .method_not_allowed_fallback(wrong_method)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), auth::check));
    let router = Router::new()
        .route("/", get(banner))
        .route("/v1/health", get(agents::health))
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/openapi.json", get(openapi::serve))
        .merge(guarded)
        .method_not_allowed_fallback(wrong_method)
        .fallback(nothing_here)
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(app);
    cors.apply(router)
}

async fn banner() -> &'static str {
    concat!("sandbox-agent ", env!("CARGO_PKG_VERSION"), ": one API over coding agents. See /openapi.json\n")
}

async fn nothing_here(method: Method, uri: Uri) -> impl IntoResponse {
    Problem::new(Code::NotFound, format!("there is nothing at {method} {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> impl IntoResponse {
    Problem::new(Code::MethodNotAllowed, format!("{} does not take {method}", uri.path()))
}
