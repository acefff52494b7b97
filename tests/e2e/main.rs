//! The agent and its client together, as they are.

mod channel;
mod exec;
mod failures;
mod files;
mod images;
mod links;
mod tree;
