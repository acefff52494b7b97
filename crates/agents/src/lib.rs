//! One HTTP API for coding agents: sessions, a universal event schema, and one driver per agent.

pub mod agent;
pub mod agents;
pub mod child;
pub mod claude;
pub mod cli;
pub mod codex;
pub mod credentials;
pub mod http;
pub mod install;
mod json_line;
pub mod log;
pub mod mock;
pub mod schema;
pub mod session;
pub mod session_store;
pub mod sessions;
