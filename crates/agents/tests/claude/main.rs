//! Claude Code: what it says as facts, and conversations with it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod conversation;
mod lines;
mod snapshots;
mod support;
