//! Attacks on pid 1 by the processes that it started: each is made twice, and succeeds without the defence.

mod init;
mod program;
