//! Services beside a sandbox: each a sandbox of its own, in the network of the one that it stands beside.
//!
//! Everything of a service is named by the start of the sandbox that it stands beside, and what it is at is told by its
//! own journal. So whoever comes after a daemon that died goes on where that one was.

mod course;
mod end;
mod hook;
mod hosts;
mod make;
mod named;
mod tend;
mod tended;

pub(crate) use self::end::remove_disks;
pub(crate) use self::hosts::name_all;
pub(crate) use self::named::start_of;
pub(crate) use self::tend::tend;
pub(crate) use self::tended::Tended;
