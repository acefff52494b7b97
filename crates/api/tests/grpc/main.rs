//! The whole service on a real socket, with a fake provider.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "modules of one test program")]

mod attach;
mod callers;
mod carrel_v1;
mod events;
mod many;
mod memory;
mod middleware;
mod pauses;
mod provider;
mod refusals;
mod requests;
mod server;
mod shim;
mod slow;
mod tcp;
