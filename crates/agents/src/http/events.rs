//! HTTP handlers for events: a page of the log, a stream of the log, and a stream of one turn.
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
    ApiProblem, AppState, ProblemDetails,
    api_types::PostMessage,
    extract::{JsonBody, PathParams, QueryParams},
    sessions::{enqueue, find},
    sse::{EventStream, TurnFollower},
};
use crate::{
    log::{EventFormat, EventView, LogReadOptions},
    schema::EventData,
    session::AgentSession,
};

/// Approximate size of a chunk.
const CHUNK_BYTES: usize = 64 * 1024;

/// How long the stream of a turn waits for an answer by default.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Which events of a session are returned.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// The last id that the client has: events after it are returned.
    pub offset: Option<u64>,
    /// The maximum number of events.
    pub limit: Option<usize>,
    /// `default`, or `full` with turns, items, usage and more; ids count in the view.
    #[serde(default)]
    pub view: EventView,
    /// Includes the raw messages of the agent.
    #[serde(default, alias = "include_raw", deserialize_with = "flag")]
    pub include_raw: bool,
    /// How many seconds the stream of a turn waits for an answer to a request of the agent.
    pub wait: Option<f64>,
}

/// Parses a boolean query parameter.
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
    /// The id: from 1, without gaps, in each view.
    id: u64,
    /// The time.
    timestamp: String,
    /// The id of the session.
    session_id: String,
    /// The agent.
    agent: String,
    /// The agent's own id of the session.
    agent_session_id: Option<String>,
    /// The data.
    data: EventData,
    /// The raw message of the agent, if requested.
    raw: Option<serde_json::Value>,
}

/// A page of a log.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "the log writes events itself; this is how they look")]
pub struct EventList {
    /// The events.
    events: Vec<UniversalEvent>,
    /// Whether there are more.
    has_more: bool,
}

// === impl EventQuery ===

impl EventQuery {
    const fn options(&self) -> LogReadOptions {
        LogReadOptions { view: self.view, raw: self.include_raw, format: EventFormat::JsonArray }
    }

    /// How long the stream of a turn waits for an answer.
    fn answer_timeout(&self) -> Result<Duration, ApiProblem> {
        let Some(seconds) = self.wait else { return Ok(ANSWER_TIMEOUT) };
        Duration::try_from_secs_f64(seconds).map_err(|error| ApiProblem::invalid(format!("wait: {error}")))
    }
}

/// Lists events of a session.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}/events", operation_id = "list_events", tag = "events",
    params(("sessionId" = String, Path), EventQuery),
    responses((status = 200, body = EventList), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    QueryParams(query): QueryParams<EventQuery>,
) -> Result<Response, ApiProblem> {
    let page = EventPage::of(find(&app, &id)?, &query);
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], page.into_body()).into_response())
}

/// Streams the events of a session, from the last one that the client has.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}/events/sse", operation_id = "stream_events", tag = "events",
    params(("sessionId" = String, Path), EventQuery, ("Last-Event-ID" = Option<u64>, Header)),
    responses((status = 200, body = UniversalEvent, content_type = "text/event-stream"), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn stream(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    QueryParams(query): QueryParams<EventQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiProblem> {
    let session = find(&app, &id)?;
    let after = match headers.get("last-event-id") {
        Some(value) => {
            let number = value.to_str().ok().and_then(|value| value.trim().parse().ok());
            number.ok_or_else(|| ApiProblem::invalid("Last-Event-ID has to be the id of an event"))?
        }
        None => query.offset.unwrap_or(0),
    };
    Ok(EventStream::after(session, query.options(), after, app.shutting_down.clone()).into_response())
}

/// Sends a prompt and streams its turn.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/messages/stream", operation_id = "post_message_and_stream", tag = "events",
    params(("sessionId" = String, Path), EventQuery), request_body = PostMessage,
    responses((status = 200, body = UniversalEvent, content_type = "text/event-stream"), (status = "default", body = ProblemDetails, content_type = "application/problem+json"))
)]
pub(super) async fn message_stream(
    State(app): State<Arc<AppState>>,
    PathParams(id): PathParams<String>,
    QueryParams(query): QueryParams<EventQuery>,
    headers: HeaderMap,
    JsonBody(message): JsonBody<PostMessage>,
) -> Result<Response, ApiProblem> {
    let timeout = query.answer_timeout()?;
    let session = find(&app, &id)?;
    let handle = enqueue(&session, &headers, message).await?;
    let events = EventStream::after(session, query.options(), query.offset.unwrap_or(0), app.shutting_down.clone());
    Ok(events.of_turn(TurnFollower::new(handle, timeout)).into_response())
}

/// A page of the log. It may be large, so it is sent in chunks, and other tasks run in between.
struct EventPage {
    session: Arc<AgentSession>,
    options: LogReadOptions,
    /// The last id that was sent, and the last one to send.
    at: u64,
    end: u64,
    more: bool,
    next: Option<Vec<u8>>,
}

// === impl EventPage ===

impl EventPage {
    fn of(session: Arc<AgentSession>, query: &EventQuery) -> Self {
        let last = session.log.last().of(query.view);
        let at = query.offset.unwrap_or(0).min(last);
        let limit = query.limit.map_or(u64::MAX, |limit| limit as u64);
        let end = last.min(at.saturating_add(limit));
        let begin = Some(b"{\"events\":[".to_vec());
        Self { session, options: query.options(), at, end, more: end < last, next: begin }
    }

    /// One chunk if it is small, otherwise a stream.
    fn into_body(mut self) -> Body {
        let first = self.next_chunk().unwrap_or_default();
        if self.next.is_none() {
            return Body::from(first);
        }
        let rest =
            stream::unfold(self, |mut page| async move { Some((Ok::<_, Infallible>(page.next_chunk()?), page)) });
        Body::from_stream(stream::once(async { Ok(first) }).chain(rest))
    }

    fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let mut out = self.next.take()?;
        let limit = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        self.at = self.session.log.read(self.options, self.at, limit, CHUNK_BYTES, &mut out).last;
        if self.at < self.end {
            self.next = Some(b",".to_vec());
        } else {
            out.extend_from_slice(format!("],\"hasMore\":{}}}", self.more).as_bytes());
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.agents-server.stream-turn
    #[test]
    fn the_stream_of_a_turn_waits_two_seconds_for_an_answer_by_default() {
        let timeout = |wait| EventQuery { wait, ..EventQuery::default() }.answer_timeout().ok();
        assert_eq!(timeout(None), Some(Duration::from_secs(2)));
        assert_eq!(timeout(Some(0.25)), Some(Duration::from_millis(250)));
        assert_eq!(timeout(Some(-1.0)), None);
    }
}
