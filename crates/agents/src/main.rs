//! `sandbox-agent`: the agents server.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = carrel_agents::child::guard_main() {
        return code;
    }
    carrel_agents::cli::run()
}
