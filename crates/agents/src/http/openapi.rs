//! The description of the interface, generated from the code that serves it.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

use super::{agents, events, sessions};
use crate::log::View;

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
    components(schemas(View)),
    modifiers(&Bearer),
    security(("token" = []))
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        openapi.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// The description.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

pub(super) async fn serve() -> Response {
    let body = serde_json::to_vec(&document()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
