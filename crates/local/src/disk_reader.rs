//! Agents that read the disks of stopped sandboxes.
//!
//! Data that a guest wrote is only ever read inside a sandbox: an ephemeral one, created like a start of the sandbox, but
//! without command, mounts, ports and services.

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
use carrel_layout::{MAX_NAME, hash_prefix};
use carrel_shim_client::messages::{Create, JobRetention};
use carrel_shim_client::{Liveness, OwnedSandbox, layout};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::discovery::persistent_record;
use crate::paths::name;
use crate::pidfd::wait_or_kill;
use crate::start::{disk_missing, has_files};
use crate::{LocalInner, blocking, failed, images, plan};

/// The limit of open readers: each is a sandbox that no other limit of the daemon counts. All clients of a sandbox share one
/// reader.
const LIMITS: ShareLimits = ShareLimits { total: 8, each: 4, reserved: 2 };
/// How often idle readers are looked for: a reader without clients at that time is idle.
const LOOK: Duration = Duration::from_secs(20);
/// After how many checks without progress a client loses its reader: one minute.
const QUIET: u32 = 3;
/// How long a shim may take to answer or exit before it is killed.
const EXTRA_WAIT: Duration = Duration::from_secs(5);

/// The open readers, by the names of their sandboxes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct DiskReaders {
    open: Arc<Mutex<HashMap<String, OpenReader>>>,
    quota: ShareQuota,
}

/// A reader that is open or closing.
#[derive(Clone, Debug)]
struct OpenReader {
    agent_socket: PathBuf,
    /// A message closes the reader, and so does dropping all leases.
    lease: mpsc::WeakSender<()>,
    leases: Arc<AtomicU64>,
    /// Closed when the reader is removed completely.
    ended: watch::Receiver<()>,
}

/// A lease on a reader, which closes with its last lease.
#[derive(Debug)]
pub(crate) struct DiskReaderHandle {
    agent_socket: PathBuf,
    _lease: mpsc::Sender<()>,
    ended: watch::Receiver<()>,
}

/// The use of a reader at its last idle check.
#[derive(Debug, Default)]
struct IdleCheck {
    leases: u64,
    bytes: u64,
    quiet: u32,
}

struct ReaderTask {
    owned: OwnedSandbox,
    /// Not awaited at shutdown: a daemon that exits does not wait for its readers.
    child: Option<Child>,
    directory: PathBuf,
    ending: mpsc::Receiver<()>,
    leases: Arc<AtomicU64>,
}

impl LocalInner {
    /// Opens a reader on the disk of a stopped sandbox, or shares the open one.
    pub(crate) async fn read_disk(&self, place: &Place, spec: &Spec) -> Result<DiskReaderHandle, ProviderError> {
        let (name, disk) = (name(&place.sandbox), self.paths.disk(place)?);
        if !has_files(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        let image = self.image(&spec.image, spec.host_owner(), &disk).await?;
        // A concurrent start or removal waits until the reader is open, and then closes it.
        let _lock = self.locks.lock(&name).await;
        if let Some(lease) = self.readers.share(&name) {
            return Ok(lease);
        }
        // A closing reader still uses the disk.
        self.end_reader(place).await?;
        if !has_files(&disk).await? {
            return Err(disk_missing(place, &disk));
        }
        let found = self.find(&place.sandbox).await?;
        if found
            .is_some_and(|found| persistent_record(&found).is_some() && !matches!(found.life, Liveness::Dead { .. }))
        {
            return Err(failed("the sandbox is running"));
        }
        let permit = self.readers.permit(place.sandbox.namespace().into())?;
        let create = self.plan_reader(place, spec, image).await?;
        let owned = self.create_with_shim(&place.sandbox, &create).await?;
        let prestarted = Arc::clone(&self.prestarted);
        drop(tokio::task::spawn_blocking(move || prestarted.fill()));
        Ok(self.readers.open(name, owned, create.directory.0, permit))
    }

    /// Closes the reader of a sandbox, if there is one. The caller holds the lock of the sandbox.
    pub(crate) async fn end_reader(&self, place: &Place) -> Result<(), ProviderError> {
        let name = name(&place.sandbox);
        if let Some(open) = self.readers.get(&name) {
            open.end().await;
            return Ok(());
        }
        // A reader of a daemon that died exits by itself, but may not have done so yet.
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

/// The request for a reader, derived from the request that starts the sandbox.
fn reader_of(mut create: Create, sandboxes: &Path) -> Result<Create, ProviderError> {
    create.name = reader_name(&create.name);
    // A name is never empty and never too long, so its directory name is valid.
    create.directory = sandboxes.join(layout::directory_name(&create.name).unwrap_or_default()).into();
    create.incarnation = format!("{:016x}", random()?);
    create.lasting = false;
    create.mounts.clear();
    create.logs = None;
    create.keep = JobRetention::default();
    if let Some(kept) = &mut create.kept_disk {
        // A reader writes nothing, so it needs no free space on the host.
        (kept.host_free, kept.host_free_inodes) = (0, Some(0));
    }
    Ok(create)
}

/// The name of a reader. It contains two consecutive dots, which neither an id nor a service name does.
fn reader_name(sandbox: &str) -> String {
    let long = format!("{sandbox}..read");
    if long.len() <= MAX_NAME { long } else { format!("..{}", hash_prefix(&long)) }
}

fn random() -> Result<u64, ProviderError> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) | Err(_) => Err(failed("the kernel returned no random bytes")),
    }
}

