//! Services: each is a sandbox of its own, in the network of its main sandbox.
//!
//! Everything of a service is named after the incarnation of its main sandbox, and its state is replayed from its own
//! journal. So a new daemon continues where the last one was.

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
