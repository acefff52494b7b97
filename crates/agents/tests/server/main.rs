//! The server as clients meet it: the real program, with the agent that is built in.

mod access;
mod asked;
mod bench;
mod cors;
mod ends;
mod events;
mod load;
mod openapi;
mod place;
mod prompts;
mod refusals;
mod restart;
mod schema;
mod sessions;
mod stream;
mod streams;
mod turns;
