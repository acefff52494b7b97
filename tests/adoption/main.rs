//! Sandboxes without their owner, or without their supervisor: found, judged and taken over, or swept.

mod adopted;
mod failpoints;
mod forged;
mod left;
mod standing;
