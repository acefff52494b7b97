//! Creates a sandbox: checks, admits and commits it, then spawns its actor.

use std::sync::Arc;

use carrel_failpoint::Failpoints;
use carrel_store::{
    Change, DesiredState, EventDetails, EventType, NewEvent, Sandbox, SandboxId, SandboxState, Store, StoreError,
    Timestamp,
};

use super::{Control, CreateRequest, Mailbox, commit_failed, internal, stage_name};
use crate::actor::SandboxOrigin;
use crate::codes::reason;
use crate::failpoint::FailpointStep;
use crate::refusal::{Code, Refusal};
use crate::settings::Caller;
use crate::spec::{Spec, SpecDraft, yaml};

/// The maximum size of a spec. The store keeps it for as long as the sandbox's row.
const MAX_SPEC_BYTES: usize = 256 * 1024;

/// The longest name of a user with its group.
const MAX_USER_BYTES: usize = 256;
/// The longest path that the kernel accepts.
const MAX_PATH_BYTES: usize = 4095;

// === impl Control ===

impl Control {
    /// Accepts a new sandbox.
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<Arc<Sandbox>, Refusal> {
        // What is not limited is taken from all users of the host.
        if request.allow_unenforced_limits && !caller.trusted {
            let message = "only the daemon's own user may allow unenforced limits";
            return Err(Refusal::new(Code::PermissionDenied, reason::UNENFORCED_LIMITS_FORBIDDEN, message));
        }
        let spec = self.check_spec(caller, request.spec, &request.config_yaml).await?;
        let restart = request.restart.unwrap_or(spec.restart);
        check_user(request.user.as_deref())?;
        check_workdir(request.workdir.as_deref())?;
        let CreateRequest { allow_unenforced_limits, user, workdir, pids, .. } = request;
        let spec = Spec { allow_unenforced_limits, restart, user, workdir, pids, ..spec };
        let id = match request.id {
            Some(id) => id,
            None => random_id()?,
        };
        let id = SandboxId::new(id).map_err(|bad| Refusal::invalid("sandbox_id", bad))?;
        // The caller's sandbox has that id from before namespaces existed.
        if self.get(caller, id.as_str()).is_ok() {
            return Err(sandbox_taken(&self.0.store, &id));
        }
        let sandbox = sandbox(id.within(caller.namespace()), caller.user, &spec, self.0.settings().clock.now())?;
        // The client may disconnect at any time, so a task makes sure that what is committed gets an actor.
        let control = self.clone();
        let accepted = tokio::spawn(async move { control.accept(sandbox, spec).await });
        let accepted = accepted.await.map_err(|error| internal(&error))?;
        accepted.map_err(|refusal| refusal.seen_from(caller.namespace()))
    }

    async fn accept(&self, sandbox: Sandbox, spec: Spec) -> Result<Arc<Sandbox>, Refusal> {
        let (id, memory, now) = (sandbox.id.clone(), self.memory(&spec), sandbox.created_at);
        self.check_open()?;
        self.0.check_home()?;
        if self.0.store.sandbox(&id).is_some() {
            return Err(sandbox_taken(&self.0.store, &id));
        }
        self.0.check_disk(&id)?;
        self.0.reserve_quota(&sandbox)?;
        if let Err(refusal) = self.0.reserve_capacity(&id, memory) {
            self.0.settle_quota(&id);
            return Err(refusal);
        }
        let mailbox = Mailbox::new();
        self.0.register_mailbox(&id, &mailbox);
        let accepted = NewEvent {
            kind: EventType::SandboxAccepted,
            at: now,
            state: SandboxState::Pending,
            details: EventDetails::None,
        };
        let change =
            Change { sandbox, new: true, reuses_id: false, execs: Vec::new(), events: vec![accepted], synced: true };
        FailpointStep::CreateAccepted.begin();
        let committed = self.0.store.commit(change).await;
        self.0.settle_capacity(&id, memory);
        self.0.settle_quota(&id);
        let committed = committed.map_err(|error| {
            self.0.unregister_mailbox(&id, &mailbox);
            match error {
                StoreError::SandboxIdTaken => sandbox_taken(&self.0.store, &id),
                error => commit_failed(&error),
            }
        })?;
        FailpointStep::CreateAccepted.end();
        self.0.save_manifest(&committed.sandbox).await;
        self.spawn_actor(Arc::clone(&committed.sandbox), Arc::new(spec), mailbox, SandboxOrigin::Request);
        Ok(committed.sandbox)
    }

