//! A second wall around a supervisor: a Landlock ruleset, where the kernel has one.
//!
//! The empty root and the system-call filter already keep a supervisor from the host's files. The ruleset holds where
//! one of those has a hole: a descriptor of the host that was left open, or a call that the filter lets through.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    Scope,
};

/// The newest kernel interface whose every right is decided here. On an older kernel those that it knows are enforced.
const KNOWN: ABI = ABI::V6;

/// Restricts this process, which has one thread, to files beneath some directories, for good: it reads and writes them,
/// makes and removes regular files and directories. It executes nothing, makes no other kind of file, and neither
/// connects to nor serves at a TCP port or an abstract socket outside of its own ruleset.
///
/// Signals are not scoped: a supervisor ends a sandbox that is outside of it.
pub(crate) fn enforce(directories: &[BorrowedFd<'_>]) -> Result<(), RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(directories.iter().map(|directory| Ok::<_, RulesetError>(PathBeneath::new(directory, files()))))?
        .restrict_self()?;
    Ok(())
}

fn files() -> BitFlags<AccessFs> {
    AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
}
