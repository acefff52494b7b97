//! The agents server beside the published one: how soon it serves, what it holds, and how fast it passes on what agents
//! say. Both run alone, with the same environment and a home of their own.

pub(crate) mod burst;
mod client;
pub(crate) mod create;
pub(crate) mod first;
pub(crate) mod idle;
pub(crate) mod many;
pub(crate) mod play;
mod server;
pub(crate) mod start;
mod talk;

const FACE: &str = "HTTP";
const PEER: &str = "published sandbox-agent 0.4.2";
