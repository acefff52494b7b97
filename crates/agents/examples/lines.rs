//! Runs a program and prints its lines, numbered.

use std::process::ExitCode;

use carrel_agents::child::{self, Child, OutputLine, ProcessSpec};

fn main() -> ExitCode {
    // This program is its own guard.
    if let Some(code) = child::guard_main() {
        return code;
    }
    child::raise_fd_limit();
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().unwrap_or_default().into();
    let spec = ProcessSpec { program, arguments: arguments.collect(), directory: "/".into(), environment: Vec::new() };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(print(&spec)),
        Err(error) => failed(&error),
    }
}

async fn print(spec: &ProcessSpec) -> ExitCode {
    let mut child = match Child::spawn(spec) {
        Ok(child) => child,
        Err(error) => return failed(&error),
    };
    let mut number = 0;
    while let Some(OutputLine::Complete(line) | OutputLine::Truncated(line) | OutputLine::Unterminated(line)) =
        child.line().await
    {
        number += 1;
        println!("{number} {}", String::from_utf8_lossy(&line));
    }
    println!("{}", child.exit().await);
    ExitCode::SUCCESS
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
