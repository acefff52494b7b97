//! The provider of this host, as the control plane uses it: starts, adopts, watches, stops and removes sandboxes.

mod adoption;
mod copies;
mod disk_readers;
mod disks;
mod execs;
mod harness;
mod interrupted_starts;
mod lifecycle;
mod mounts;
mod ports;
mod pulls;
mod quota;
mod reaper;
mod services;
mod users;
