//! Agents are installed from a registry on loopback, which answers as a test says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test cannot go on without ends it")]

mod concurrent;
mod discovery;
mod failures;
mod killed;
mod registry;
mod success;
mod support;
