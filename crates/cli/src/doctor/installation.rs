//! What is ours on this host: the home and the helpers.

use std::path::Path;

use carrel_agent_client::sandbox_directory;
use carrel_shim_client::Programs;
use rustix::fs::StatVfsMountFlags;

use super::HostCheck;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::size::Size;

/// The agent's copy and a few changes need this much.
const LEAST_ROOM: u64 = 64 << 20;

pub(super) fn checks() -> Vec<HostCheck> {
    let home = CarrelHome::find().and_then(|home| home.prepare().map(|()| home));
    let home = match &home {
        Ok(home) => room(home.path()).unwrap_or_else(|failure| HostCheck::failed("home", failure)),
        Err(failure) => HostCheck::failed("home", failure.clone()),
    };
    vec![home, helpers()]
}

/// Whether sandboxes find a place below the home.
fn room(home: &Path) -> Result<HostCheck, Failure> {
    sandbox_directory(home, "any")?;
    let unusable = |error| {
        let failure = Failure::new("home_unavailable", format!("{}: {error}", home.display()));
        failure.hint("sudo carrel doctor, or set CARREL_HOME to a directory that can be written")
    };
    rustix::fs::access(home, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).map_err(unusable)?;
    let system = rustix::fs::statvfs(home).map_err(unusable)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let found = format!("{}, {} free", home.display(), Size(free));
    if system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        let hint = "mount it with exec, or set CARREL_HOME to another place";
        return Ok(HostCheck::fail("home", format!("{found}, but no program may be started from there"), hint));
    }
    if free < LEAST_ROOM {
        return Ok(HostCheck::fail("home", found, "make room, or set CARREL_HOME to another place"));
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
                let hint = "keep it beside carrel, or set CARREL_LIBEXEC to where all of them are";
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
    fn a_home_that_sockets_do_not_fit_in_is_refused() {
        let long = format!("/{}", "h".repeat(80));
        let failure = room(Path::new(&long)).unwrap_err();
        assert_eq!(
            (failure.code, failure.hint.as_deref()),
            ("home_too_long", Some("set CARREL_HOME to a shorter path"))
        );
    }

    #[test]
    fn a_home_says_how_much_room_it_has() {
        let home = tempfile::tempdir().unwrap();
        let check = room(home.path()).unwrap();
        assert_eq!(check.status, CheckStatus::Ok);
        assert!(check.found.ends_with(" free"), "{}", check.found);
        assert!(room(&home.path().join("missing")).is_err());
    }
}
