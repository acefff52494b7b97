//! A real store in a real file: what it keeps, what it tells, and what it survives.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

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
