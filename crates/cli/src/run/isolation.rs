//! The program behind `--isolation gvisor`.

use std::env;
use std::path::PathBuf;

use carrel_shim_client::messages::Gvisor;

use crate::arguments::IsolationKind;
use crate::failure::Failure;

/// The program of gVisor.
pub(crate) const RUNSC: &str = "runsc";
/// The hint for installing it.
pub(crate) const INSTALL: &str = "apt-get install runsc, or see https://gvisor.dev/docs/user_guide/install/";

/// The gVisor settings for the shim, if that isolation is requested.
pub(super) fn gvisor(kind: IsolationKind) -> Result<Option<Gvisor>, Failure> {
    match kind {
        IsolationKind::Namespaces => Ok(None),
        IsolationKind::Gvisor => {
            let missing = || Failure::new("runsc_missing", "runsc is not installed").hint(INSTALL);
            Ok(Some(Gvisor { runsc: runsc().ok_or_else(missing)?.into() }))
        }
    }
}

/// Finds `runsc` in `PATH`.
pub(crate) fn runsc() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let usable = |file: &PathBuf| file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok();
    // Relative directories depend on the working directory of the caller.
    env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(RUNSC))
        .find(usable)
}
