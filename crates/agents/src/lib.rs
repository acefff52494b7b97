//! One HTTP API over coding agents: sessions, a universal schema of what happens in them, and one driver per agent.

pub mod agent;
pub mod agents;
pub mod child;
pub mod claude;
pub mod cli;
pub mod codex;
pub mod credentials;
pub mod http;
pub mod install;
pub mod keep;
pub mod log;
pub mod mock;
pub mod schema;
pub mod session;
pub mod sessions;
mod words;
