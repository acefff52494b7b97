//! Reports the health of the services of a sandbox. An unchanged state is reported once.

use std::sync::Arc;

use carrel_store::{EventDetails, EventType};
use tokio::sync::mpsc;

use super::tasks::TaskOutcome;
use super::{Actor, ActorStopped};
use crate::codes::error_code;
use crate::control::place;
use crate::failpoint::FailpointStep;
use crate::provider::ServiceFact;
use crate::stage::SandboxStage;

/// How many events are searched for earlier reports.
const MAX_RECENT_EVENTS: usize = 100_000;

/// A report about a service, and the receiver of the next one.
pub(super) struct ServiceReport {
    incarnation: String,
    name: String,
    fact: Option<ServiceFact>,
    facts: mpsc::Receiver<ServiceFact>,
}

// === impl Actor ===

impl Actor {
    /// Starts all services and waits for their reports.
    pub(super) fn start_services(&mut self) {
        let place = place(&self.sandbox);
        let spec = Arc::clone(&self.spec);
        for service in &spec.services {
            let facts = self.shared.provider.service(&place, &spec, service);
            self.await_service(place.incarnation.clone(), service.name.clone(), facts);
        }
    }

    fn await_service(&mut self, incarnation: String, name: String, mut facts: mpsc::Receiver<ServiceFact>) {
        self.tasks.spawn(async move {
            let fact = facts.recv().await;
            TaskOutcome::Service(ServiceReport { incarnation, name, fact, facts })
        });
    }

    pub(super) async fn service_reported(&mut self, report: ServiceReport) -> Result<(), ActorStopped> {
        // There are no more reports, or this one is about an earlier incarnation.
        let Some(fact) = report.fact.filter(|_| report.incarnation == self.sandbox.incarnation) else { return Ok(()) };
        if self.stage() != SandboxStage::Ready {
            return Ok(());
        }
        let (kind, error_code, error_message) = match fact {
            ServiceFact::Ready => (EventType::ServiceReady, String::new(), String::new()),
            ServiceFact::Failed(error) => {
                let code = error.code.unwrap_or(error_code::SERVICE_FAILED);
                (EventType::ServiceFailed, code.to_owned(), error.message)
            }
        };
        if self.services.get(&report.name) != Some(&kind) {
            let mut edit = self.edit();
            edit.emit(kind, edit.now(), EventDetails::Service { name: report.name.clone(), error_code, error_message });
            self.persist(edit, FailpointStep::ServiceReported).await?;
            self.services.insert(report.name.clone(), kind);
        }
        self.await_service(report.incarnation, report.name, report.facts);
        Ok(())
    }

    /// Reads from the log what an earlier daemon reported about the services of this incarnation.
    pub(super) async fn restore_services(&mut self) {
        if self.spec.services.is_empty() {
            return;
        }
        let (newest, mut read) = (self.sandbox.last_sequence, 0);
        let Ok(mut events) = self.shared.store.events(&self.sandbox.id, 0) else { return };
        while read < MAX_RECENT_EVENTS
            && let Ok(Some(some)) = events.next().await
        {
            for event in &some {
                match (&event.details, event.kind) {
                    (_, EventType::SandboxAccepted) => self.services.clear(),
                    (EventDetails::Service { name, .. }, kind) => drop(self.services.insert(name.clone(), kind)),
                    _ => {}
                }
            }
            read += some.len();
            if some.last().is_none_or(|event| event.sequence >= newest) {
                break;
            }
        }
    }
}
