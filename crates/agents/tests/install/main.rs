//! Agents are installed from a registry on loopback, which answers as a test says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test cannot go on without ends it")]

mod broken;
mod found;
mod killed;
mod server;
mod shared;
mod support;
mod whole;
