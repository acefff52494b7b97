//! Checks the home and the helper programs.

use std::path::Path;

use carrel_agent_client::sandbox_directory;
use carrel_shim_client::Programs;
use carrel_units::ByteSize;
use rustix::fs::StatVfsMountFlags;

use super::HostCheck;
use crate::failure::Failure;
use crate::home::CarrelHome;

/// Enough for the copy of the agent and some changes.
const MIN_FREE: u64 = 64 << 20;

pub(super) fn checks() -> Vec<HostCheck> {
    let home = CarrelHome::find().and_then(|home| home.prepare().map(|()| home));
    let home = match &home {
        Ok(home) => check_home(home.path()).unwrap_or_else(|failure| HostCheck::failed("home", failure)),
        Err(failure) => HostCheck::failed("home", failure.clone()),
    };
    vec![home, helpers()]
}

/// Checks that sandboxes can use the home.
fn check_home(home: &Path) -> Result<HostCheck, Failure> {
    sandbox_directory(home, "any")?;
    let unusable = |error| {
        let failure = Failure::new("home_unavailable", format!("{}: {error}", home.display()));
        failure.hint("sudo carrel doctor, or set CARREL_HOME to a writable directory")
    };
    rustix::fs::access(home, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).map_err(unusable)?;
    let system = rustix::fs::statvfs(home).map_err(unusable)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let found = format!("{}, {} free", home.display(), ByteSize(free));
    if system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        let hint = "mount it with exec, or set CARREL_HOME to another directory";
        return Ok(HostCheck::fail("home", format!("{found}, but mounted noexec"), hint));
    }
    if free < MIN_FREE {
        return Ok(HostCheck::fail("home", found, "free space, or set CARREL_HOME to another directory"));
    }
    Ok(HostCheck::ok("home", found))
}

fn helpers() -> HostCheck {
    match Programs::find() {
        Ok(programs) => {
            let unpacker = carrel_fetch::unpacker(&programs.shim);
            let all = [&programs.shim, &programs.agentd, &unpacker].map(|program| program.display().to_string());
            if unpacker.is_file() {
                HostCheck::ok("helpers", all.join(", "))
            } else {
                let hint = "keep it beside carrel, or set CARREL_LIBEXEC to the directory of all helpers";
                HostCheck::fail("helpers", format!("{} is missing: no image can be unpacked", unpacker.display()), hint)
            }
        }
        Err(error) => HostCheck::failed("helpers", error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn a_home_whose_path_is_too_long_for_sockets_is_refused() {
        let long = format!("/{}", "h".repeat(80));
        let failure = check_home(Path::new(&long)).unwrap_err();
        assert_eq!(
            (failure.code, failure.hint.as_deref()),
            ("home_too_long", Some("set CARREL_HOME to a shorter path"))
        );
    }

    #[test]
    fn the_free_space_of_the_home_is_shown() {
        let home = tempfile::tempdir().unwrap();
        let check = check_home(home.path()).unwrap();
        assert_eq!(check.status, CheckStatus::Ok);
        assert!(check.found.ends_with(" free"), "{}", check.found);
        assert!(check_home(&home.path().join("missing")).is_err());
    }
}
