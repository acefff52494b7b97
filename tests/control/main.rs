//! Crashes of the daemon and of everything around it: each accepted request is completed, and nothing is left behind.

mod agents;
mod cleanup;
mod client;
mod crashes;
mod disk_images;
mod disk_reserve;
mod failover;
mod failpoints;
mod full_disk;
mod homes;
mod host_restart;
mod idle;
mod memory;
mod operations;
mod other_users;
mod permissions;
mod ports;
mod retention;
mod scale;
mod scenarios;
mod unkillable;
