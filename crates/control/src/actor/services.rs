//! Services beside a sandbox: told when they are well, and once when they are not.

use std::sync::Arc;

use carrel_store::{Details, EventType};
use tokio::sync::mpsc;

use super::work::Finished;
use super::{Actor, Gone};
use crate::control::place;
use crate::failpoint::Step;
use crate::machine::Stage;
use crate::provider::ServiceFact;
use crate::words::error_code;

/// How many events are looked through for what was told before.
const RECALLED: usize = 100_000;

/// What is told of a service, and who tells more.
pub(super) struct Told {
    incarnation: String,
    name: String,
    fact: Option<ServiceFact>,
    facts: mpsc::Receiver<ServiceFact>,
}

// === impl Actor ===

impl Actor {
    /// Has all services run, and listens.
    pub(super) fn begin_services(&mut self) {
        let place = place(&self.sandbox);
        let spec = Arc::clone(&self.spec);
        for service in &spec.services {
            let facts = self.shared.provider.service(&place, &spec, service);
            self.listen(place.incarnation.clone(), service.name.clone(), facts);
        }
    }

    fn listen(&mut self, incarnation: String, name: String, mut facts: mpsc::Receiver<ServiceFact>) {
        self.tasks.spawn(async move {
            let fact = facts.recv().await;
            Finished::Service(Told { incarnation, name, fact, facts })
        });
    }

    pub(super) async fn service_told(&mut self, told: Told) -> Result<(), Gone> {
        // Nobody tells more, or not of this start.
        let Some(fact) = told.fact.filter(|_| told.incarnation == self.sandbox.incarnation) else { return Ok(()) };
        if self.stage() != Stage::Ready {
            return Ok(());
        }
        let (kind, error_code, error_message) = match fact {
            ServiceFact::Ready => (EventType::ServiceReady, String::new(), String::new()),
            ServiceFact::Failed(error) => {
                let code = error.code.unwrap_or(error_code::SERVICE_FAILED);
                (EventType::ServiceFailed, code.to_owned(), error.message)
            }
        };
        if self.services.get(&told.name) != Some(&kind) {
            let mut edit = self.edit();
            edit.tell(kind, edit.now(), Details::Service { name: told.name.clone(), error_code, error_message });
            self.persist(edit, Step::ServiceTold).await?;
            self.services.insert(told.name.clone(), kind);
        }
        self.listen(told.incarnation, told.name, told.facts);
        Ok(())
    }

    /// Finds what an earlier daemon told of the services of this start.
    pub(super) async fn recall_services(&mut self) {
        if self.spec.services.is_empty() {
            return;
        }
        let (newest, mut seen) = (self.sandbox.last_sequence, 0);
        let Ok(mut events) = self.shared.store.events(&self.sandbox.id, 0) else { return };
        while seen < RECALLED
            && let Ok(Some(some)) = events.next().await
        {
            for event in &some {
                match (&event.details, event.kind) {
                    (_, EventType::SandboxAccepted) => self.services.clear(),
                    (Details::Service { name, .. }, kind) => drop(self.services.insert(name.clone(), kind)),
                    _ => {}
                }
            }
            seen += some.len();
            if some.last().is_none_or(|event| event.sequence >= newest) {
                break;
            }
        }
    }
}
