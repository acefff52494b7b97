//! Claude Code: what it says as facts, and conversations with it.

mod conversation;
mod lines;
mod snapshots;
mod support;
