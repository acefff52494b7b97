//! Conversations with an app-server that does what it is told, well or badly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

mod modes;
mod shutdown;
mod support;
mod threads;
