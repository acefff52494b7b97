//! Misbehaving programs: no process of them is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed precondition fails the test")]

mod escapes;
mod exits;
mod flow;
mod guards;
mod lines;
mod spawn;
mod support;
