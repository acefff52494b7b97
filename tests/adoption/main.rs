//! Sandboxes without their owner or without their shim: discovery, verification, adoption and sweep.

mod adopted;
mod failpoints;
mod forged;
mod leftovers;
mod persistent;
