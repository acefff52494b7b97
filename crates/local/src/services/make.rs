//! How the sandbox of a service begins: made, or taken over.

use std::path::Path;
use std::sync::Arc;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::{Service, Spec};
use carrel_fetch::Image;
use carrel_layers::Config;
use carrel_shim_client::messages::{Create, Keep, Limits, NetworkOf};
use carrel_shim_client::{Found, Life, Programs, began};

use super::hosts::{hostname, name_all};
use super::named::Beside;
use super::tended::Over;
use crate::end::collect;
use crate::ground::Ground;
use crate::life::has_ended;
use crate::look::lasting;
use crate::{IDS, Inner, Settings, blocking, failed, ground, images};

impl Inner {
    /// The sandbox of a service, which runs; none if the one that it stands beside has ended, or is to.
    pub(super) async fn standing(
        self: &Arc<Self>,
        place: &Place,
        spec: &Spec,
        service: &Service,
        beside: &Beside,
        over: &Over,
    ) -> Result<Option<Found>, ProviderError> {
        if let Some(found) = self.running(beside).await? {
            return Ok(Some(found));
        }
        // That may take a while, in which the sandbox may be stopped.
        let (create, image) = self.plan_beside(spec, service, beside).await?;
        let (inner, place, beside, over) = (Arc::clone(self), place.clone(), beside.clone(), over.clone());
        // Whoever stops waiting for it does not stop it halfway.
        let made = tokio::spawn(async move {
            // From here on whoever ends it waits for it.
            let _turn = inner.turns.take(&beside.name).await;
            if over.is_over() { Ok(None) } else { inner.stand(&place, &beside, create, image).await }
        });
        made.await.unwrap_or_else(|error| Err(failed(error)))
    }

    async fn stand(
        &self,
        place: &Place,
        beside: &Beside,
        mut create: Create,
        image: Image,
    ) -> Result<Option<Found>, ProviderError> {
        // While this start of the sandbox runs, what has the name of the service is of this start, or of one before.
        create.network_of = self.network_of(place).await?;
        if create.network_of.is_none() {
            return Ok(None);
        }
        if let Some(found) = self.look_for(&beside.name).await? {
            if found.life == Life::Running && beside.is(&found) {
                return Ok(Some(found));
            }
            self.clear_found(&found).await?;
        }
        let (kept, disk, name) = (beside.kept.clone(), beside.disk(), beside.name.clone());
        let images = Arc::clone(&self.images);
        blocking(move || {
            make_directory(&kept)?;
            images::settle(&images, &image, &disk, &name)
        })
        .await?;
        let owned = self.supervised(&place.sandbox, &create).await?;
        self.leave(owned);
        self.running(beside).await
    }

    /// The sandbox of a service, if it runs.
    pub(super) async fn running(&self, beside: &Beside) -> Result<Option<Found>, ProviderError> {
        let found = self.look_for(&beside.name).await?;
        Ok(found.filter(|found| found.life == Life::Running && beside.is(found)))
    }

    /// Ends and removes what has the name of a service, whichever start that is.
    pub(super) async fn clear_found(&self, found: &Found) -> Result<(), ProviderError> {
        let Some(record) = lasting(found) else { return Ok(()) };
        self.end(found, std::time::Duration::ZERO).await?;
        collect(&found.directory, &record.incarnation).await
    }

    /// The network of a sandbox, if it runs.
    async fn network_of(&self, place: &Place) -> Result<Option<NetworkOf>, ProviderError> {
        let Some(found) = self.look(&place.sandbox).await?.filter(|found| crate::look::is_of(found, place)) else {
            return Ok(None);
        };
        let mut shim = match found.connect().await {
            Ok(shim) => shim,
            Err(error) if has_ended(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let pid = shim.hello().pid;
        let Some(began) = began(pid) else { return Ok(None) };
        // If it still runs, the process that has the number is its own.
        Ok(shim.status().await.is_ok().then_some(NetworkOf { pid, began }))
    }

    async fn plan_beside(
        &self,
        spec: &Spec,
        service: &Service,
        beside: &Beside,
    ) -> Result<(Create, Image), ProviderError> {
        let (settings, programs, ground) = (self.settings(), self.programs.clone(), self.ground.clone());
        let mut image = self.image(&service.image, spec.host_owner(), &beside.disk()).await?;
        let (spec, service, beside) = (spec.clone(), service.clone(), beside.clone());
        blocking(move || {
            if let Some(workdir) = image.config.workdir.clone() {
                image.ensure_directory(&workdir);
            }
            Ok((create(&settings, &programs, (&ground, &image), &spec, &service, &beside)?, image))
        })
        .await
    }
}

/// What a supervisor is asked for, but for the network.
fn create(
    settings: &Settings,
    programs: &Programs,
    (ground, image): (&Ground, &Image),
    spec: &Spec,
    service: &Service,
    beside: &Beside,
) -> Result<Create, ProviderError> {
    if words(&service.command, &image.config).is_empty() {
        return Err(failed("it has no command, and its image names none"));
    }
    let mut root = image.root.clone();
    name_all(&mut root, &spec.services)?;
    let limits = Limits {
        memory: Some(service.limits.memory.unwrap_or(settings.default_memory)),
        pids: Some(settings.pids),
        cpu_millis: service.limits.cpu_millis,
    };
    let kept = settings.kept_disk(beside.disk(), service.limits.disk);
    Ok(Create {
        name: beside.name.clone(),
        incarnation: beside.incarnation.clone(),
        directory: (&beside.directory).into(),
        programs: ground.programs().into(),
        ids: IDS.into(),
        agentd: (&programs.agentd).into(),
        root: (&root).into(),
        mounts: Vec::new(),
        project: None,
        disk: service.limits.disk.unwrap_or_default(),
        kept_disk: Some(kept),
        hostname: hostname(&service.name),
        limits,
        allow_unenforced: spec.allow_unenforced_limits,
        image: service.image.clone(),
        lasting: true,
        logs: None,
        keep: Keep::default(),
        network_of: None,
        gvisor: None,
    })
}

/// What a service runs: what was asked for, or what its image runs, behind what that begins every command with.
pub(super) fn words(asked: &[String], config: &Config) -> Vec<String> {
    [&config.entrypoint[..], if asked.is_empty() { &config.cmd } else { asked }].concat()
}

fn make_directory(path: &Path) -> Result<(), ProviderError> {
    // What stands beside one sandbox has a directory of its own.
    let made = path.parent().map_or(Ok(()), ground::make_directory).and_then(|()| ground::make_directory(path));
    made.map_err(|error| failed(format_args!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_runs_what_was_asked_for_or_what_its_image_runs() {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let config = Config { entrypoint: list("entry"), cmd: list("usual one"), ..Config::default() };
        assert_eq!(words(&[], &config), list("entry usual one"));
        assert_eq!(words(&list("asked"), &config), list("entry asked"));
        assert!(words(&[], &Config::default()).is_empty());
    }
}
