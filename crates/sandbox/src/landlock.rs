//! A Landlock ruleset as a second barrier around a shim, where the kernel has it.
//!
//! The empty root and the system-call filter already keep a shim from the host's files. The ruleset still holds if one of
//! those has a gap: a host descriptor that was left open, or a call that the filter allows.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    Scope,
};

/// The newest Landlock ABI whose every right is handled here. On an older kernel, the rights that it knows are enforced.
const KNOWN: ABI = ABI::V6;

/// Restricts this process, which has one thread, permanently to files beneath some directories: it can read and write them,
/// and create and remove regular files and directories. It can execute nothing, create no other kind of file, and neither
/// connect to nor bind a TCP port or an abstract socket outside of its ruleset.
///
/// Signals are not scoped: a shim kills a sandbox that is outside of its ruleset.
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
