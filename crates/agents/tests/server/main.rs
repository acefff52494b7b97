//! The server as clients use it: the real program with the built-in agent.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "../install/package.rs"]
#[allow(dead_code, reason = "the tests of the installer use all of it")]
mod package;
#[path = "../install/registry.rs"]
#[allow(dead_code, reason = "the tests of the installer use all of it")]
mod registry;

mod access;
mod agents;
mod cors;
mod errors;
mod events;
mod exits;
mod hosts;
mod installs;
mod listener;
mod load;
mod openapi;
mod prompts;
mod requests;
mod restart;
mod schema;
mod sessions;
mod sse_reader;
mod streams;
mod support;
mod turns;
