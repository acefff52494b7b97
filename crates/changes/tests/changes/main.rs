//! Changes of real trees: found, shown, kept, applied and exported.

#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

mod apply;
mod collect;
mod diff;
mod export;
mod git;
mod git_commands;
mod git_guard;
mod hostile;
mod identity;
mod overlay;
mod races;
mod saved;
mod support;
