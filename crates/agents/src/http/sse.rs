//! Streams of events. A stream holds a position in the log and nothing else: whatever the network does, nothing is lost.

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
    log::{Length, Style, Wish},
    session::{Session, Ticket},
};

/// How often a stream without news says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// About how much is given to a connection at once.
const ROOM: usize = 64 * 1024;

/// A stream of a session's events.
pub(super) struct Events {
    session: Arc<Session>,
    wish: Wish,
    /// The last id that was given.
    at: u64,
    length: watch::Receiver<Length>,
    stopping: watch::Receiver<bool>,
    turn: Option<Turn>,
}

/// The turn that a stream follows.
pub(super) struct Turn {
    pub(super) ticket: Ticket,
    /// How long it waits for an answer of somebody's.
    pub(super) patience: Duration,
    since: Option<Instant>,
    begun: bool,
}

// === impl Turn ===

impl Turn {
    pub(super) fn new(ticket: Ticket, patience: Duration) -> Self {
        Self { ticket, patience, since: None, begun: false }
    }
}

// === impl Events ===

impl Events {
    /// Everything behind an id, and then what comes.
    pub(super) fn behind(session: Arc<Session>, wish: Wish, at: u64, stopping: watch::Receiver<bool>) -> Self {
        let length = session.log.watch();
        Self { session, wish: Wish { style: Style::Stream, ..wish }, at, length, stopping, turn: None }
    }

    /// One turn, from its beginning to its end.
    pub(super) fn of_turn(mut self, turn: Turn) -> Self {
        self.turn = Some(turn);
        self
    }

    /// The answer that carries it.
    pub(super) fn into_response(self) -> Response {
        let chunks = stream::unfold(self, |mut events| async move {
            let chunk = events.next().await?;
            Some((Ok::<_, Infallible>(chunk), events))
        });
        let mut response = Response::new(Body::from_stream(chunks));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies that collect an answer before they pass it on are asked not to.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// The next bytes, or nothing when the stream is at its end.
    async fn next(&mut self) -> Option<Bytes> {
        let quiet = Instant::now() + KEEP_ALIVE;
        loop {
            let length = *self.length.borrow_and_update();
            let end = match self.turn_end() {
                Follow::Until(end) => end,
                Follow::NotYet => 0,
                Follow::Done => return None,
            };
            if self.at < end
                && let Some(chunk) = self.read(end)
            {
                return Some(chunk);
            }
            if length.closed || *self.stopping.borrow() {
                return None;
            }
            let patience = self.turn.as_ref().and_then(|turn| Some(turn.since? + turn.patience));
            tokio::select! {
                changed = self.length.changed() => changed.ok()?,
                stopping = self.stopping.changed() => stopping.ok()?,
                () = changes(self.turn.as_mut()) => {}
                () = until(patience) => return None,
                () = sleep_until(quiet) => return Some(Bytes::from_static(b": keep-alive\n\n")),
            }
        }
    }

    fn read(&mut self, end: u64) -> Option<Bytes> {
        let limit = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let mut out = Vec::with_capacity(4096);
        let given = self.session.log.read(self.wish, self.at, limit, ROOM, &mut out);
        self.at = given.last;
        (given.count > 0).then(|| out.into())
    }

    /// How far the stream may read: without a turn as far as there is.
    fn turn_end(&mut self) -> Follow {
        let Some(turn) = &mut self.turn else { return Follow::Until(u64::MAX) };
        let state = *turn.ticket.borrow_and_update();
        let Some(begun) = state.begun else {
            return if state.ended.is_some() { Follow::Done } else { Follow::NotYet };
        };
        if !std::mem::replace(&mut turn.begun, true) {
            self.at = self.at.max(begun.of(self.wish.view));
        }
        turn.since = state.waiting.then(|| turn.since.unwrap_or_else(Instant::now));
        match state.ended.map(|end| end.of(self.wish.view)) {
            Some(end) if self.at >= end => Follow::Done,
            Some(end) => Follow::Until(end),
            None => Follow::Until(u64::MAX),
        }
    }
}

enum Follow {
    NotYet,
    Until(u64),
    Done,
}

async fn changes(turn: Option<&mut Turn>) {
    let Some(turn) = turn else { return std::future::pending().await };
    if turn.ticket.changed().await.is_err() {
        // The session is gone with its turn: what there is was given.
        sleep(KEEP_ALIVE).await;
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
