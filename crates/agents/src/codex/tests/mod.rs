//! Recorded and generated messages of the app-server.

mod messages;
mod snapshots;
