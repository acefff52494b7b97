//! The daemon: what a sandbox and a command cost through it, how events come, and what it holds while all rest. Each
//! part has a daemon of its own.

mod client;
pub(crate) mod create;
mod daemon;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod idle;
pub(crate) mod life;
pub(crate) mod many;
pub(crate) mod syncs;

const FACE: &str = "gRPC";
