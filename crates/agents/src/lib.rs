//! One HTTP API over coding agents: sessions, a universal schema of what happens in them, and one driver per agent.

pub mod agent;
pub mod child;
pub mod claude;
pub mod codex;
pub mod credentials;
pub mod install;
pub mod mock;
pub mod schema;
