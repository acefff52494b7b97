//! `carrel-shim`: supervises one sandbox. Its owner is at the other end of its standard input.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First: a compromised shim must not have descriptors of other processes.
    if let Err(error) = carrel_sandbox::close_inherited_descriptors() {
        eprintln!("carrel-shim: {error}");
        return ExitCode::FAILURE;
    }
    match std::env::args().nth(1).as_deref() {
        None => carrel_shim::supervise(),
        Some("--version" | "-V") => {
            println!("carrel-shim {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some(_) => {
            eprintln!(
                "carrel-shim: started by `carrel`, with the owner of a sandbox on standard input\nhint: carrel run --help"
            );
            ExitCode::from(2)
        }
    }
}
