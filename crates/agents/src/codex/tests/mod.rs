//! What the app-server was recorded to say, and what it might.

mod said;
mod snapshots;
