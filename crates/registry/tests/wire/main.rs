//! The client against scripted registries on loopback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails where it panics")]

mod logins;
mod public;
mod pull;
mod push;
mod server;
