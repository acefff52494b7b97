//! Orphans, which are disks that the store does not know: listed, adopted, and removed on request only.

use std::sync::Arc;

use carrel_store::{Change, DesiredState, EventDetails, EventType, NewEvent, Sandbox, SandboxId, SandboxState};

use super::create::sandbox_taken;
use super::{Control, ControlInner, Mailbox, internal, place, store_failed};
use crate::actor::SandboxOrigin;
use crate::codes::{cause, reason};
use crate::provider::{Manifest, Orphan, ProviderError};
use crate::refusal::{Code, Refusal};
use crate::settings::Caller;
use crate::spec::Spec;

// === impl Control ===

impl Control {
    /// Lists orphans, the oldest first.
    pub async fn orphans(&self, caller: &Caller) -> Result<Vec<Orphan>, Refusal> {
        require_trusted(caller)?;
        self.0.check_home()?;
        let mut found =
            self.0.provider.orphans(&self.in_use_source()).await.map_err(|error| provider_failed(&error))?;
        found.sort_by(|one, other| (one.since, &one.disk).cmp(&(other.since, &other.disk)));
        Ok(found)
    }

    /// Adopts an orphan as a sandbox: stopped, or ready if it runs. It gets its former id unless another one is given.
    pub async fn adopt_orphan(&self, caller: &Caller, disk: &str, id: Option<&str>) -> Result<Arc<Sandbox>, Refusal> {
        let orphan = self.orphan(caller, disk).await?;
        let disk = orphan.disk.as_str();
        let Some(manifest) = orphan.manifest.clone() else {
            let message = format!("disk {disk} has no manifest, so it cannot be adopted");
            return Err(Refusal::new(Code::FailedPrecondition, reason::ORPHAN_UNKNOWN, message).about("disk", disk));
        };
        let former = SandboxId::qualified(&manifest.sandbox).map_err(|error| internal(&error))?;
        let id = match id {
            Some(id) => SandboxId::qualified(id).map_err(|bad| Refusal::invalid("sandbox_id", bad))?,
            None => former.clone(),
        };
        if self.0.store.sandbox(&id).is_some() {
            return Err(sandbox_taken(&self.0.store, &id));
        }
        // A running sandbox has its former name, and keeps its disk.
        if orphan.running.is_some() && id != former {
            let message = format!("it is running as {former}; stop it first, or adopt it with that id");
            return Err(Refusal::new(Code::FailedPrecondition, reason::ORPHAN_RUNNING, message).about("disk", disk));
        }
        let running = orphan.running.clone();
        self.0.provider.release_orphan(disk).await.map_err(|error| provider_failed(&error))?;
        let spec: Spec = serde_json::from_str(&manifest.spec).map_err(|error| internal(&error))?;
        let reuses_id = id == former;
        let sandbox = self.adopted(id, disk, running.as_deref(), &manifest, &spec);
        // The client may disconnect at any time, so a task makes sure that what is committed gets an actor.
        let (control, runs) = (self.clone(), running.is_some());
        let accepted = tokio::spawn(async move { control.accept_orphan(sandbox, reuses_id, runs, spec).await });
        accepted.await.map_err(|error| internal(&error))?
    }

    /// Stops what runs on an orphan, and removes it.
    pub async fn remove_orphan(&self, caller: &Caller, disk: &str) -> Result<(), Refusal> {
        let orphan = self.orphan(caller, disk).await?;
        self.0.provider.remove_orphan(&orphan.disk).await.map_err(|error| provider_failed(&error))
    }

    async fn orphan(&self, caller: &Caller, disk: &str) -> Result<Orphan, Refusal> {
        let named = |orphan: &Orphan| {
            orphan.disk == disk || orphan.manifest.as_ref().is_some_and(|manifest| manifest.sandbox == disk)
        };
        let mut found: Vec<Orphan> = self.orphans(caller).await?.into_iter().filter(named).collect();
        match (found.pop(), found.is_empty()) {
            (Some(orphan), true) => Ok(orphan),
            (Some(_), false) => {
                let message = format!("several disks belonged to {disk}; give the name of the disk");
                Err(Refusal::new(Code::FailedPrecondition, reason::ORPHAN_UNKNOWN, message).about("disk", disk))
            }
            (None, _) => {
                let message = format!("there is no orphan {disk:?}");
                Err(Refusal::new(Code::NotFound, reason::ORPHAN_UNKNOWN, message).about("disk", disk))
            }
        }
    }

