//! The value of `--isolation`.

use clap::ValueEnum;

/// What separates a sandbox from the kernel of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationKind {
    /// Namespaces and a seccomp filter.
    #[default]
    Namespaces,
    /// The same, with the application kernel of gVisor inside.
    Gvisor,
}
