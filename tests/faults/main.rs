//! What must not hurt: little memory, slow readers, and peers that send nonsense.

mod hostile;
mod memory;
