//! The store: its content is complete, stored once, and kept while it is used, whatever happens to any process.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod archive;
mod bounds;
mod cancelled;
mod decompress;
mod files;
mod killed;
mod layers;
mod memory;
mod names;
mod pull;
mod rejected;
mod remove;
mod save;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trees.rs"]
mod trees;
