//! `carrel-shim`: the supervisor of one sandbox. Its owner is at the other end of its standard input.

use std::process::ExitCode;

fn main() -> ExitCode {
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