    async fn check_spec(&self, caller: &Caller, spec: Option<SpecDraft>, yaml: &[u8]) -> Result<Spec, Refusal> {
        let base = if yaml.is_empty() { None } else { Some(yaml::parse(yaml)?) };
        let draft = match (spec, base) {
            (Some(spec), Some(base)) => spec.over(base),
            (Some(draft), None) | (None, Some(draft)) => draft,
            (None, None) => return Err(Refusal::invalid("create_spec", "is missing")),
        };
        let (host, caller) = (self.0.settings().host.clone(), *caller);
        // It reads files of the host, which may block.
        let spec = tokio::task::spawn_blocking(move || draft.check(&host, &caller)).await;
        spec.map_err(|error| internal(&error))?
    }
}

/// Checks the form of a user. Whether it exists is known when the sandbox starts.
fn check_user(user: Option<&str>) -> Result<(), Refusal> {
    let fits = |user: &str| user.len() <= MAX_USER_BYTES && !user.contains(char::is_control);
    let message = format!("must be a name or a number of at most {MAX_USER_BYTES} bytes");
    if user.is_none_or(fits) { Ok(()) } else { Err(Refusal::invalid("user", message)) }
}

fn check_workdir(workdir: Option<&str>) -> Result<(), Refusal> {
    let fits = |path: &str| path.starts_with('/') && path.len() <= MAX_PATH_BYTES && !path.contains('\0');
    if workdir.is_none_or(fits) { Ok(()) } else { Err(Refusal::invalid("workdir", "must be an absolute path")) }
}

/// The row of a new sandbox.
fn sandbox(id: SandboxId, owner: u32, spec: &Spec, now: Timestamp) -> Result<Sandbox, Refusal> {
    let incarnation = random_incarnation()?;
    let text = serde_json::to_string(spec).map_err(|error| internal(&error))?;
    if text.len() > MAX_SPEC_BYTES {
        let message = format!("has {} bytes in total; the limit is {MAX_SPEC_BYTES}", text.len());
        return Err(Refusal::invalid("create_spec", message));
    }
    Ok(Sandbox {
        id,
        owner,
        state: SandboxState::Pending,
        desired: DesiredState::Ready,
        reason: String::new(),
        disk: incarnation.clone(),
        incarnation,
        journal: 0,
        spec: text,
        image: spec.image.clone(),
        labels: spec.labels.clone(),
        idle_ms: spec.idle_ttl.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)),
        created_at: now,
        state_changed_at: now,
        active_at: now,
        error_code: String::new(),
        error_message: String::new(),
        last_sequence: 0,
    })
}

fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(read) if read == N => Ok(bytes),
        Ok(_) | Err(_) => Err(internal(&"the kernel returned no random bytes")),
    }
}

/// A random name for one start of a sandbox.
pub(crate) fn random_incarnation() -> Result<String, Refusal> {
    Ok(format!("{:016x}", u64::from_ne_bytes(random()?)))
}

/// A random UUID of version 4.
pub(crate) fn random_id() -> Result<String, Refusal> {
    let number = u128::from_ne_bytes(random()?);
    let version = number & !(0xf << 76) | 4 << 76;
    let number = version & !(3 << 62) | 2 << 62;
    let hex = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default());
    Ok(parts.join("-"))
}

/// An id is reserved forever: it addresses events, and a second sandbox would reuse their sequences.
pub(super) fn sandbox_taken(store: &Store, id: &SandboxId) -> Refusal {
    let name = id.local();
    let message = match store.sandbox(id) {
        Some(sandbox) if sandbox.state != SandboxState::Deleted => {
            format!("sandbox {name:?} already exists and is {}", stage_name(&sandbox))
        }
        _ => format!("id {name:?} was used by a deleted sandbox; ids cannot be reused"),
    };
    Refusal::new(Code::AlreadyExists, reason::SANDBOX_ID_ALREADY_EXISTS, message).about("sandbox_id", id.as_str())
}
