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
mod routes;
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
    pub cors: CorsPolicy,
    pub agents: Arc<AgentRegistry>,
    pub sessions: SessionRegistry,
    /// Becomes true when the server shuts down; streams end first.
    pub shutting_down: watch::Receiver<bool>,
}

pub fn router(app: Arc<AppState>) -> Router {
    let cors = app.cors.clone();
    let authenticated = routes::add(Router::new(), routes::authenticated())
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), auth::check));
    let router = routes::add(Router::new(), routes::public())
        .merge(authenticated)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app);
    cors.apply(router)
}

async fn not_found(method: Method, uri: Uri) -> impl IntoResponse {
    ApiProblem::new(ProblemCode::NotFound, format!("no route: {method} {}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> impl IntoResponse {
    ApiProblem::new(ProblemCode::MethodNotAllowed, format!("method {method} is not allowed for {}", uri.path()))
}
