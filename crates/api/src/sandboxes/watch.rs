//! The events of all sandboxes with some labels, or of one.

use std::collections::HashMap;
use std::sync::Arc;

use carrel_control::EventWatch;
use carrel_store::{Event, Events, IdNamespace};
use tonic::Status;

use crate::carrel::v1::{WatchSandboxResponse, WatchSandboxesResponse};
use crate::convert;
use crate::feed::EventSource;
use crate::status::refused;
use crate::subscription::broken;

/// What somebody watches.
pub(crate) struct Watched {
    pub(super) watch: EventWatch,
    /// Of whoever watches.
    pub(super) namespace: IdNamespace,
}

/// One sandbox that somebody watches.
pub(crate) struct WatchedSandbox {
    pub(super) events: Events,
    /// Of whoever watches.
    pub(super) namespace: IdNamespace,
}

// === impl Watched ===

impl EventSource for Watched {
    type Item = (Arc<Event>, IdNamespace);
    type Message = WatchSandboxesResponse;

    async fn next(&mut self) -> Result<Option<Vec<Self::Item>>, Status> {
        let events = self.watch.next().await.map_err(refused)?;
        Ok(events.map(|events| events.into_iter().map(|event| (event, self.namespace)).collect()))
    }

    fn message((event, namespace): Self::Item) -> WatchSandboxesResponse {
        let published = event.kind.is_published().then(|| convert::event(&event, namespace));
        // Of a type that neither has, clients get the position only.
        WatchSandboxesResponse { position: event.position, event: published, pause: convert::pause(&event, namespace) }
    }

    fn resume_metadata((event, _): &Self::Item) -> HashMap<String, String> {
        HashMap::from([("last_position".to_owned(), event.position.to_string())])
    }
}

// === impl WatchedSandbox ===

impl EventSource for WatchedSandbox {
    type Item = (Arc<Event>, IdNamespace);
    type Message = WatchSandboxResponse;

    async fn next(&mut self) -> Result<Option<Vec<Self::Item>>, Status> {
        let events = self.events.next().await.map_err(|error| broken(&error))?;
        Ok(events.map(|events| events.into_iter().map(|event| (event, self.namespace)).collect()))
    }

    fn message(item: Self::Item) -> WatchSandboxResponse {
        let WatchSandboxesResponse { position, event, pause } = Watched::message(item);
        WatchSandboxResponse { position, event, pause }
    }

    fn resume_metadata((event, namespace): &Self::Item) -> HashMap<String, String> {
        let (sandbox, last) = (event.sandbox.seen_from(*namespace).to_owned(), event.sequence);
        HashMap::from([("sandbox_id".to_owned(), sandbox), ("last_sequence".to_owned(), last.to_string())])
    }
}

#[cfg(test)]
mod tests {
    use carrel_store::{EventDetails, EventType, SandboxId, SandboxState, Timestamp};

    use super::*;
    use crate::agbox::v1;

    #[test]
    fn an_event_is_sent_as_a_published_one_or_as_a_pause_or_as_its_position_alone() {
        let message = |kind| {
            let text = String::new;
            let details =
                EventDetails::Phase { phase: text(), error_code: text(), error_message: text(), reason: text() };
            let (sandbox, state) = (SandboxId::new("demo").unwrap(), SandboxState::Ready);
            let event = Event { position: 9, sandbox, sequence: 3, kind, at: Timestamp(7), state, details };
            Watched::message((Arc::new(event), IdNamespace::Daemon))
        };
        for &kind in EventType::ALL {
            let WatchSandboxesResponse { position, event, pause } = message(kind);
            let number = event.map(|event| event.event_type);
            assert!(number.is_none_or(|number| v1::EventType::try_from(number).is_ok()), "{kind:?}: {number:?}");
            assert_eq!((position, number.is_some()), (9, kind.is_published()), "{kind:?}");
            let paused = match kind {
                EventType::SandboxPaused => Some(true),
                EventType::SandboxUnpaused => Some(false),
                _ => None,
            };
            assert_eq!(pause.map(|pause| pause.paused), paused, "{kind:?}");
        }
    }
}
