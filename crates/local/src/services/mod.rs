//! Services beside a sandbox: each a sandbox of its own, in the network of the one that it stands beside.
//!
//! Everything of a service is named by the start of the sandbox that it stands beside, and what it is at is told by its
//! own journal. So whoever comes after a daemon that died goes on where that one was.

mod create;
mod hook;
mod hosts;
mod service_ref;
mod state;
mod stop;
mod supervise;
mod supervised;

pub(crate) use self::hosts::add_service_hosts;
pub(crate) use self::service_ref::main_incarnation;
pub(crate) use self::stop::remove_disks;
pub(crate) use self::supervise::supervise;
pub(crate) use self::supervised::SupervisedServices;
