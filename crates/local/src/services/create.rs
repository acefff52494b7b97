//! Creates or adopts the sandbox of a service.

use std::path::Path;
use std::sync::Arc;

use carrel_control::provider::{Place, ProviderError};
use carrel_control::spec::{Service, Spec};
use carrel_fetch::Image;
use carrel_layers::ImageConfig;
use carrel_layout::ID_RANGES;
use carrel_shim_client::messages::{Create, JobRetention, SandboxLimits, SharedNetwork};
use carrel_shim_client::{DiscoveredSandbox, Liveness, Programs, process_start_time};

use super::hosts::{add_service_hosts, hostname};
use super::service_ref::ServiceRef;
use super::supervised::ServiceCancellation;
use crate::discovery::persistent_record;
use crate::paths::HomePaths;
use crate::start::is_stopped_error;
use crate::stop::collect;
use crate::{LocalInner, LocalSettings, blocking, failed, images, paths};

impl LocalInner {
    /// The running sandbox of a service; none if the main sandbox has stopped, or is about to.
    pub(super) async fn ensure_running(
        self: &Arc<Self>,
        place: &Place,
        spec: &Spec,
        service: &Service,
        service_ref: &ServiceRef,
        cancelled: &ServiceCancellation,
    ) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        if let Some(found) = self.running_service(service_ref).await? {
            return Ok(Some(found));
        }
        // This may take a while, during which the main sandbox may be stopped.
        let (create, image) = self.plan_service(spec, service, service_ref).await?;
        let (inner, place, service_ref, cancelled) =
            (Arc::clone(self), place.clone(), service_ref.clone(), cancelled.clone());
        // A caller that stops waiting does not interrupt the creation.
        let made = tokio::spawn(async move {
            // From here on a stop of the service waits for the creation.
            let _lock = inner.locks.lock(&service_ref.name).await;
            if cancelled.is_cancelled() {
                Ok(None)
            } else {
                inner.create_service(&place, &service_ref, create, image).await
            }
        });
        made.await.unwrap_or_else(|error| Err(failed(error)))
    }

    async fn create_service(
        &self,
        place: &Place,
        service_ref: &ServiceRef,
        mut create: Create,
        image: Image,
    ) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        // While this incarnation of the main sandbox runs, the name of the service belongs to it or to an earlier one.
        create.network_of = self.network_of(place).await?;
        if create.network_of.is_none() {
            return Ok(None);
        }
        if let Some(found) = self.find_by_name(&service_ref.name).await? {
            if found.life == Liveness::Running && service_ref.is(&found) {
                return Ok(Some(found));
            }
            self.clear_found(&found).await?;
        }
        let (kept, disk, name) = (service_ref.kept.clone(), service_ref.disk(), service_ref.name.clone());
        let images = Arc::clone(&self.images);
        blocking(move || {
            create_directory(&kept)?;
            images::record(&images, &image, &disk, &name)
        })
        .await?;
        let owned = self.create_with_shim(&place.sandbox, &create).await?;
        self.detach(owned);
        self.running_service(service_ref).await
    }

    /// The sandbox of a service, if it is running.
    pub(super) async fn running_service(
        &self,
        service_ref: &ServiceRef,
    ) -> Result<Option<DiscoveredSandbox>, ProviderError> {
        let found = self.find_by_name(&service_ref.name).await?;
        Ok(found.filter(|found| found.life == Liveness::Running && service_ref.is(found)))
    }

    /// Stops and removes whatever has the name of a service, of any incarnation.
    pub(super) async fn clear_found(&self, found: &DiscoveredSandbox) -> Result<(), ProviderError> {
        let Some(record) = persistent_record(found) else { return Ok(()) };
        self.stop_found(found, std::time::Duration::ZERO).await?;
        collect(&found.directory, &record.incarnation).await
    }

    /// The network of the main sandbox, if it is running.
    async fn network_of(&self, place: &Place) -> Result<Option<SharedNetwork>, ProviderError> {
        let Some(found) =
            self.find(&place.sandbox).await?.filter(|found| crate::discovery::is_incarnation(found, place))
        else {
            return Ok(None);
        };
        let mut shim = match found.connect().await {
            Ok(shim) => shim,
            Err(error) if is_stopped_error(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let pid = shim.hello().pid;
        let Some(began) = process_start_time(pid) else { return Ok(None) };
        // If the shim still answers, the pid belongs to it.
        Ok(shim.status().await.is_ok().then_some(SharedNetwork { pid, began }))
    }

    async fn plan_service(
        &self,
        spec: &Spec,
        service: &Service,
        service_ref: &ServiceRef,
    ) -> Result<(Create, Image), ProviderError> {
        let (settings, programs, paths) = (self.settings(), self.programs.clone(), self.paths.clone());
        let mut image = self.image(&service.image, spec.host_owner(), &service_ref.disk()).await?;
        let (spec, service, service_ref) = (spec.clone(), service.clone(), service_ref.clone());
        blocking(move || {
            if let Some(workdir) = image.config.workdir.clone() {
                image.ensure_directory(&workdir);
            }
            Ok((create(&settings, &programs, (&paths, &image), &spec, &service, &service_ref)?, image))
        })
        .await
    }
}

/// The request that creates the sandbox of a service, without its network.
fn create(
    settings: &LocalSettings,
    programs: &Programs,
    (paths, image): (&HomePaths, &Image),
    spec: &Spec,
    service: &Service,
    service_ref: &ServiceRef,
) -> Result<Create, ProviderError> {
    if command_line(&service.command, &image.config).is_empty() {
        return Err(failed("the service has no command, and neither has its image"));
    }
    let mut root = image.root.clone();
    add_service_hosts(&mut root, &spec.services)?;
    let limits = SandboxLimits {
        memory: Some(service.limits.memory.unwrap_or(settings.default_memory)),
        pids: Some(settings.pids),
        cpu_millis: service.limits.cpu_millis,
    };
    let kept = settings.kept_disk(service_ref.disk(), service.limits.disk);
    Ok(Create {
        name: service_ref.name.clone(),
        incarnation: service_ref.incarnation.clone(),
        directory: (&service_ref.directory).into(),
        programs: paths.programs().into(),
        ids: ID_RANGES.into(),
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
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    })
}

/// The command line of a service: the image's entrypoint with the requested command, or with the image's.
pub(super) fn command_line(requested: &[String], config: &ImageConfig) -> Vec<String> {
    [&config.entrypoint[..], if requested.is_empty() { &config.cmd } else { requested }].concat()
}

fn create_directory(path: &Path) -> Result<(), ProviderError> {
    // The services of one sandbox share a parent directory.
    let made = path.parent().map_or(Ok(()), paths::create_directory).and_then(|()| paths::create_directory(path));
    made.map_err(|error| failed(format_args!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_runs_the_requested_command_or_that_of_its_image() {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let config = ImageConfig { entrypoint: list("entry"), cmd: list("usual one"), ..ImageConfig::default() };
        assert_eq!(command_line(&[], &config), list("entry usual one"));
        assert_eq!(command_line(&list("requested"), &config), list("entry requested"));
        assert!(command_line(&[], &ImageConfig::default()).is_empty());
    }
}
