//! Supervisors and those who talk to them, of different releases: what both know works, and the rest harms nobody.

mod future;
mod kept;
#[path = "../../adoption/left.rs"]
#[allow(dead_code, reason = "those who fall need more of it")]
mod left;
mod previous;
#[path = "../../adoption/standing.rs"]
#[allow(dead_code, reason = "those who are adopted need more of it")]
mod standing;
