//! Stops services: concurrently, together with their main sandbox.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use carrel_control::provider::{Place, ProviderError};

use super::service_ref::{ServiceRef, disk};
use crate::reap::names;
use crate::stop::{collect, remove_disk};
use crate::{LocalInner, blocking, failed};

impl LocalInner {
    /// Stops the services of an incarnation, including those that are just being created.
    pub(crate) async fn stop_services(
        &self,
        place: &Place,
        supervised: BTreeSet<String>,
        grace: Duration,
    ) -> Result<(), ProviderError> {
        let service_refs = self.service_refs(place, supervised).await?;
        run_all(service_refs.iter().map(|service_ref| async move {
            let _lock = self.locks.lock(&service_ref.name).await;
            match self.find_by_name(&service_ref.name).await?.filter(|found| service_ref.is(found)) {
                Some(found) => self.stop_found(&found, grace).await,
                None => Ok(()),
            }
        }))
        .await
    }

    /// Stops the services of an incarnation, and removes everything but their disks.
    pub(crate) async fn collect_services(&self, place: &Place) -> Result<(), ProviderError> {
        let supervised = self.supervised.cancel(&place.incarnation);
        self.stop_services(place, supervised, Duration::ZERO).await?;
        for service_ref in self.service_refs(place, BTreeSet::new()).await? {
            collect(&service_ref.directory, &service_ref.incarnation).await?;
        }
        Ok(())
    }

    /// Stops and removes the services of a sandbox, of any incarnation, but not their disks.
    pub(crate) async fn clear_services(&self, place: &Place) -> Result<(), ProviderError> {
        let service_refs = self.service_refs(place, BTreeSet::new()).await?;
        run_all(service_refs.iter().map(|service_ref| async move {
            let _lock = self.locks.lock(&service_ref.name).await;
            match self.find_by_name(&service_ref.name).await? {
                Some(found) => self.clear_found(&found).await,
                None => Ok(()),
            }
        }))
        .await
    }

    /// Removes the disks of the services of a sandbox. None may be running.
    pub(crate) async fn remove_services(&self, place: &Place) -> Result<(), ProviderError> {
        remove_disks(&self.paths.services_of(place)?).await.map(drop)
    }

    /// Freezes or thaws the services of a sandbox.
    pub(crate) async fn pause_services(&self, place: &Place, paused: bool) -> Result<(), ProviderError> {
        let service_refs = self.service_refs(place, BTreeSet::new()).await?;
        run_all(service_refs.iter().map(|service_ref| async move {
            let Some(found) = self.running_service(service_ref).await? else { return Ok(()) };
            let mut shim = found.connect().await.map_err(failed)?;
            if paused {
                return shim.pause().await.map_err(failed);
            }
            self.resumed.add(&shim.hello().incarnation);
            shim.resume().await.map_err(failed)
        }))
        .await
    }

    /// The services of a sandbox that have a directory, and those with the given keys.
    async fn service_refs(&self, place: &Place, more: BTreeSet<String>) -> Result<Vec<ServiceRef>, ProviderError> {
        let mut keys = more;
        keys.extend(names(self.paths.services_of(place)?).await?);
        keys.iter().map(|key| ServiceRef::new(&self.paths, place, key)).collect()
    }
}

/// Removes the disks of all services of one sandbox, by their parent directory; returns how many there were.
pub(crate) async fn remove_disks(of_one: &Path) -> Result<usize, ProviderError> {
    let keys = names(of_one.to_owned()).await?;
    for key in &keys {
        let kept = of_one.join(key);
        remove_disk(&disk(&kept)).await?;
        remove_directory(&kept).await?;
    }
    remove_directory(of_one).await?;
    Ok(keys.len())
}

/// Removes an empty directory.
async fn remove_directory(path: &Path) -> Result<(), ProviderError> {
    let path = path.to_owned();
    blocking(move || match std::fs::remove_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed(format_args!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    })
    .await
}

/// Runs all futures concurrently to their end; returns the first error.
async fn run_all(
    work: impl Iterator<Item = impl Future<Output = Result<(), ProviderError>>>,
) -> Result<(), ProviderError> {
    let mut under_way: Vec<Pin<Box<_>>> = work.map(Box::pin).collect();
    let mut first = Ok(());
    std::future::poll_fn(|context| {
        under_way.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Ready(done) => {
                if first.is_ok() {
                    first = done;
                }
                false
            }
            Poll::Pending => true,
        });
        if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    first
}
