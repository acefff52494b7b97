//! The server as clients meet it: the real program, with the agent that is built in.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod access;
mod agents;
mod cors;
mod events;
mod exits;
mod hosts;
mod listener;
mod load;
mod openapi;
mod prompts;
mod refusals;
mod requests;
mod restart;
mod schema;
mod sessions;
mod sse_reader;
mod streams;
mod support;
mod turns;
