//! Agents that read the disks of sandboxes that do not run.
//!
//! What a guest wrote is only ever read inside a sandbox: an ephemeral one, made like a start of the sandbox, but without its
//! command, mounts, ports and services.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrel_control::provider::{DiskReader, Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_control::{ShareHolder, ShareLimits, SharePermit, ShareQuota};
use carrel_fetch::Image;
use carrel_shim_client::messages::{Create, Keep};
use carrel_shim_client::{Life, OwnedSandbox, layout};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::discovery::persistent_record;
use crate::paths::{MAX_NAME_LENGTH, hash_prefix, name};
use crate::pidfd::wait_or_kill;
use crate::start::{disk_missing, exists};
use crate::{LocalInner, blocking, failed, images, plan};

/// How many there are at most: each is a sandbox that no limit of the daemon counts. A sandbox has one, whoever reads.
const LIMITS: ShareLimits = ShareLimits { total: 8, each: 4, reserved: 2 };
/// How often it is looked at whether one is used. One that has no client then is not.
const LOOK: Duration = Duration::from_secs(20);
/// How often a client may be seen to read nothing before the reader ends under it: that is a minute.
const QUIET: u32 = 3;
/// How long a supervisor may take to answer, or to end, before it is ended by force.
const BEYOND: Duration = Duration::from_secs(5);

/// The readers that are open, by the names of their sandboxes. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct DiskReaders {
    open: Arc<Mutex<HashMap<String, OpenReader>>>,
    quota: ShareQuota,
}

/// A reader that is open, or is just ending.
#[derive(Clone, Debug)]
struct OpenReader {
    agent_socket: PathBuf,
    /// A message ends the reader, and so does the end of all leases.
    lease: mpsc::WeakSender<()>,
    leases: Arc<AtomicU64>,
    /// Closed when nothing of it is left.
    ended: watch::Receiver<()>,
}

/// A share in a reader, which ends with the last of them.
#[derive(Debug)]
pub(crate) struct ReaderLease {
    agent_socket: PathBuf,
    _lease: mpsc::Sender<()>,
    ended: watch::Receiver<()>,
}

/// What a reader was seen to be used for when it was last looked at.
#[derive(Debug, Default)]
struct IdleCheck {
    leases: u64,
    bytes: u64,
    quiet: u32,
}

/// A reader, with those who have a share in it.
struct ReaderTask {
    owned: OwnedSandbox,
    /// Waited for here: a daemon that ends does not wait for it.
    child: Option<Child>,
    directory: PathBuf,
    ending: mpsc::Receiver<()>,
    leases: Arc<AtomicU64>,
}

impl LocalInner {
    /// PendingStarts a reader on the disk of a sandbox that does not run, or shares the one that is open.
    pub(crate) async fn read_disk(&self, place: &Place, spec: &Spec) -> Result<ReaderLease, ProviderError> {
        let (name, disk) = (name(&place.sandbox), self.paths.disk(place)?);
        if !exists(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        let image = self.image(&spec.image, spec.host_owner(), &disk).await?;
        // A start and a removal wait until it is open, and then end it.
        let _lock = self.locks.lock(&name).await;
        if let Some(lease) = self.readers.share(&name) {
            return Ok(lease);
        }
        // One that is just ending has the disk.
        self.end_reader(place).await?;
        if !exists(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        let found = self.find(&place.sandbox).await?;
        if found.is_some_and(|found| persistent_record(&found).is_some() && !matches!(found.life, Life::Dead { .. })) {
            return Err(failed("the sandbox runs"));
        }
        let permit = self.readers.permit(place.sandbox.namespace().into())?;
        let create = self.plan_reader(place, spec, image).await?;
        let owned = self.create_with_shim(&place.sandbox, &create).await?;
        let prestarted = Arc::clone(&self.prestarted);
        drop(tokio::task::spawn_blocking(move || prestarted.fill()));
        Ok(self.readers.open(name, owned, create.directory.0, permit))
    }

    /// Ends the reader of a sandbox, if there is one. It must be the caller's turn.
    pub(crate) async fn end_reader(&self, place: &Place) -> Result<(), ProviderError> {
        let name = name(&place.sandbox);
        if let Some(open) = self.readers.get(&name) {
            open.end().await;
            return Ok(());
        }
        // One whose daemon died ends by itself, but may not have done so yet.
        match self.find_by_name(&reader_name(&name)).await? {
            Some(found) => self.stop_found(&found, Duration::ZERO).await,
            None => Ok(()),
        }
    }

    async fn plan_reader(&self, place: &Place, spec: &Spec, image: Image) -> Result<Create, ProviderError> {
        let (settings, programs, paths) = (self.settings(), self.programs.clone(), self.paths.clone());
        let (images, place, spec) = (Arc::clone(&self.images), place.clone(), spec.clone());
        blocking(move || {
            images::record(&images, &image, &paths.disk(&place)?, &name(&place.sandbox))?;
            let create = plan::create(&settings, &programs, (&paths, &image), &place, &spec)?;
            reader_of(create, &paths.sandboxes())
        })
        .await
    }
}

/// What a supervisor is asked for to read the disk of a sandbox, by what it is asked for to start it.
fn reader_of(mut create: Create, sandboxes: &Path) -> Result<Create, ProviderError> {
    create.name = reader_name(&create.name);
    // A name is never empty and never too long, and so always has one.
    create.directory = sandboxes.join(layout::directory_name(&create.name).unwrap_or_default()).into();
    create.incarnation = format!("{:016x}", random()?);
    create.lasting = false;
    create.mounts.clear();
    create.logs = None;
    create.keep = Keep::default();
    if let Some(kept) = &mut create.kept_disk {
        // It writes nothing, and can be read when the host's disk is full.
        (kept.host_free, kept.host_free_inodes) = (0, Some(0));
    }
    Ok(create)
}

/// The name of a reader. It has two dots in a row, which neither an id nor the name of a service has.
fn reader_name(sandbox: &str) -> String {
    let long = format!("{sandbox}..read");
    if long.len() <= MAX_NAME_LENGTH { long } else { format!("..{}", hash_prefix(&long)) }
}

fn random() -> Result<u64, ProviderError> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) | Err(_) => Err(failed("the kernel gives no random bytes")),
    }
}

