//! Jobs and the journal, in real sandboxes: each runs once, outlives whoever looks at it, and ends with a reason.

mod abuse;
mod archive;
mod beside;
mod ends;
mod full;
mod groups;
mod input;
mod journal;
mod lies;
mod many;
mod output;
mod pauses;
mod ports;
mod relapses;
mod terminal;
mod termination;
mod viewers;
