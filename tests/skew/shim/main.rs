//! Version skew between a shim and its clients: what both know works, and the rest is ignored or refused.

#[path = "../features.rs"]
mod features;
mod future;
#[path = "../../adoption/leftovers.rs"]
#[allow(dead_code, reason = "the failpoint tests need more of it")]
mod leftovers;
#[path = "../../adoption/persistent.rs"]
#[allow(dead_code, reason = "the adoption tests need more of it")]
mod persistent;
mod previous;
mod recorded_state;
