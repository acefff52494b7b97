//! What nobody has a use for: found, ended and removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_control::provider::{InUse, ProviderError};
use carrel_shim_client::Found;

use crate::end::{collect, remove_disk};
use crate::look::lasting;
use crate::{IDS, Inner, blocking, failed, services};

impl Inner {
    /// Removes everything that is not in use, and not in our hands; returns how many things that were. One that cannot
    /// be removed does not keep the others.
    pub(crate) async fn reap(&self, in_use: &InUse) -> Result<usize, ProviderError> {
        let home = self.ground.home().to_owned();
        let found = blocking(move || carrel_shim_client::sandboxes(&home).map_err(failed)).await?;
        let (mut reaped, mut first) = (0, None);
        let mut count = |what: &str, outcome: Result<usize, ProviderError>| match outcome {
            Ok(more) => reaped += more,
            Err(error) => {
                tracing::warn!(what, %error, "something that nobody uses cannot be removed");
                first.get_or_insert(error);
            }
        };
        for one in found {
            let Some(record) = lasting(&one) else { continue };
            if !in_use.incarnations.contains(services::start_of(record)) {
                count(&record.incarnation, self.reap_sandbox(&one).await);
            }
        }
        // Of what is dead already and was not to last.
        count("directories", self.sweep().await);
        for disk in names(self.ground.services()).await? {
            if !in_use.disks.contains(&disk) && !self.known.holds_disk(&disk) {
                count(&disk, services::remove_disks(&self.ground.services().join(&disk)).await);
            }
        }
        for disk in names(self.ground.disks()).await? {
            if !in_use.disks.contains(&disk) && !self.known.holds_disk(&disk) {
                count(&disk, remove_disk(&self.ground.disks().join(&disk)).await.map(|()| 1));
            }
        }
        count("groups", blocking(|| carrel_shim::sweep_groups(Path::new(IDS)).map_err(failed)).await);
        first.map_or(Ok(reaped), Err)
    }

    async fn reap_sandbox(&self, found: &Found) -> Result<usize, ProviderError> {
        let Some(record) = lasting(found) else { return Ok(0) };
        // Whoever is at it may take it into their hands.
        let _turn = self.turns.take(&record.name).await;
        if self.known.holds_incarnation(services::start_of(record)) {
            return Ok(0);
        }
        tracing::info!(name = record.name, incarnation = record.incarnation, "a sandbox that nobody uses is removed");
        self.end(found, Duration::ZERO).await?;
        collect(&found.directory, &record.incarnation).await?;
        Ok(1)
    }
}

/// What there is in a directory, by its names; nothing if it is not there.
pub(crate) async fn names(directory: PathBuf) -> Result<Vec<String>, ProviderError> {
    blocking(move || {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(format_args!("{}: {error}", directory.display()))),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        Ok(names)
    })
    .await
}
