//! `sandbox-agent`: the agents server.

fn main() {}
