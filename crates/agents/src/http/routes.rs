//! The routes of the API. Their paths are those of the OpenAPI document.

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    routing::{MethodFilter, MethodRouter, on},
};

use super::{AppState, agents, events, openapi, sessions};

const GET: MethodFilter = MethodFilter::GET;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;

/// A route with its handler.
pub(super) struct ApiRoute {
    #[cfg_attr(not(test), expect(dead_code, reason = "the handler has it too; a test compares it with the document"))]
    method: MethodFilter,
    path: &'static str,
    handler: MethodRouter<Arc<AppState>>,
}

/// The routes that need the token.
pub(super) fn authenticated() -> Vec<ApiRoute> {
    vec![
        route(GET, "/v1/agents", agents::list),
        route(POST, "/v1/agents/{agent}/install", agents::install),
        route(GET, "/v1/agents/{agent}/modes", agents::modes),
        route(GET, "/v1/agents/{agent}/models", agents::models),
        route(GET, "/v1/sessions", sessions::list),
        route(POST, "/v1/sessions/{sessionId}", sessions::create),
        route(GET, "/v1/sessions/{sessionId}", sessions::get),
        route(PATCH, "/v1/sessions/{sessionId}", sessions::change),
        route(DELETE, "/v1/sessions/{sessionId}", sessions::delete),
        route(POST, "/v1/sessions/{sessionId}/messages", sessions::message),
        route(POST, "/v1/sessions/{sessionId}/messages/stream", events::message_stream),
        route(GET, "/v1/sessions/{sessionId}/events", events::list),
        route(GET, "/v1/sessions/{sessionId}/events/sse", events::stream),
        route(POST, "/v1/sessions/{sessionId}/questions/{questionId}/reply", sessions::reply_question),
        route(POST, "/v1/sessions/{sessionId}/questions/{questionId}/reject", sessions::reject_question),
        route(POST, "/v1/sessions/{sessionId}/permissions/{permissionId}/reply", sessions::reply_permission),
        route(POST, "/v1/sessions/{sessionId}/abort", sessions::abort),
        route(POST, "/v1/sessions/{sessionId}/resume", sessions::resume),
        route(POST, "/v1/sessions/{sessionId}/terminate", sessions::terminate),
    ]
}

/// The routes that need no token.
pub(super) fn public() -> Vec<ApiRoute> {
    vec![
        route(GET, "/", banner),
        route(GET, "/v1/health", agents::health),
        route(GET, "/openapi.json", openapi::serve),
        route(GET, "/v1/openapi.json", openapi::serve),
    ]
}

pub(super) fn add(router: Router<Arc<AppState>>, routes: Vec<ApiRoute>) -> Router<Arc<AppState>> {
    routes.into_iter().fold(router, |router, route| router.route(route.path, route.handler))
}

fn route<T: 'static>(method: MethodFilter, path: &'static str, handler: impl Handler<T, Arc<AppState>>) -> ApiRoute {
    ApiRoute { method, path, handler: on(method, handler) }
}

async fn banner() -> &'static str {
    concat!("sandbox-agent ", env!("CARGO_PKG_VERSION"), ": one API over coding agents. See /openapi.json\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Methods and paths, as the document names them.
    fn operations(routes: Vec<ApiRoute>) -> BTreeSet<(String, String)> {
        let names = [(GET, "get"), (POST, "post"), (PATCH, "patch"), (DELETE, "delete")];
        let name = |method| names.iter().find(|(known, _)| *known == method).unwrap().1.to_owned();
        routes.iter().map(|route| (name(route.method), route.path.to_owned())).collect()
    }

    //= promises.agents-server.description
    //= promises.agents-server.routes-need-token
    #[test]
    fn every_route_is_in_the_document_and_only_health_needs_no_token() {
        let document = serde_json::to_value(super::super::document()).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let described: BTreeSet<_> = paths
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
            })
            .collect();
        let mut public = operations(public());
        for path in ["/", "/openapi.json", "/v1/openapi.json"] {
            assert!(public.remove(&("get".to_owned(), path.to_owned())), "{path}");
        }
        assert_eq!(public, BTreeSet::from([("get".to_owned(), "/v1/health".to_owned())]));
        let mut routes = operations(authenticated());
        routes.extend(public);
        assert_eq!(routes, described);
    }
}
