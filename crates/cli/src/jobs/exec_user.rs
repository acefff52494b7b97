//! The default user of `carrel exec`.

use carrel_image::RootFs;
use carrel_local::ExecDefaults;
use carrel_shim_client::SandboxRecord;

use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::user::UidGid;
use crate::{images, user};

/// The default user and group ids of commands in a sandbox.
pub(crate) fn exec_ids(record: &SandboxRecord) -> Result<UidGid, Failure> {
    if record.lasting {
        let defaults = ExecDefaults::of(&images::open_default()?, CarrelHome::find()?.path(), record);
        let defaults = defaults.map_err(|error| Failure::new("image_unavailable", error).hint("give --user"))?;
        return Ok(defaults.ids);
    }
    let root = RootFs::try_from(record.create.root.clone()).unwrap_or_default();
    let named = images::sandbox_config(record).and_then(|config| config.user);
    user::ids(named.as_deref(), &root)
}
