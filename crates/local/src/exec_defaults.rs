//! The defaults of a command in a persistent sandbox, also where no daemon runs.

use std::path::Path;

use carrel_control::provider::ProviderError;
use carrel_control::spec::Spec;
use carrel_fetch::Images;
use carrel_image::RootFs;
use carrel_image::accounts::UidGid;
use carrel_layers::ImageConfig;
use carrel_shim_client::SandboxRecord;

use crate::paths::HomePaths;
use crate::reap::disk_of;
use crate::{failed, images, jobs, manifests, plan};

/// How a command runs unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecDefaults {
    /// The user name or number.
    pub user: String,
    /// The numeric ids of the user and its group.
    pub ids: UidGid,
    /// The working directory.
    pub cwd: String,
    /// The environment, without `HOME`.
    pub env: Vec<String>,
}

// === impl ExecDefaults ===

impl ExecDefaults {
    /// The defaults of a sandbox, from its records below the home.
    pub fn of(images: &Images, home: &Path, record: &SandboxRecord) -> Result<Self, ProviderError> {
        let root = RootFs::try_from(record.create.root.clone()).map_err(failed)?;
        let disk = record.create.kept_disk.as_ref().map(|kept| kept.directory.0.as_path());
        let config = disk.map_or(Ok(ImageConfig::default()), |disk| images::config(images, disk))?;
        let paths = HomePaths::at(home);
        let manifest = disk_of(&paths, record).and_then(|disk| manifests::load(&paths.manifests(), &disk));
        // Without a manifest, the spec of the sandbox is unknown.
        let spec = manifest.and_then(|manifest| serde_json::from_str::<Spec>(&manifest.spec).ok()).unwrap_or_default();
        let user = match &spec.user {
            Some(name) => plan::resolve_user(name, &root).map_err(failed)?,
            None => plan::user_of(&root, &config),
        };
        Ok(Self {
            user: user.name,
            ids: user.ids,
            cwd: spec.workdir.clone().unwrap_or_else(|| plan::WORKSPACE.to_owned()),
            env: jobs::environment(None, &config, &spec.envs),
        })
    }
}
