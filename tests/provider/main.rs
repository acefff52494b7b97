//! Sandboxes as the control plane has them: made, taken over, watched, ended and removed by the provider of this machine.

mod adopted;
mod copied;
mod disks;
mod execs;
mod halves;
mod lives;
mod mounts;
mod ports;
mod pulled;
mod quota;
mod readers;
mod reaped;
mod services;
mod users;
mod world;
