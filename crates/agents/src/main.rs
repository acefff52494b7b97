//! `sandbox-agent`: the agents server.

use std::process::ExitCode;

fn main() -> ExitCode {
    carrel_agents::cli::run()
}
