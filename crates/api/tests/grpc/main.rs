//! The whole service over a real socket, above machines in memory.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "modules of one test program")]

mod attach;
mod callers;
mod door;
mod events;
mod many;
mod memory;
mod near;
mod pauses;
mod provider;
mod refusals;
mod requests;
mod shim;
mod slow;
mod tcp;
mod world;
