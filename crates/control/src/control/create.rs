//! A sandbox that is asked for: checked, admitted, written down, and given to an actor.

use std::sync::Arc;

use carrel_store::{
    Change, DesiredState, Details, EventType, NewEvent, Sandbox, SandboxId, SandboxState, Store, StoreError, Timestamp,
};

use super::{Control, CreateRequest, Mailbox, broken, commit_failed, shown};
use crate::actor::Origin;
use crate::failpoint::Step;
use crate::refusal::{Code, Refusal};
use crate::settings::Caller;
use crate::spec::{Draft, Spec, yaml};
use crate::words::reason;

/// How many bytes what a sandbox is made from may have: it is kept for as long as anything is known of the sandbox.
const LONGEST_SPEC: usize = 256 * 1024;

/// The longest name of a user, with its group.
const LONGEST_USER: usize = 256;
/// The longest path that the kernel takes.
const LONGEST_PATH: usize = 4095;

// === impl Control ===

impl Control {
    /// Accepts a sandbox.
    pub async fn create(&self, caller: &Caller, request: CreateRequest) -> Result<Arc<Sandbox>, Refusal> {
        // What is not limited is taken from everybody on this machine.
        if request.allow_unenforced_limits && !caller.trusted {
            let words = "only the daemon's own user may have limits left out that this host cannot enforce";
            return Err(Refusal::new(Code::PermissionDenied, reason::UNENFORCED_LIMITS_FORBIDDEN, words));
        }
        let spec = self.checked(caller, request.spec, &request.config_yaml).await?;
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
        // One that the caller sees has that id, from before there were namespaces.
        if self.get(caller, id.as_str()).is_ok() {
            return Err(sandbox_taken(&self.0.store, &id));
        }
        let sandbox = sandbox(id.within(caller.namespace()), caller.user, &spec, self.0.settings().clock.now())?;
        // Whoever asks may leave at any moment, but not in between: what is written down has an actor.
        let control = self.clone();
        let accepted = tokio::spawn(async move { control.accept(sandbox, spec).await });
        let accepted = accepted.await.map_err(|error| broken(&error))?;
        accepted.map_err(|refusal| refusal.seen_from(caller.namespace()))
    }

    async fn accept(&self, sandbox: Sandbox, spec: Spec) -> Result<Arc<Sandbox>, Refusal> {
        let (id, memory, now) = (sandbox.id.clone(), self.memory(&spec), sandbox.created_at);
        self.open()?;
        self.0.check_home()?;
        if self.0.store.sandbox(&id).is_some() {
            return Err(sandbox_taken(&self.0.store, &id));
        }
        self.0.check_disk(&id)?;
        self.0.take_place(&sandbox)?;
        if let Err(refusal) = self.0.take_room(&id, memory) {
            self.0.settle_place(&id);
            return Err(refusal);
        }
        let mailbox = Mailbox::new();
        self.0.expect(&id, &mailbox);
        let accepted = NewEvent {
            kind: EventType::SandboxAccepted,
            at: now,
            state: SandboxState::Pending,
            details: Details::None,
        };
        let change = Change { sandbox, new: true, execs: Vec::new(), events: vec![accepted], synced: true };
        Step::CreateAccepted.begin();
        let committed = self.0.store.commit(change).await;
        self.0.settle_room(&id, memory);
        self.0.settle_place(&id);
        let committed = committed.map_err(|error| {
            self.0.give_up(&id, &mailbox);
            match error {
                StoreError::SandboxIdTaken => sandbox_taken(&self.0.store, &id),
                error => commit_failed(&error),
            }
        })?;
        Step::CreateAccepted.end();
        self.0.save_manifest(&committed.sandbox).await;
        self.begin(Arc::clone(&committed.sandbox), Arc::new(spec), mailbox, Origin::Request);
        Ok(committed.sandbox)
    }

    async fn checked(&self, caller: &Caller, spec: Option<Draft>, yaml: &[u8]) -> Result<Spec, Refusal> {
        let base = if yaml.is_empty() { None } else { Some(yaml::parse(yaml)?) };
        let draft = match (spec, base) {
            (Some(spec), Some(base)) => spec.over(base),
            (Some(draft), None) | (None, Some(draft)) => draft,
            (None, None) => return Err(Refusal::invalid("create_spec", "it is missing")),
        };
        let (host, caller) = (self.0.settings().host.clone(), *caller);
        // It looks at files of the host, which may be slow.
        let spec = tokio::task::spawn_blocking(move || draft.check(&host, &caller)).await;
        spec.map_err(|error| broken(&error))?
    }
}

/// A user is a name or a number; whether there is one is found out when the sandbox is made.
fn check_user(user: Option<&str>) -> Result<(), Refusal> {
    let fits = |user: &str| user.len() <= LONGEST_USER && !user.contains(char::is_control);
    let words = format!("has to be a name or a number of at most {LONGEST_USER} bytes");
    if user.is_none_or(fits) { Ok(()) } else { Err(Refusal::invalid("user", words)) }
}

fn check_workdir(workdir: Option<&str>) -> Result<(), Refusal> {
    let fits = |path: &str| path.starts_with('/') && path.len() <= LONGEST_PATH && !path.contains('\0');
    if workdir.is_none_or(fits) { Ok(()) } else { Err(Refusal::invalid("workdir", "has to be an absolute path")) }
}

/// A sandbox as it begins.
fn sandbox(id: SandboxId, owner: u32, spec: &Spec, now: Timestamp) -> Result<Sandbox, Refusal> {
    let incarnation = random_incarnation()?;
    let text = serde_json::to_string(spec).map_err(|error| broken(&error))?;
    if text.len() > LONGEST_SPEC {
        let words = format!("it has {} bytes in all, and may have {LONGEST_SPEC}", text.len());
        return Err(Refusal::invalid("create_spec", words));
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
        Ok(_) | Err(_) => Err(broken(&"the kernel gives no random bytes")),
    }
}

/// What one start of a sandbox is named by.
pub(crate) fn random_incarnation() -> Result<String, Refusal> {
    Ok(format!("{:016x}", u64::from_ne_bytes(random()?)))
}

/// A random id, in the form of a UUID of version 4.
pub(crate) fn random_id() -> Result<String, Refusal> {
    let number = u128::from_ne_bytes(random()?);
    let version = number & !(0xf << 76) | 4 << 76;
    let number = version & !(3 << 62) | 2 << 62;
    let hex = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default());
    Ok(parts.join("-"))
}

/// An id is reserved for ever: events are addressed by it, and a second sandbox would give their sequences again.
pub(super) fn sandbox_taken(store: &Store, id: &SandboxId) -> Refusal {
    let name = id.local();
    let words = match store.sandbox(id) {
        Some(sandbox) if sandbox.state != SandboxState::Deleted => {
            format!("there is a sandbox {name:?} already: it is {}", shown(&sandbox))
        }
        _ => format!("the id {name:?} was used by a sandbox that was removed, and no id is used twice"),
    };
    Refusal::new(Code::AlreadyExists, reason::SANDBOX_ID_ALREADY_EXISTS, words).about("sandbox_id", id.as_str())
}