// === impl DiskReaders ===

impl Default for DiskReaders {
    fn default() -> Self {
        Self { open: Arc::default(), quota: ShareQuota::new(LIMITS) }
    }
}

impl DiskReaders {
    /// A place for a reader of a sandbox of this owner.
    fn permit(&self, holder: ShareHolder) -> Result<SharePermit, ProviderError> {
        self.quota.take(holder).map_err(|exceeded| ProviderError {
            code: Some(ProviderError::LIMIT_REACHED),
            message: format!("too many stopped sandboxes are being read: {exceeded}; retry when one is done"),
        })
    }

    fn get(&self, name: &str) -> Option<OpenReader> {
        self.lock().get(name).cloned()
    }

    /// A share in the reader of a sandbox, unless that is ending.
    fn share(&self, name: &str) -> Option<ReaderLease> {
        let open = self.get(name)?;
        let lease = open.lease.upgrade()?;
        open.leases.fetch_add(1, Ordering::Relaxed);
        Some(ReaderLease { agent_socket: open.agent_socket, _lease: lease, ended: open.ended })
    }

    /// Keeps a reader open until the last share in it is given up.
    fn open(&self, name: String, mut owned: OwnedSandbox, directory: PathBuf, permit: SharePermit) -> ReaderLease {
        let ((lease, ending), (left, ended)) = (mpsc::channel(1), watch::channel(()));
        let (agent_socket, leases) = (owned.agent_socket().to_owned(), Arc::new(AtomicU64::new(1)));
        let open = OpenReader {
            agent_socket: agent_socket.clone(),
            lease: lease.downgrade(),
            leases: Arc::clone(&leases),
            ended: ended.clone(),
        };
        self.lock().insert(name.clone(), open);
        let child = owned.take_child();
        let (readers, task) = (self.clone(), ReaderTask { owned, child, directory, ending, leases });
        drop(tokio::spawn(async move {
            task.run().await;
            readers.lock().remove(&name);
            drop((left, permit));
        }));
        ReaderLease { agent_socket, _lease: lease, ended }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OpenReader>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenReader ===

impl OpenReader {
    /// Ends it, and returns when nothing of it is left.
    async fn end(self) {
        if let Some(lease) = self.lease.upgrade() {
            // If there is no room for it, it was asked before.
            let _asked = lease.try_send(());
        }
        closed(self.ended).await;
    }
}

/// Waits until nothing is left of a reader.
async fn closed(mut ended: watch::Receiver<()>) {
    while ended.changed().await.is_ok() {}
}

// === impl ReaderLease ===

impl DiskReader for ReaderLease {
    fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(closed(self.ended.clone()))
    }
}

// === impl IdleCheck ===

impl IdleCheck {
    /// Whether nobody uses a reader that was opened so often and that so many clients have read so many bytes from.
    fn is_idle(&mut self, leases: u64, clients: u64, bytes: u64) -> bool {
        let is_new = std::mem::replace(&mut self.leases, leases) != leases;
        let is_read = std::mem::replace(&mut self.bytes, bytes) != bytes;
        self.quiet = if is_new || is_read { 0 } else { self.quiet + 1 };
        !is_new && (clients == 0 || self.quiet >= QUIET)
    }
}

// === impl ReaderTask ===

impl ReaderTask {
    /// Runs until nobody needs the reader, somebody else needs the disk, or it exited by itself.
    async fn run(mut self) {
        let mut check = IdleCheck::default();
        loop {
            tokio::select! {
                _ = self.ending.recv() => break,
                _ = self.owned.ended() => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            match timeout(BEYOND, self.owned.statistics()).await {
                Ok(Ok(used)) if !check.is_idle(self.leases.load(Ordering::Relaxed), used.clients, used.bytes_out) => {}
                _ => break,
            }
        }
        let _asked = timeout(BEYOND, self.owned.stop(Duration::ZERO)).await;
        drop(self.owned);
        let Some(child) = self.child else { return };
        if wait_or_kill(child, BEYOND).await {
            return;
        }
        let directory = self.directory;
        if let Err(error) = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await {
            // It is swept by whoever reads the same disk next, or by the daemon now and then.
            tracing::warn!(%error, "what is left of a disk reader cannot be swept");
        }
    }
}

#[cfg(test)]
mod tests;
