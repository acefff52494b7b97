//! A daemon that dies, and everything around it that does: what was accepted ends, and nothing is left.

mod agents;
mod client;
mod courses;
mod deaths;
mod disk;
mod failpoints;
mod full;
mod history;
mod homes;
mod idle;
mod left;
mod life;
mod many;
mod memory;
mod operations;
mod permissions;
mod ports;
mod restart;
mod sized;
mod strangers;
mod stuck;
