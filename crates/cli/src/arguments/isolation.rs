//! What stands between a sandbox and the kernel of the host.

use clap::ValueEnum;

/// A kind of isolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationKind {
    /// Namespaces, and a filter of system calls.
    #[default]
    Namespaces,
    /// The same, and inside them the application kernel of gVisor.
    Gvisor,
}
