//! Claude Code: one process for each session, which speaks JSON lines both ways.
