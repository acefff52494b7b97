//! Event streams. A stream holds only a position in the log, so nothing is lost when a connection breaks.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    log::{EventFormat, LogReadOptions, LogState},
    session::{AgentSession, TurnHandle},
};

/// Keep-alive interval of an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long a stream waits for the last events when the server shuts down.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_millis(600);

/// Approximate size of a chunk.
const CHUNK_BYTES: usize = 64 * 1024;

/// A stream of a session's events.
pub(super) struct EventStream {
    session: Arc<AgentSession>,
    options: LogReadOptions,
    /// The last id that was sent.
    at: u64,
    log_state: watch::Receiver<LogState>,
    shutting_down: watch::Receiver<bool>,
    /// When it ends during a shutdown even if its session is still open.
    drain_deadline: Option<Instant>,
    turn: Option<TurnFollower>,
}

/// Limits a stream to one turn.
pub(super) struct TurnFollower {
    pub(super) handle: TurnHandle,
    /// How long it waits for the user's answer.
    pub(super) timeout: Duration,
    waiting_since: Option<Instant>,
    started: bool,
}

// === impl TurnFollower ===

impl TurnFollower {
    pub(super) fn new(handle: TurnHandle, timeout: Duration) -> Self {
        Self { handle, timeout, waiting_since: None, started: false }
    }
}

// === impl EventStream ===

impl EventStream {
    /// All events after an id, and then new ones.
    pub(super) fn after(
        session: Arc<AgentSession>,
        options: LogReadOptions,
        at: u64,
        shutting_down: watch::Receiver<bool>,
    ) -> Self {
        let log_state = session.log.watch();
        Self {
            session,
            options: LogReadOptions { format: EventFormat::ServerSent, ..options },
            at,
            log_state,
            shutting_down,
            drain_deadline: None,
            turn: None,
        }
    }

    /// Limits it to one turn.
    pub(super) fn of_turn(mut self, turn: TurnFollower) -> Self {
        self.turn = Some(turn);
        self
    }

    /// The HTTP response.
    pub(super) fn into_response(self) -> Response {
        let chunks = stream::unfold(self, |mut events| async move {
            let chunk = events.next().await?;
            Some((Ok::<_, Infallible>(chunk), events))
        });
        let mut response = Response::new(Body::from_stream(chunks));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Asks proxies not to buffer the response.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// The next chunk; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let keep_alive_at = Instant::now() + KEEP_ALIVE;
        loop {
            let log_state = *self.log_state.borrow_and_update();
            let end = match self.read_limit() {
                ReadLimit::Until(end) => end,
                ReadLimit::NotYet => 0,
                ReadLimit::Done => return None,
            };
            if self.at < end
                && let Some(chunk) = self.read(end)
            {
                return Some(chunk);
            }
            if log_state.closed {
                return None;
            }
            if *self.shutting_down.borrow_and_update() {
                self.drain_deadline.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT);
            }
            // An instant that overflows means never.
            let timeout = self.turn.as_ref().and_then(|turn| turn.waiting_since?.checked_add(turn.timeout));
            tokio::select! {
                changed = self.log_state.changed() => changed.ok()?,
                shutting_down = self.shutting_down.changed() => shutting_down.ok()?,
                () = changes(self.turn.as_mut()) => {}
                () = until(timeout) => return None,
                () = until(self.drain_deadline) => return None,
                () = sleep_until(keep_alive_at) => return Some(Bytes::from_static(b": keep-alive\n\n")),
            }
        }
    }

    fn read(&mut self, end: u64) -> Option<Bytes> {
        let limit = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let mut out = Vec::with_capacity(4096);
        let summary = self.session.log.read(self.options, self.at, limit, CHUNK_BYTES, &mut out);
        self.at = summary.last;
        (summary.count > 0).then(|| out.into())
    }

    /// How far the stream may read; without a turn there is no limit.
    fn read_limit(&mut self) -> ReadLimit {
        let Some(turn) = &mut self.turn else { return ReadLimit::Until(u64::MAX) };
        let state = *turn.handle.borrow_and_update();
        let Some(started) = state.started else {
            return if state.ended.is_some() { ReadLimit::Done } else { ReadLimit::NotYet };
        };
        if !std::mem::replace(&mut turn.started, true) {
            self.at = self.at.max(started.of(self.options.view));
        }
        turn.waiting_since = state.waiting.then(|| turn.waiting_since.unwrap_or_else(Instant::now));
        match state.ended.map(|end| end.of(self.options.view)) {
            Some(end) if self.at >= end => ReadLimit::Done,
            Some(end) => ReadLimit::Until(end),
            None => ReadLimit::Until(u64::MAX),
        }
    }
}

enum ReadLimit {
    NotYet,
    Until(u64),
    Done,
}

