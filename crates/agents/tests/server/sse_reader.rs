//! A strict reader of server-sent events.

use reqwest::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::Value;

use crate::support::soon;

/// A stream of events.
pub(crate) struct SseReader {
    response: reqwest::Response,
    text: String,
    /// How much of `text` was returned.
    at: usize,
    /// The beginning of an incomplete character.
    half: Vec<u8>,
}

// === impl SseReader ===

impl SseReader {
    pub(crate) async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = soon(request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        Self { response, text: String::new(), at: 0, half: Vec::new() }
    }

    /// The next frame; `None` at the end.
    pub(crate) async fn block(&mut self) -> Option<String> {
        soon(async {
            loop {
                while let Some(length) = self.text[self.at..].find("\n\n") {
                    let block = self.text[self.at..self.at + length].to_owned();
                    self.at += length + 2;
                    if !block.starts_with(':') {
                        return Some(block);
                    }
                }
                self.text.drain(..self.at);
                self.at = 0;
                match self.response.chunk().await {
                    Ok(Some(chunk)) => self.take(&chunk),
                    // A killed server interrupts its streams; an incomplete frame is not an event.
                    Ok(None) | Err(_) => return None,
                }
            }
        })
        .await
    }

    fn take(&mut self, chunk: &[u8]) {
        self.half.extend_from_slice(chunk);
        let whole = std::str::from_utf8(&self.half).map_or_else(|error| error.valid_up_to(), str::len);
        self.text.push_str(std::str::from_utf8(&self.half[..whole]).unwrap());
        self.half.drain(..whole);
    }

    /// The next event. Its id is in the frame and in the event.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let block = self.block().await?;
        let (id, data) = block.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(id, format!("id: {}", event["id"]));
        Some(event)
    }

    /// All events up to the first that matches, including it.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            let event = event.unwrap_or_else(|| panic!("the stream ended after {events:#?}"));
            let found = wanted(&event);
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// All events up to the first of this kind, including it.
    pub(crate) async fn until_kind(&mut self, kind: &str) -> Vec<Value> {
        self.until(|event| event["data"].get(kind).is_some()).await
    }

    /// All events until the stream ends.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}
