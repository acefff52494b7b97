//! The server as clients meet it: the real program, with the agent that is built in.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod access;
mod agents;
mod asked;
mod bench;
mod cors;
mod ends;
mod events;
mod hosts;
mod load;
mod openapi;
mod place;
mod prompts;
mod refusals;
mod restart;
mod schema;
mod sessions;
mod stream;
mod streams;
mod turns;
