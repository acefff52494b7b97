//! The real agent with the real client.

mod channel;
mod exec;
mod failures;
mod files;
mod images;
mod links;
mod tree;