// === impl DiskReaders ===

impl Default for DiskReaders {
    fn default() -> Self {
        Self { open: Arc::default(), quota: ShareQuota::new(LIMITS) }
    }
}

impl DiskReaders {
    /// A slot for a reader of a sandbox of this owner.
    fn permit(&self, holder: ShareHolder) -> Result<SharePermit, ProviderError> {
        self.quota.take(holder).map_err(|exceeded| ProviderError {
            code: Some(ProviderError::LIMIT_REACHED),
            message: format!("too many stopped sandboxes are being read: {exceeded}; retry when one is done"),
        })
    }

    fn get(&self, name: &str) -> Option<OpenReader> {
        self.lock().get(name).cloned()
    }

    /// A lease on the reader of a sandbox, unless it is closing.
    fn share(&self, name: &str) -> Option<DiskReaderHandle> {
        let open = self.get(name)?;
        let lease = open.lease.upgrade()?;
        open.leases.fetch_add(1, Ordering::Relaxed);
        Some(DiskReaderHandle { agent_socket: open.agent_socket, _lease: lease, ended: open.ended })
    }

    /// Keeps a reader open until its last lease is dropped.
    fn open(&self, name: String, mut owned: OwnedSandbox, directory: PathBuf, permit: SharePermit) -> DiskReaderHandle {
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
        DiskReaderHandle { agent_socket, _lease: lease, ended }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OpenReader>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenReader ===

impl OpenReader {
    /// Closes it, and returns when it is removed completely.
    async fn end(self) {
        if let Some(lease) = self.lease.upgrade() {
            // A full channel means that a close was already requested.
            let _sent = lease.try_send(());
        }
        closed(self.ended).await;
    }
}

/// Waits until a reader is removed completely.
async fn closed(mut ended: watch::Receiver<()>) {
    while ended.changed().await.is_ok() {}
}

// === impl DiskReaderHandle ===

impl DiskReader for DiskReaderHandle {
    fn agent_socket(&self) -> &Path {
        &self.agent_socket
    }

    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(closed(self.ended.clone()))
    }
}

// === impl IdleCheck ===

impl IdleCheck {
    /// Whether a reader with these counts of opens, clients and bytes read is idle since the last check.
    fn is_idle(&mut self, leases: u64, clients: u64, bytes: u64) -> bool {
        let is_new = std::mem::replace(&mut self.leases, leases) != leases;
        let is_read = std::mem::replace(&mut self.bytes, bytes) != bytes;
        self.quiet = if is_new || is_read { 0 } else { self.quiet + 1 };
        !is_new && (clients == 0 || self.quiet >= QUIET)
    }
}

// === impl ReaderTask ===

impl ReaderTask {
    /// Runs until no lease is left, a start needs the disk, or the reader exited.
    async fn run(mut self) {
        let mut check = IdleCheck::default();
        loop {
            tokio::select! {
                _ = self.ending.recv() => break,
                _ = self.owned.ended() => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            match timeout(EXTRA_WAIT, self.owned.statistics()).await {
                Ok(Ok(used)) if !check.is_idle(self.leases.load(Ordering::Relaxed), used.clients, used.bytes_out) => {}
                _ => break,
            }
        }
        let _stopped = timeout(EXTRA_WAIT, self.owned.stop(Duration::ZERO)).await;
        drop(self.owned);
        let Some(child) = self.child else { return };
        if wait_or_kill(child, EXTRA_WAIT).await {
            return;
        }
        let directory = self.directory;
        if let Err(error) = blocking(move || carrel_shim::sweep_directory(&directory).map_err(failed)).await {
            // The next reader of the same disk, or the daemon's periodic sweep, cleans it up.
            tracing::warn!(%error, "failed to clean up a disk reader");
        }
    }
}

#[cfg(test)]
mod tests;
