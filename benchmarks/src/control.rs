//! The daemon: the cost of sandboxes and commands through it, the latency of events, and its memory when idle. Each part has
//! its own daemon.

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
