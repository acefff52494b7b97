//! Pid 1 against what it started: each attempt is made twice, and without the defence it has to succeed.

mod init;
mod program;
