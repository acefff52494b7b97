//! Conversations with a fake app-server that follows the prompts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed precondition fails the test")]

mod modes;
mod shutdown;
mod support;
mod threads;
