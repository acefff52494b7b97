//! Tests of the store with real files: contents, events, crashes, power cuts, full disks and damage.

#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod backup;
mod check;
mod commits;
mod crash;
mod damage;
mod full;
mod listening;
mod opening;
mod origin;
mod power;
mod random;
mod repair;
mod retention;
mod stores;
mod support;
