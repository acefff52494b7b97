//! The client against a scripted peer.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "modules of one test program")]

mod cancel;
mod exec;
mod files;
mod gate;
mod handshake;
mod inbound;
mod peer;
mod raw;
mod reconnect;
mod tcp;
mod tree;
