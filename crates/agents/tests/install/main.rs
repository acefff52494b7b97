//! Installs agents from a registry on loopback with scripted responses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition fails the test")]

mod concurrent;
mod discovery;
mod failures;
mod killed;
mod package;
mod registry;
mod success;
mod support;
