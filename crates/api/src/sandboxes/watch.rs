//! The events of all sandboxes with some labels.

use std::collections::HashMap;
use std::sync::Arc;

use carrel_control::Watch;
use carrel_store::Event;
use tonic::Status;

use crate::carrel::v1::WatchSandboxesResponse;
use crate::convert;
use crate::feed::Source;
use crate::status::refused;

/// What somebody watches.
pub(crate) struct Watched(pub(super) Watch);

// === impl Watched ===

impl Source for Watched {
    type Item = Arc<Event>;
    type Message = WatchSandboxesResponse;

    async fn next(&mut self) -> Result<Option<Vec<Arc<Event>>>, Status> {
        self.0.next().await.map_err(refused)
    }

    fn message(event: Arc<Event>) -> WatchSandboxesResponse {
        WatchSandboxesResponse { position: event.position, event: Some(convert::event(&event)) }
    }

    fn place(event: &Arc<Event>) -> HashMap<String, String> {
        HashMap::from([("last_position".to_owned(), event.position.saturating_sub(1).to_string())])
    }
}
