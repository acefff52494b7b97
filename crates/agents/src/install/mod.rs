//! From an agent's name to its program on this machine.
