//! Programs that misbehave in every way, and what is left of them: nothing.

mod bench;
mod ends;
mod lines;
