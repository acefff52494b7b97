//! A job, and a person or a program at its streams.

pub(crate) mod control;
pub(crate) mod detach;
pub(crate) mod driver;
pub(crate) mod ending;
pub(crate) mod input;
pub(crate) mod notes;
pub(crate) mod output;
pub(crate) mod signals;
pub(crate) mod terminal;
