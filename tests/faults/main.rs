//! Faults that the agent must survive: little memory, slow readers, and malformed messages.

mod hostile;
mod memory;
