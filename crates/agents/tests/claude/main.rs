//! Claude Code: what it says as facts, and conversations with it.

mod lines;
mod snapshots;
mod support;
