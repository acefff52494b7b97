//! The real command with real sandboxes: what a person sees, and what is left when they are done.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod flags;
mod leftovers;
mod project;
mod signals;
mod streams;
mod support;
mod terminal;
mod words;
