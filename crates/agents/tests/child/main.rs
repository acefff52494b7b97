//! Programs that misbehave in every way, and what is left of them: nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod bench;
mod ends;
mod escapes;
mod flow;
mod guards;
mod lines;
mod starts;
