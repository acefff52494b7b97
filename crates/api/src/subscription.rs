//! A subscription to the events of one sandbox, past and future.

use std::collections::HashMap;
use std::sync::Arc;

use carrel_control::{Caller, Code, Control, Refusal, expired};
use carrel_store::{Event, Events, IdNamespace, Sequence, StoreError};
use tonic::Status;

use crate::agbox::v1::{SandboxEvent, SubscribeSandboxEventsRequest};
use crate::convert;
use crate::feed::EventSource;
use crate::status::refused;

/// A subscription to the events of one sandbox.
pub(crate) struct SandboxSubscription {
    events: Events,
    /// The id of the sandbox for the subscriber. `sent` is the last sequence that was sent.
    sandbox: String,
    sent: Sequence,
    /// Events up to this sequence preceded the subscription.
    newest: Sequence,
    /// The namespace of the subscriber.
    namespace: IdNamespace,
    /// The snapshot, which is sent first.
    snapshot: Vec<SubscriptionItem>,
}

pub(crate) enum SubscriptionItem {
    Event {
        event: Arc<Event>,
        /// Whether it preceded the subscription.
        replay: bool,
        /// The namespace of the subscriber.
        namespace: IdNamespace,
    },
    /// An event of the snapshot.
    Snapshot(Box<SandboxEvent>),
}

// === impl SandboxSubscription ===

impl SandboxSubscription {
    pub(crate) async fn start(
        control: &Control,
        caller: &Caller,
        request: &SubscribeSandboxEventsRequest,
    ) -> Result<Self, Status> {
        let id = &request.sandbox_id;
        let events = control.events(caller, id, request.from_sequence).map_err(refused)?;
        let newest = events.newest();
        let mut snapshot = Vec::new();
        if request.include_current_snapshot {
            snapshot = current_snapshot(control, caller, id, newest).await?;
        }
        let (sandbox, sent) = (id.clone(), request.from_sequence);
        Ok(Self { events, sandbox, sent, newest, namespace: caller.namespace(), snapshot })
    }
}

impl EventSource for SandboxSubscription {
    type Item = SubscriptionItem;
    type Message = SandboxEvent;

    async fn next(&mut self) -> Result<Option<Vec<SubscriptionItem>>, Status> {
        if !self.snapshot.is_empty() {
            return Ok(Some(std::mem::take(&mut self.snapshot)));
        }
        loop {
            let events = self.events.next().await.map_err(|error| match error {
                StoreError::Expired { oldest } => refused(expired(&self.sandbox, self.sent, oldest)),
                error => broken(&error),
            })?;
            let Some(events) = events else { return Ok(None) };
            self.sent = events.last().map_or(self.sent, |event| event.sequence);
            let item = |event: Arc<Event>| {
                let replay = event.sequence <= self.newest;
                SubscriptionItem::Event { event, replay, namespace: self.namespace }
            };
            // A published client fails on an unknown kind of event.
            let items: Vec<_> = events.into_iter().filter(|event| event.kind.is_published()).map(item).collect();
            if !items.is_empty() {
                return Ok(Some(items));
            }
        }
    }

    fn message(item: SubscriptionItem) -> SandboxEvent {
        match item {
            SubscriptionItem::Event { event, replay, namespace } => {
                SandboxEvent { replay, ..convert::event(&event, namespace) }
            }
            SubscriptionItem::Snapshot(event) => *event,
        }
    }

    fn resume_metadata(item: &SubscriptionItem) -> HashMap<String, String> {
        let (sandbox, sequence) = match item {
            SubscriptionItem::Event { event, namespace, .. } => {
                (event.sandbox.seen_from(*namespace).to_owned(), event.sequence)
            }
            SubscriptionItem::Snapshot(event) => (event.sandbox_id.clone(), event.sequence),
        };
        HashMap::from([("sandbox_id".to_owned(), sandbox), ("last_sequence".to_owned(), sequence.to_string())])
    }
}

/// The snapshot: the newest event, and each running exec.
async fn current_snapshot(
    control: &Control,
    caller: &Caller,
    id: &str,
    newest: Sequence,
) -> Result<Vec<SubscriptionItem>, Status> {
    let Some(last) = &newest_published(control, caller, id, newest).await? else { return Ok(Vec::new()) };
    let namespace = caller.namespace();
    let running = control.active_execs(caller, Some(id)).map_err(refused)?;
    let running = running.iter().map(|(exec, _)| convert::running(exec, last, namespace));
    let newest = SandboxEvent { replay: true, snapshot: true, ..convert::event(last, namespace) };
    Ok(std::iter::once(newest).chain(running).map(|event| SubscriptionItem::Snapshot(Box::new(event))).collect())
}

/// The newest event that published clients know.
async fn newest_published(
    control: &Control,
    caller: &Caller,
    id: &str,
    newest: Sequence,
) -> Result<Option<Arc<Event>>, Status> {
    let (mut after, mut last) = (newest.saturating_sub(1), None);
    loop {
        let mut events = control.events(caller, id, after).map_err(refused)?;
        let mut read = after;
        while read < newest
            && let Some(some) = events.next().await.map_err(|error| broken(&error))?
        {
            read = some.last().map_or(newest, |event| event.sequence);
            let known = |event: &&Arc<Event>| event.sequence <= newest && event.kind.is_published();
            last = some.iter().rfind(known).cloned().or(last);
        }
        if last.is_some() || after == 0 {
            return Ok(last);
        }
        // Pauses rarely follow each other, and the first event is not a pause.
        after = after.saturating_sub((newest - after).saturating_mul(8));
    }
}

/// The status if the log cannot be read.
pub(crate) fn broken(error: &StoreError) -> Status {
    refused(Refusal::new(Code::Internal, "STORE_FAILED", format!("the log cannot be read: {error}")))
}
