//! The store: what is in it is whole, is there once, and stays while somebody needs it, whatever happens to anybody.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod archive;
mod bounds;
mod files;
mod killed;
mod layers;
mod memory;
mod names;
mod outer;
mod pull;
mod refused;
mod remove;
mod save;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trees.rs"]
mod trees;
