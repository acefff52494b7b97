//! Events over HTTP: a slice of the log, the log as a stream, and one turn as a stream.
#![allow(unused_qualifications, reason = "utoipa writes parameters out with their paths")]

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, stream};
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
    session::Session,
};

/// About how much of a slice is given at once.
const PIECE: usize = 64 * 1024;

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
    let slice = Slice::of(find(&app, &id)?, &query);
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], slice.into_body()).into_response())
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

/// A slice of a log on its way: piece by piece, for it may be large, and others are served meanwhile.
struct Slice {
    session: Arc<Session>,
    wish: Wish,
    /// The last id that was given, and the last that will be.
    at: u64,
    end: u64,
    more: bool,
    next: Option<Vec<u8>>,
}

// === impl Slice ===

impl Slice {
    fn of(session: Arc<Session>, query: &EventQuery) -> Self {
        let last = session.log.last().of(query.view);
        let at = query.offset.unwrap_or(0).min(last);
        let limit = query.limit.map_or(u64::MAX, |limit| limit as u64);
        let end = last.min(at.saturating_add(limit));
        let begin = Some(b"{\"events\":[".to_vec());
        Self { session, wish: query.wish(), at, end, more: end < last, next: begin }
    }

    /// In one piece if it is small, and as a stream otherwise.
    fn into_body(mut self) -> Body {
        let first = self.piece().unwrap_or_default();
        if self.next.is_none() {
            return Body::from(first);
        }
        let rest = stream::unfold(self, |mut slice| async move { Some((Ok::<_, Infallible>(slice.piece()?), slice)) });
        Body::from_stream(stream::once(async { Ok(first) }).chain(rest))
    }

    fn piece(&mut self) -> Option<Vec<u8>> {
        let mut out = self.next.take()?;
        let limit = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        self.at = self.session.log.read(self.wish, self.at, limit, PIECE, &mut out).last;
        if self.at < self.end {
            self.next = Some(b",".to_vec());
        } else {
            out.extend_from_slice(format!("],\"hasMore\":{}}}", self.more).as_bytes());
        }
        Some(out)
    }
}
