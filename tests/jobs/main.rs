//! Jobs and the journal in real sandboxes: each job runs once, outlives its clients, and ends with an outcome.

mod abuse;
mod archive;
mod full_disk;
mod hostile_guest;
mod input;
mod journal;
mod outcomes;
mod output;
mod pause;
mod ports;
mod process_groups;
mod regressions;
mod scale;
mod shared_network;
mod terminal;
mod termination;
mod viewers;
