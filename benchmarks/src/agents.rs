//! The agents server beside the published one: how soon it serves, its memory, and its throughput of events. Both run alone,
//! with the same environment and separate homes.

pub(crate) mod burst;
mod client;
pub(crate) mod create;
pub(crate) mod first;
pub(crate) mod idle;
pub(crate) mod many;
pub(crate) mod scripted_agent;
mod server;
mod session_client;
pub(crate) mod start;

const FACE: &str = "HTTP";
const PEER: &str = "published sandbox-agent 0.4.2";
