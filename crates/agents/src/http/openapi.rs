//! The OpenAPI document, generated from the handlers.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

use super::{agents, events, sessions};
use crate::log::EventView;

#[derive(OpenApi)]
#[openapi(
    info(title = "sandbox-agent", description = "One API over coding agents."),
    paths(
        agents::health,
        agents::list,
        agents::install,
        agents::modes,
        agents::models,
        sessions::list,
        sessions::create,
        sessions::get,
        sessions::change,
        sessions::delete,
        sessions::message,
        events::message_stream,
        events::list,
        events::stream,
        sessions::reply_question,
        sessions::reject_question,
        sessions::reply_permission,
        sessions::abort,
        sessions::resume,
        sessions::terminate
    ),
    components(schemas(EventView)),
    modifiers(&BearerSecurity),
    security(("token" = []))
)]
struct ApiDocument;

struct BearerSecurity;

impl Modify for BearerSecurity {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        openapi.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

pub fn document() -> utoipa::openapi::OpenApi {
    ApiDocument::openapi()
}

pub(super) async fn serve() -> Response {
    let body = serde_json::to_vec(&document()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
