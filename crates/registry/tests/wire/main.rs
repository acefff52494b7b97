//! The client against scripted registries on loopback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test cannot go on without ends it")]

mod logins;
mod public;
mod pull;
mod push;
mod server;
