//! A session with a job: its streams, signals and terminal.

pub(crate) mod control;
pub(crate) mod detach;
pub(crate) mod driver;
pub(crate) mod ending;
pub(crate) mod input;
pub(crate) mod notes;
pub(crate) mod output;
pub(crate) mod signals;
pub(crate) mod terminal;
