//! A Landlock ruleset as second line of defence, if the kernel supports it: it restricts the unpack process to what a
//! layer needs, even if the seccomp filter lets more through.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};

/// The newest ABI whose rights are handled here. An older kernel enforces those it knows.
const KNOWN: ABI = ABI::V6;

/// Restricts this process, which has a single thread, to the files of a layer below its root. It cannot execute, use
/// the network, create sockets or block devices, or signal other processes. Returns how much of that the kernel
/// enforces.
pub(super) fn enforce(root: impl AsFd) -> Result<RulesetStatus, RulesetError> {
    let enforced = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rule(PathBeneath::new(root, layer()))?
        .restrict_self()?;
    Ok(enforced.ruleset)
}

/// The rights that unpacking needs. A whiteout is a character device 0:0, which every user may create.
fn layer() -> BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::MakeChar
        | AccessFs::Refer
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    /// Attempts actions that no layer needs, and then ones that every layer needs.
    fn attempts(root: &std::path::Path) -> ([Option<ErrorKind>; 4], [Option<ErrorKind>; 4]) {
        let (file, link, directory) = (root.join("file"), root.join("link"), root.join("directory"));
        let kind = |outcome: std::io::Result<()>| outcome.err().map(|error| error.kind());
        let outside = [
            kind(File::open("/etc/passwd").map(drop)),
            kind(Command::new("/bin/true").status().map(drop)),
            kind(UnixListener::bind(root.join("socket")).map(drop)),
            kind(std::net::TcpListener::bind(("127.0.0.1", 0)).map(drop)),
        ];
        let inside = [
            kind(fs::create_dir(&directory)),
            kind(fs::write(&file, "text").and_then(|()| fs::read(&file)).map(drop)),
            kind(fs::hard_link(&file, directory.join("link")).and_then(|()| fs::remove_file(directory.join("link")))),
            kind(std::os::unix::fs::symlink("/etc/passwd", &link)),
        ];
        for made in [&file, &link, &root.join("socket")] {
            let _gone = fs::remove_file(made);
        }
        let _gone = fs::remove_dir(&directory);
        (outside, inside)
    }

    #[test]
    fn the_ruleset_alone_denies_what_no_layer_needs() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(attempts(root.path()), ([None; 4], [None; 4]), "the control");
        let (enforced, after) = std::thread::scope(|scope| {
            // A ruleset applies to the calling thread and its children.
            let restricted =
                scope.spawn(|| (enforce(File::open(root.path()).unwrap()).unwrap(), attempts(root.path())));
            restricted.join().unwrap()
        });
        let refused = match enforced {
            RulesetStatus::FullyEnforced => [Some(ErrorKind::PermissionDenied); 4],
            // Landlock restricts ports from Linux 6.7 on.
            RulesetStatus::PartiallyEnforced => {
                let denied = Some(ErrorKind::PermissionDenied);
                [denied, denied, denied, after.0[3]]
            }
            RulesetStatus::NotEnforced => [None; 4],
        };
        assert_eq!(after, (refused, [None; 4]));
    }
}