    fn adopted(&self, id: SandboxId, disk: &str, running: Option<&str>, manifest: &Manifest, spec: &Spec) -> Sandbox {
        let now = self.0.settings().clock.now();
        let (state, desired) = match running {
            Some(_) => (SandboxState::Ready, DesiredState::Ready),
            None => (SandboxState::Stopped, DesiredState::Stopped),
        };
        Sandbox {
            id,
            owner: manifest.owner,
            state,
            desired,
            reason: if running.is_some() { String::new() } else { cause::ADOPTED.to_owned() },
            incarnation: running.unwrap_or(disk).to_owned(),
            disk: disk.to_owned(),
            journal: 0,
            spec: manifest.spec.clone(),
            image: spec.image.clone(),
            labels: spec.labels.clone(),
            idle_ms: manifest.idle_ms,
            created_at: carrel_store::Timestamp(manifest.created_at.min(now.0)),
            state_changed_at: now,
            active_at: now,
            error_code: String::new(),
            error_message: String::new(),
            last_sequence: 0,
        }
    }

    /// Commits an adopted sandbox with the events that lead to its state. Its former id is its own, also after a repair that
    /// lost its row and kept the id.
    async fn accept_orphan(
        &self,
        sandbox: Sandbox,
        reuses_id: bool,
        runs: bool,
        spec: Spec,
    ) -> Result<Arc<Sandbox>, Refusal> {
        let (id, memory, now) = (sandbox.id.clone(), self.memory(&spec), sandbox.state_changed_at);
        self.check_open()?;
        let event = |kind, state, why: &str| {
            let details = match why {
                "" => EventDetails::None,
                why => crate::actor::phase_details("", why),
            };
            NewEvent { kind, at: now, state, details }
        };
        let mut events = vec![
            event(EventType::SandboxAccepted, SandboxState::Pending, ""),
            event(EventType::SandboxReady, SandboxState::Ready, ""),
        ];
        if !runs {
            events.push(event(EventType::SandboxStopRequested, SandboxState::Ready, cause::ADOPTED));
            events.push(event(EventType::SandboxStopped, SandboxState::Stopped, cause::ADOPTED));
        }
        let mailbox = Mailbox::new();
        self.0.register_mailbox(&id, &mailbox);
        let change = Change { sandbox, new: true, reuses_id, execs: Vec::new(), events, synced: true };
        let committed = self.0.store.commit(change).await.map_err(|error| {
            self.0.unregister_mailbox(&id, &mailbox);
            match error {
                carrel_store::StoreError::SandboxIdTaken => sandbox_taken(&self.0.store, &id),
                error => store_failed(&error),
            }
        })?;
        if runs {
            self.0.admission.record(&id, memory);
        }
        self.0.save_manifest(&committed.sandbox).await;
        self.spawn_actor(Arc::clone(&committed.sandbox), Arc::new(spec), mailbox, SandboxOrigin::Request);
        Ok(committed.sandbox)
    }
}

// === impl ControlInner ===

impl ControlInner {
    /// Saves the manifest of a sandbox beside its disk. A failure does not affect the sandbox.
    pub(super) async fn save_manifest(&self, sandbox: &Sandbox) {
        let manifest = Manifest {
            sandbox: sandbox.id.as_str().to_owned(),
            owner: sandbox.owner,
            image: sandbox.image.clone(),
            spec: sandbox.spec.clone(),
            created_at: sandbox.created_at.0,
            idle_ms: sandbox.idle_ms,
        };
        if let Err(error) = self.provider.save_manifest(&place(sandbox), &manifest).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "the manifest of a sandbox could not be saved");
        }
    }
}

fn require_trusted(caller: &Caller) -> Result<(), Refusal> {
    if caller.trusted {
        return Ok(());
    }
    let message = "only the daemon's own user may see orphans";
    Err(Refusal::new(Code::PermissionDenied, reason::ORPHANS_FORBIDDEN, message))
}

pub(super) fn provider_failed(error: &ProviderError) -> Refusal {
    Refusal::new(Code::FailedPrecondition, reason::PROVIDER_FAILED, error.message.clone())
}
