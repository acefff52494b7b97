//! Programs that misbehave in every way, and what is left of them: nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod escapes;
mod exits;
mod flow;
mod guards;
mod lines;
mod spawn;
mod support;
