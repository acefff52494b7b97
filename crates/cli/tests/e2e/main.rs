//! End-to-end tests of the CLI with real sandboxes.

#![allow(clippy::unwrap_used, reason = "tests panic on failure")]

mod attach;
mod cp;
mod exec;
mod fake_shim;
mod flags;
mod gvisor;
mod images;
mod inspect;
mod kernel_memory;
mod leftovers;
mod limits;
mod logs;
mod messages;
mod persistent;
mod project;
mod ps;
mod running_sandbox;
mod serve;
mod signals;
mod stop;
mod store;
mod streams;
mod support;
mod terminal;
mod unresponsive;
