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

/// How long a stream waits for the last words of its session when the server ends.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(600);

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
    /// When it ends even if its session has not.
    last_call: Option<Instant>,
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
        Self { session, wish: Wish { style: Style::Stream, ..wish }, at, length, stopping, last_call: None, turn: None }
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
            if length.closed {
                return None;
            }
            if *self.stopping.borrow_and_update() {
                self.last_call.get_or_insert_with(|| Instant::now() + LAST_WORDS);
            }
            // A time that no clock reaches is never.
            let patience = self.turn.as_ref().and_then(|turn| turn.since?.checked_add(turn.patience));
            tokio::select! {
                changed = self.length.changed() => changed.ok()?,
                stopping = self.stopping.changed() => stopping.ok()?,
                () = changes(self.turn.as_mut()) => {}
                () = until(patience) => return None,
                () = until(self.last_call) => return None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{Answer, Place, Prompt},
        log::View,
        mock::Mock,
        session::{Beginning, Rules},
    };

    const WISH: Wish = Wish { view: View::Default, raw: false, style: Style::Stream };

    fn session() -> Arc<Session> {
        let record = serde_json::json!({
            "sessionId": "s", "agent": "mock", "agentMode": "build", "permissionMode": "default", "begun": false,
            "createdAt": 0, "updatedAt": 0, "directory": "/", "turns": 0, "running": false, "queue": [],
        });
        Session::start(Beginning {
            agent: Arc::new(Mock),
            locate: Arc::new(|_, _| Ok(Place::default())),
            record: serde_json::from_value(record).unwrap(),
            conversation: None,
            shelf: None,
            rules: Rules { idle: None, ..Rules::default() },
        })
    }

    async fn turn(session: &Arc<Session>, text: &str, patience: Duration, stopping: &watch::Sender<bool>) -> Events {
        let ticket = session.prompt(Prompt { id: "p".into(), text: text.into() }, false).await.unwrap();
        let events = Events::behind(Arc::clone(session), WISH, 0, stopping.subscribe());
        events.of_turn(Turn::new(ticket, patience))
    }

    /// The next bytes, and how long they took.
    async fn next(events: &mut Events) -> (Option<String>, Duration) {
        let begun = Instant::now();
        let bytes = events.next().await;
        (bytes.map(|bytes| String::from_utf8(bytes.into()).unwrap()), begun.elapsed())
    }

    //= promises.agents-server.stream-without-news
    #[tokio::test(start_paused = true)]
    async fn a_stream_without_news_says_that_it_is_alive() {
        let (session, stopping) = (session(), watch::Sender::new(false));
        let mut events = Events::behind(Arc::clone(&session), WISH, 0, stopping.subscribe());
        assert!(next(&mut events).await.0.is_some_and(|first| first.contains("session.created")));
        let alive = (Some(": keep-alive\n\n".to_owned()), KEEP_ALIVE);
        assert_eq!(next(&mut events).await, alive);
        assert_eq!(next(&mut events).await, alive);
        // News come at once, and count as a sign of life.
        tokio::time::advance(KEEP_ALIVE / 2).await;
        session.prompt(Prompt { id: "p".into(), text: "hello".into() }, false).await.unwrap();
        let (news, after) = next(&mut events).await;
        assert!(news.is_some_and(|news| news.starts_with("id: 2\n")) && after.is_zero());
        while next(&mut events).await != alive {}
        // A session that has ended is followed no less.
        session.terminate().await.unwrap();
        assert_eq!(next(&mut events).await, alive);
        session.close(false, Duration::from_millis(500)).await;
        assert_eq!(next(&mut events).await, (None, Duration::ZERO));
    }

    //= promises.agents-server.stream-turn
    #[tokio::test(start_paused = true)]
    async fn a_turn_that_waits_for_an_answer_is_followed_for_as_long_as_it_was_said() {
        let (session, stopping) = (session(), watch::Sender::new(false));
        let patience = Duration::from_secs(2);
        let mut events = turn(&session, "question", patience, &stopping).await;
        let begun = Instant::now();
        while next(&mut events).await.0.is_some() {}
        assert_eq!(begun.elapsed(), patience);
        // One that nobody need answer is followed for as long as it lasts.
        session.abort().await.unwrap();
        let mut events = turn(&session, "slow 60000", patience, &stopping).await;
        let begun = Instant::now();
        while next(&mut events).await.0.is_some() {}
        assert_eq!(begun.elapsed(), Duration::from_secs(60));
    }

    //= promises.agents-server.stream-turn
    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_keeps_the_stream_of_a_turn() {
        let (session, stopping) = (session(), watch::Sender::new(false));
        let mut events = turn(&session, "plan", Duration::from_secs(2), &stopping).await;
        let mut heard = String::new();
        while !heard.contains("questionAsked") {
            heard.push_str(&next(&mut events).await.0.unwrap());
        }
        let id = heard.split("\"id\":\"").last().and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        tokio::time::advance(Duration::from_millis(1900)).await;
        session.answer(id, Answer::QuestionRejected).await.unwrap();
        assert!(next(&mut events).await.0.is_some_and(|last| last.contains("not answered")));
        assert_eq!(next(&mut events).await, (None, Duration::ZERO));
    }

    //= promises.agents-server.sigint-sigterm
    #[tokio::test(start_paused = true)]
    async fn when_the_server_ends_a_stream_waits_for_last_words_but_not_for_ever() {
        let (session, stopping) = (session(), watch::Sender::new(false));
        let mut streams = [0, 1].map(|_| Events::behind(Arc::clone(&session), WISH, 1, stopping.subscribe()));
        stopping.send_replace(true);
        assert_eq!(next(&mut streams[0]).await, (None, LAST_WORDS));
        session.prompt(Prompt { id: "p".into(), text: "hello".into() }, false).await.unwrap();
        session.close(false, Duration::from_millis(500)).await;
        while let (Some(_), after) = next(&mut streams[1]).await {
            assert!(after.is_zero());
        }
    }
}
