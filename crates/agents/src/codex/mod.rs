//! Codex: one `codex app-server` for all sessions, which speaks JSON-RPC in lines.
