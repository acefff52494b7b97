//! The client of a shim against a scripted peer.

#![cfg(feature = "owner")]
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "modules of one test program")]

mod cancellation;
mod control;
mod follow;
mod handshake;
mod journal;
mod peer;
mod requests;