async fn changes(turn: Option<&mut TurnFollower>) {
    let Some(turn) = turn else { return std::future::pending().await };
    if turn.handle.changed().await.is_err() {
        // The session was closed with its turn: everything was sent.
        sleep(KEEP_ALIVE).await;
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{AgentProgram, Prompt, UserAnswer},
        log::EventView,
        mock::MockAgent,
        session::{SessionLimits, SessionParts},
    };

    const OPTIONS: LogReadOptions =
        LogReadOptions { view: EventView::Default, raw: false, format: EventFormat::ServerSent };

    fn session() -> Arc<AgentSession> {
        let record = serde_json::json!({
            "sessionId": "s", "agent": "mock", "agentMode": "build", "permissionMode": "default", "begun": false,
            "createdAt": 0, "updatedAt": 0, "directory": "/", "turns": 0, "running": false, "queue": [],
        });
        AgentSession::start(SessionParts {
            agent: Arc::new(MockAgent),
            locate: Arc::new(|_, _| Ok(AgentProgram::default())),
            record: serde_json::from_value(record).unwrap(),
            conversation: None,
            session_dir: None,
            limits: SessionLimits { idle_timeout: None, ..SessionLimits::default() },
        })
    }

    async fn turn(
        session: &Arc<AgentSession>,
        text: &str,
        timeout: Duration,
        shutting_down: &watch::Sender<bool>,
    ) -> EventStream {
        let handle = session.prompt(Prompt { id: "p".into(), text: text.into() }, false).await.unwrap();
        let events = EventStream::after(Arc::clone(session), OPTIONS, 0, shutting_down.subscribe());
        events.of_turn(TurnFollower::new(handle, timeout))
    }

    /// The next chunk, and how long it took.
    async fn next(events: &mut EventStream) -> (Option<String>, Duration) {
        let started = Instant::now();
        let bytes = events.next().await;
        (bytes.map(|bytes| String::from_utf8(bytes.into()).unwrap()), started.elapsed())
    }

    //= promises.agents-server.stream-without-news
    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_sends_keep_alives() {
        let (session, shutting_down) = (session(), watch::Sender::new(false));
        let mut events = EventStream::after(Arc::clone(&session), OPTIONS, 0, shutting_down.subscribe());
        assert!(next(&mut events).await.0.is_some_and(|first| first.contains("session.created")));
        let alive = (Some(": keep-alive\n\n".to_owned()), Duration::from_secs(15));
        assert_eq!(next(&mut events).await, alive);
        assert_eq!(next(&mut events).await, alive);
        // Events arrive at once, and reset the keep-alive timer.
        tokio::time::advance(KEEP_ALIVE / 2).await;
        session.prompt(Prompt { id: "p".into(), text: "hello".into() }, false).await.unwrap();
        let (news, after) = next(&mut events).await;
        assert!(news.is_some_and(|news| news.starts_with("id: 2\n")) && after.is_zero());
        while next(&mut events).await != alive {}
        // A terminated session keeps its streams.
        session.terminate().await.unwrap();
        assert_eq!(next(&mut events).await, alive);
        session.close(false, Duration::from_millis(500)).await;
        assert_eq!(next(&mut events).await, (None, Duration::ZERO));
    }

    //= promises.agents-server.stream-turn
    #[tokio::test(start_paused = true)]
    async fn the_stream_of_a_turn_waits_for_an_answer_until_its_timeout() {
        let (session, shutting_down) = (session(), watch::Sender::new(false));
        let timeout = Duration::from_secs(2);
        let mut events = turn(&session, "question", timeout, &shutting_down).await;
        let started = Instant::now();
        while next(&mut events).await.0.is_some() {}
        assert_eq!(started.elapsed(), timeout);
        // A turn that needs no answer is followed to its end.
        session.abort().await.unwrap();
        let mut events = turn(&session, "slow 60000", timeout, &shutting_down).await;
        let started = Instant::now();
        while next(&mut events).await.0.is_some() {}
        assert_eq!(started.elapsed(), Duration::from_secs(60));
    }

    //= promises.agents-server.stream-turn
    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_keeps_the_stream_of_a_turn_open() {
        let (session, shutting_down) = (session(), watch::Sender::new(false));
        let mut events = turn(&session, "plan", Duration::from_secs(2), &shutting_down).await;
        let mut received = String::new();
        while !received.contains("questionAsked") {
            received.push_str(&next(&mut events).await.0.unwrap());
        }
        let id = received.split("\"id\":\"").last().and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        tokio::time::advance(Duration::from_millis(1900)).await;
        session.answer(id, UserAnswer::QuestionRejected).await.unwrap();
        assert!(next(&mut events).await.0.is_some_and(|last| last.contains("not answered")));
        assert_eq!(next(&mut events).await, (None, Duration::ZERO));
    }

    //= promises.agents-server.sigint-sigterm
    #[tokio::test(start_paused = true)]
    async fn at_shutdown_a_stream_waits_for_the_last_events_until_a_deadline() {
        let (session, shutting_down) = (session(), watch::Sender::new(false));
        let mut streams =
            [0, 1].map(|_| EventStream::after(Arc::clone(&session), OPTIONS, 1, shutting_down.subscribe()));
        shutting_down.send_replace(true);
        assert_eq!(next(&mut streams[0]).await, (None, DRAIN_TIMEOUT));
        session.prompt(Prompt { id: "p".into(), text: "hello".into() }, false).await.unwrap();
        session.close(false, Duration::from_millis(500)).await;
        while let (Some(_), after) = next(&mut streams[1]).await {
            assert!(after.is_zero());
        }
    }
}
