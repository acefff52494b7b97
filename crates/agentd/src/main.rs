//! `carrel-agentd`: pid 1 of a sandbox.

use std::process::ExitCode;

use carrel_agentd::args::{self, AgentdCommand};

fn main() -> ExitCode {
    match args::parse(std::env::args_os().skip(1)) {
        Ok(AgentdCommand::Help) => print!("{}", args::HELP),
        Ok(AgentdCommand::Version) => println!("carrel-agentd {}", env!("CARGO_PKG_VERSION")),
        Ok(AgentdCommand::Serve(options)) => {
            if let Err(error) = carrel_agentd::serve(&options) {
                eprintln!("carrel-agentd: {error}");
                return ExitCode::FAILURE;
            }
        }
        Err(error) => {
            eprintln!("carrel-agentd: {error}\nhint: carrel-agentd --help");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
