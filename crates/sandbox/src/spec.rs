//! What a sandbox is made of.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use carrel_image::{GuestPath, RootFs};

use crate::ids::IdRange;

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Spec {
    /// What it sees as its root.
    pub root: RootFs,
    /// Trees of the host that the operator gives it, besides.
    pub mounts: Vec<Mount>,
    /// How much it may write to its root; `/dev/shm` has as much again.
    pub disk: u64,
    /// Its name for itself.
    pub hostname: String,
    /// The host's ids behind its own.
    pub ids: IdRange,
    /// Its first program, open; no path to it is left inside.
    pub program: OwnedFd,
    /// The arguments of that program, its name included.
    pub args: Vec<CString>,
    /// The environment of that program.
    pub env: Vec<CString>,
    /// What that program has as standard input and output.
    pub channel: OwnedFd,
}

/// A tree of the host that the operator gives to a sandbox, to be read and not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it is inside.
    pub target: GuestPath,
}
