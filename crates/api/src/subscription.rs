//! The events of one sandbox, from the past into the present.

use std::collections::HashMap;
use std::sync::Arc;

use carrel_control::{Caller, Code, Control, Refusal, expired};
use carrel_store::{Event, Events, Namespace, Sequence, StoreError};
use tonic::Status;

use crate::agbox::v1::{SandboxEvent, SubscribeSandboxEventsRequest};
use crate::convert;
use crate::feed::Source;
use crate::status::refused;

/// The events of one sandbox that somebody subscribed to.
pub(crate) struct Subscription {
    events: Events,
    /// The sandbox, as whoever subscribed calls it, and the last event that was told.
    sandbox: String,
    told: Sequence,
    /// Events up to this one had happened before.
    newest: Sequence,
    /// Of whoever subscribed.
    namespace: Namespace,
    /// How things were, told first.
    snapshot: Vec<Told>,
}

/// Something to be told.
pub(crate) enum Told {
    /// It happened.
    Event {
        event: Arc<Event>,
        /// Whether before the subscription.
        replay: bool,
        /// Of whoever is told.
        namespace: Namespace,
    },
    /// It is so.
    Snapshot(Box<SandboxEvent>),
}

// === impl Subscription ===

impl Subscription {
    pub(crate) async fn begin(
        control: &Control,
        caller: &Caller,
        request: &SubscribeSandboxEventsRequest,
    ) -> Result<Self, Status> {
        let id = &request.sandbox_id;
        let events = control.events(caller, id, request.from_sequence).map_err(refused)?;
        let newest = events.newest();
        let mut snapshot = Vec::new();
        if request.include_current_snapshot {
            snapshot = how_it_is(control, caller, id, newest).await?;
        }
        let (sandbox, told) = (id.clone(), request.from_sequence);
        Ok(Self { events, sandbox, told, newest, namespace: caller.namespace(), snapshot })
    }
}

impl Source for Subscription {
    type Item = Told;
    type Message = SandboxEvent;

    async fn next(&mut self) -> Result<Option<Vec<Told>>, Status> {
        if !self.snapshot.is_empty() {
            return Ok(Some(std::mem::take(&mut self.snapshot)));
        }
        loop {
            let events = self.events.next().await.map_err(|error| match error {
                StoreError::Expired { oldest } => refused(expired(&self.sandbox, self.told, oldest)),
                error => broken(&error),
            })?;
            let Some(events) = events else { return Ok(None) };
            self.told = events.last().map_or(self.told, |event| event.sequence);
            let told = |event: Arc<Event>| {
                let replay = event.sequence <= self.newest;
                Told::Event { event, replay, namespace: self.namespace }
            };
            // A published client ends at an event of a kind that it does not know.
            let told: Vec<_> = events.into_iter().filter(|event| event.kind.is_published()).map(told).collect();
            if !told.is_empty() {
                return Ok(Some(told));
            }
        }
    }

    fn message(item: Told) -> SandboxEvent {
        match item {
            Told::Event { event, replay, namespace } => SandboxEvent { replay, ..convert::event(&event, namespace) },
            Told::Snapshot(event) => *event,
        }
    }

    fn place(item: &Told) -> HashMap<String, String> {
        let (sandbox, sequence) = match item {
            Told::Event { event, namespace, .. } => (event.sandbox.seen_from(*namespace).to_owned(), event.sequence),
            Told::Snapshot(event) => (event.sandbox_id.clone(), event.sequence),
        };
        HashMap::from([("sandbox_id".to_owned(), sandbox), ("last_sequence".to_owned(), sequence.to_string())])
    }
}

/// The newest event once more, and every exec that runs.
async fn how_it_is(control: &Control, caller: &Caller, id: &str, newest: Sequence) -> Result<Vec<Told>, Status> {
    let Some(last) = &newest_published(control, caller, id, newest).await? else { return Ok(Vec::new()) };
    let namespace = caller.namespace();
    let running = control.active_execs(caller, Some(id)).map_err(refused)?;
    let running = running.iter().map(|(exec, _)| convert::running(exec, last, namespace));
    let newest = SandboxEvent { replay: true, snapshot: true, ..convert::event(last, namespace) };
    Ok(std::iter::once(newest).chain(running).map(|event| Told::Snapshot(Box::new(event))).collect())
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
        let mut seen = after;
        while seen < newest
            && let Some(some) = events.next().await.map_err(|error| broken(&error))?
        {
            seen = some.last().map_or(newest, |event| event.sequence);
            let known = |event: &&Arc<Event>| event.sequence <= newest && event.kind.is_published();
            last = some.iter().rfind(known).cloned().or(last);
        }
        if last.is_some() || after == 0 {
            return Ok(last);
        }
        // Pauses seldom follow each other, and the first event is none.
        after = after.saturating_sub((newest - after).saturating_mul(8));
    }
}

/// What a log that cannot be read is told as.
pub(crate) fn broken(error: &StoreError) -> Status {
    refused(Refusal::new(Code::Internal, "STORE_FAILED", format!("the log cannot be read: {error}")))
}
