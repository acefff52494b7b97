//! The control plane's provider trait. Each call runs as its own task: a caller that stops waiting does not interrupt it.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{
    Answer, Condition, DiskReader, DiskSpace, ExecOutput, ExecStart, InUseSource, LogPaths, Manifest, Noted, Orphan,
    Place, Provider, ProviderError, Reach, Reaped, RemovedLogs, RunningExecs, ServiceFact,
};
use carrel_control::spec::{Service, Spec};
use carrel_store::{ExecId, SandboxId, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::services::supervise;
use crate::watch::watch;
use crate::{LocalProvider, UnpublishedPort, blocking, disk_guard, failed, log_files, manifests};

/// The condition of a published port that is not open.
const PORT_UNAVAILABLE: &str = "PORT_UNAVAILABLE";

// === impl LocalProvider ===

impl Provider for LocalProvider {
    fn start<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, ()> {
        let (inner, place, spec) = (Arc::clone(&self.0), place.clone(), spec.clone());
        Box::pin(async move {
            // Dropped when the caller stops waiting.
            let (_waiting, left) = oneshot::channel();
            whole(async move {
                inner.start(&place, &spec, left).await?;
                // The first command need not wait for a connection.
                drop(tokio::spawn(async move { inner.connect_ahead(&place).await }));
                Ok(())
            })
            .await
        })
    }

    fn adopt<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, bool> {
        let (inner, place, spec) = (Arc::clone(&self.0), place.clone(), spec.clone());
        Box::pin(whole(async move { inner.adopt(&place, &spec).await }))
    }

    fn has_disk<'a>(&'a self, place: &'a Place) -> Answer<'a, bool> {
        Box::pin(self.0.has_disk(place))
    }

    fn read_disk<'a>(&'a self, place: &'a Place, spec: &'a Spec) -> Answer<'a, Box<dyn DiskReader>> {
        let (inner, place, spec) = (Arc::clone(&self.0), place.clone(), spec.clone());
        Box::pin(whole(async move {
            let lease = inner.read_disk(&place, &spec).await?;
            Ok(Box::new(lease) as Box<dyn DiskReader>)
        }))
    }

    fn watch(&self, place: &Place, after: u64) -> mpsc::Receiver<Vec<Noted>> {
        watch(Arc::clone(&self.0), place.clone(), after)
    }

    fn command<'a>(&'a self, place: &'a Place, spec: &'a Spec, attempt: u32) -> Answer<'a, ()> {
        Box::pin(self.0.command(place, spec, attempt))
    }

    fn exec<'a>(&'a self, place: &'a Place, spec: &'a Spec, exec: &'a ExecStart) -> Answer<'a, ()> {
        Box::pin(self.0.exec(place, spec, exec))
    }

    fn service(&self, place: &Place, spec: &Spec, service: &Service) -> mpsc::Receiver<ServiceFact> {
        supervise(Arc::clone(&self.0), place, spec, service)
    }

    fn cancel<'a>(&'a self, place: &'a Place, exec: &'a ExecId) -> Answer<'a, ()> {
        Box::pin(self.0.cancel(place, exec))
    }

    fn stop<'a>(&'a self, place: &'a Place, grace: Duration) -> Answer<'a, ()> {
        let (inner, place) = (Arc::clone(&self.0), place.clone());
        Box::pin(whole(async move { inner.stop(&place, grace).await }))
    }

    fn forget<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        let (inner, place) = (Arc::clone(&self.0), place.clone());
        Box::pin(whole(async move { inner.forget(&place).await }))
    }

    fn remove<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        let (inner, place) = (Arc::clone(&self.0), place.clone());
        Box::pin(whole(async move { inner.remove(&place).await }))
    }

    fn remove_logs<'a>(&'a self, sandbox: &'a SandboxId) -> Answer<'a, ()> {
        let directory = self.0.settings().logs.directory(sandbox);
        Box::pin(blocking(move || match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(format_args!("{}: {error}", directory.display())))
            }
            _ => Ok(()),
        }))
    }

    fn remove_exec_logs<'a>(&'a self, sandbox: &'a SandboxId, execs: &'a [ExecId]) -> Answer<'a, ()> {
        let (directory, execs) = (self.0.settings().logs.directory(sandbox), execs.to_vec());
        Box::pin(blocking(move || {
            log_files::remove_execs(&directory, &execs)
                .map_err(|error| failed(format_args!("{}: {error}", directory.display())))
        }))
    }

    fn remove_old_logs(&self, before: Timestamp, running: Arc<RunningExecs>) -> Answer<'_, RemovedLogs> {
        let above = self.0.settings().logs.parent_directory();
        Box::pin(blocking(move || {
            log_files::remove_old(&above, before, &*running)
                .map_err(|error| failed(format_args!("{}: {error}", above.display())))
        }))
    }

    fn output<'a>(&'a self, sandbox: &'a SandboxId, exec: &'a ExecId) -> Answer<'a, ExecOutput> {
        let (directory, exec) = (self.0.settings().logs.directory(sandbox), exec.clone());
        Box::pin(blocking(move || {
            log_files::output(&directory, &exec)
                .map_err(|error| failed(format_args!("{}: {error}", directory.display())))
        }))
    }

    fn pause<'a>(&'a self, place: &'a Place, paused: bool) -> Answer<'a, ()> {
        Box::pin(self.0.pause(place, paused))
    }

    fn is_active<'a>(&'a self, place: &'a Place) -> Answer<'a, bool> {
        Box::pin(self.0.is_active(place))
    }

    fn save_manifest<'a>(&'a self, place: &'a Place, manifest: &'a Manifest) -> Answer<'a, ()> {
        let (inner, disk, manifest) = (Arc::clone(&self.0), place.disk.clone(), manifest.clone());
        Box::pin(blocking(move || {
            inner.check_home()?;
            manifests::save(&inner.paths.manifests(), &disk, &manifest).map_err(failed)
        }))
    }

    fn reap<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Reaped> {
        Box::pin(self.0.reap(in_use))
    }

    fn orphans<'a>(&'a self, in_use: &'a InUseSource) -> Answer<'a, Vec<Orphan>> {
        Box::pin(self.0.orphans(in_use))
    }

    fn release_orphan<'a>(&'a self, disk: &'a str) -> Answer<'a, ()> {
        Box::pin(self.0.release_orphan(disk))
    }

    fn remove_orphan<'a>(&'a self, disk: &'a str) -> Answer<'a, ()> {
        let (inner, disk) = (Arc::clone(&self.0), disk.to_owned());
        Box::pin(whole(async move { inner.remove_orphan(&disk).await }))
    }

    fn conditions(&self, place: &Place) -> Vec<Condition> {
        let unpublished = self.unpublished_ports(place).into_iter();
        let condition = |UnpublishedPort { port, reason }: UnpublishedPort| {
            let message = format!("port {} of the host is not open: {reason}", port.host);
            Condition { kind: PORT_UNAVAILABLE, message }
        };
        unpublished.map(condition).collect()
    }

    fn check_home(&self) -> Result<(), ProviderError> {
        self.0.check_home()
    }

    fn disk_space(&self) -> Option<DiskSpace> {
        disk_guard::disk_space(&self.0)
    }

    fn logs(&self, sandbox: &SandboxId, exec: &ExecId) -> LogPaths {
        self.0.settings().logs.paths(sandbox, exec)
    }

    fn reach(&self, place: &Place) -> Reach {
        self.0.paths.reach(&place.sandbox)
    }
}

/// Runs to completion, even if the caller stops waiting.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, ProviderError>> + Send + 'static,
) -> Result<T, ProviderError> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(failed(error)))
}
