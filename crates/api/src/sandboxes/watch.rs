//! The events of all sandboxes with some labels.

use std::collections::HashMap;
use std::sync::Arc;

use carrel_control::Watch;
use carrel_store::{Event, Namespace};
use tonic::Status;

use crate::carrel::v1::WatchSandboxesResponse;
use crate::convert;
use crate::feed::Source;
use crate::status::refused;

/// What somebody watches.
pub(crate) struct Watched {
    pub(super) watch: Watch,
    /// Of whoever watches.
    pub(super) namespace: Namespace,
}

// === impl Watched ===

impl Source for Watched {
    type Item = (Arc<Event>, Namespace);
    type Message = WatchSandboxesResponse;

    async fn next(&mut self) -> Result<Option<Vec<Self::Item>>, Status> {
        let events = self.watch.next().await.map_err(refused)?;
        Ok(events.map(|events| events.into_iter().map(|event| (event, self.namespace)).collect()))
    }

    fn message((event, namespace): Self::Item) -> WatchSandboxesResponse {
        WatchSandboxesResponse { position: event.position, event: Some(convert::event(&event, namespace)) }
    }

    fn place((event, _): &Self::Item) -> HashMap<String, String> {
        HashMap::from([("last_position".to_owned(), event.position.saturating_sub(1).to_string())])
    }
}
