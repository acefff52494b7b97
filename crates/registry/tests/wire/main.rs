//! Registries that a test makes up: what they say, and what is made of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test cannot go on without ends it")]

mod logins;
mod public;
mod pull;
mod push;
mod server;
