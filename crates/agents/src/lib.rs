//! One HTTP API for coding agents: sessions, a universal event schema, and one driver per agent.
//!
//! A server in a program of its own; `sandbox-agent server` is the same with flags. Each agent runs behind a guard, which
//! is this program once more, so `main` begins with [`child::guard_main`].
//!
//! ```no_run
//! use std::{process::ExitCode, sync::Arc, time::Duration};
//!
//! use carrel_agents::{
//!     agents::AgentRegistry,
//!     child::guard_main,
//!     http::{self, AppState, CorsPolicy, ServerListener},
//!     install::InstallSettings,
//!     session::SessionLimits,
//!     sessions::SessionRegistry,
//! };
//! use tokio::sync::watch;
//!
//! fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     if let Some(code) = guard_main() {
//!         return Ok(code);
//!     }
//!     tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve())
//! }
//!
//! async fn serve() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     let (_stop, shutting_down) = watch::channel(false);
//!     let agents = Arc::new(AgentRegistry::new(InstallSettings::from_environment()));
//!     let installed = Arc::clone(&agents);
//!     let locate = Arc::new(move |agent, directory: &std::path::Path| installed.locate(agent, directory));
//!     let app = AppState {
//!         token: None,
//!         // On a Unix socket, the permissions of its directory decide who has access.
//!         hosts: None,
//!         cors: CorsPolicy::default(),
//!         sessions: SessionRegistry::new(None, locate, SessionLimits::default()),
//!         agents,
//!         shutting_down: shutting_down.clone(),
//!     };
//!     let listener = ServerListener::unix("agents.sock".into())?;
//!     http::serve(listener, http::router(Arc::new(app)), shutting_down, Duration::from_millis(100)).await;
//!     Ok(ExitCode::SUCCESS)
//! }
//! ```

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
