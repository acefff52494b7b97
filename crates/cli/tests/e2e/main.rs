//! The real command with real sandboxes: what a person sees, and what is left when they are done.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod attach;
mod cp;
mod exec;
mod fake;
mod flags;
mod gvisor;
mod images;
mod inspect;
mod kernel_memory;
mod leftovers;
mod limits;
mod logs;
mod project;
mod ps;
mod serve;
mod signals;
mod silent;
mod standing;
mod stays;
mod stop;
mod store;
mod streams;
mod support;
mod terminal;
mod words;
