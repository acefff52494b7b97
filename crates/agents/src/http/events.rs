//! Events over HTTP: a slice of the log, the log as a stream, and one turn as a stream.
#![allow(unused_qualifications, reason = "utoipa writes parameters out with their paths")]

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    App, Problem, ProblemDetails,
    extract::{Json, Path, Query},
    sessions::{find, take},
    shape::PostMessage,
    sse::{Events, Turn},
};
use crate::{
    log::{Style, View, Wish},
    schema::EventData,
};

/// How long a stream of one turn waits for somebody's answer unless it is told.
const PATIENCE: Duration = Duration::from_secs(2);

/// What about a session's events is wanted.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// The last id that was seen: events behind it are given.
    pub offset: Option<u64>,
    /// How many at most.
    pub limit: Option<usize>,
    /// `default`, or `full` with turns, items, usage and more; ids count in the view.
    #[serde(default)]
    pub view: View,
    /// With `raw`, the agent's own words.
    #[serde(default, alias = "include_raw", deserialize_with = "flag")]
    pub include_raw: bool,
    /// For how many seconds the stream of a turn waits for an answer to what the agent asks.
    pub wait: Option<f64>,
}

/// A flag as people write it.
fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let word = String::deserialize(deserializer)?;
    match word.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(serde::de::Error::custom(format!("{word} is neither true nor false"))),
    }
}

/// An event.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the log writes events itself; this is how they look")]
pub struct UniversalEvent {
    /// From 1, without gaps, in each view.
    id: u64,
    /// When.
    timestamp: String,
    /// In which session.
    session_id: String,
    /// Whose.
    agent: String,
    /// The agent's own id of the session.
    agent_session_id: Option<String>,
    /// What happened.
    data: EventData,
    /// The agent's own words, where they were asked for.
    raw: Option<serde_json::Value>,
}

/// A slice of a log.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the log writes events itself; this is how they look")]
pub struct EventList {
    /// The events.
    events: Vec<UniversalEvent>,
    /// Whether there were more already.
    has_more: bool,
}

// === impl EventQuery ===

impl EventQuery {
    const fn wish(&self) -> Wish {
        Wish { view: self.view, raw: self.include_raw, style: Style::Array }
    }
}

/// A slice of a session's events.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}/events", operation_id = "list_events", tag = "events",
    params(("sessionId" = String, Path), EventQuery),
    responses((status = 200, body = EventList), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<EventQuery>,
) -> Result<Response, Problem> {
    let session = find(&app, &id)?;
    let mut body = b"{\"events\":[".to_vec();
    let limit = query.limit.unwrap_or(usize::MAX);
    let given = session.log.read(query.wish(), query.offset.unwrap_or(0), limit, usize::MAX, &mut body);
    body.extend_from_slice(format!("],\"hasMore\":{}}}", given.more).as_bytes());
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], body).into_response())
}

/// A session's events as they come, behind the last one that was seen.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}/events/sse", operation_id = "stream_events", tag = "events",
    params(("sessionId" = String, Path), EventQuery, ("Last-Event-ID" = Option<u64>, Header)),
    responses((status = 200, body = UniversalEvent, content_type = "text/event-stream"), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let session = find(&app, &id)?;
    let after = match headers.get("last-event-id") {
        Some(value) => {
            let number = value.to_str().ok().and_then(|value| value.trim().parse().ok());
            number.ok_or_else(|| Problem::invalid("Last-Event-ID has to be the id of an event"))?
        }
        None => query.offset.unwrap_or(0),
    };
    Ok(Events::behind(session, query.wish(), after, app.stopping.clone()).into_response())
}

/// Takes a prompt and streams its turn.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/messages/stream", operation_id = "post_message_and_stream", tag = "events",
    params(("sessionId" = String, Path), EventQuery), request_body = PostMessage,
    responses((status = 200, body = UniversalEvent, content_type = "text/event-stream"), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn message_stream(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<EventQuery>,
    headers: HeaderMap,
    Json(message): Json<PostMessage>,
) -> Result<Response, Problem> {
    let patience = match query.wait {
        Some(seconds) => {
            Duration::try_from_secs_f64(seconds).map_err(|error| Problem::invalid(format!("wait: {error}")))?
        }
        None => PATIENCE,
    };
    let session = find(&app, &id)?;
    let ticket = take(&session, &headers, message).await?;
    let events = Events::behind(session, query.wish(), query.offset.unwrap_or(0), app.stopping.clone());
    Ok(events.of_turn(Turn::new(ticket, patience)).into_response())
}
