//! A daemon that dies where `CARREL_FAILPOINT` says, if it says anything. Everything else about it is as it is.

use std::process::ExitCode;

use carrel_daemon::{Options, serve};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let home = arguments.next().expect("usage: carrel-failing-daemon HOME [ADDRESS]…").into();
    let grpc = arguments.map(|address| address.parse().expect("an address")).collect();
    match serve(&Options { home, config: None, grpc, dev: false, check: false, detached: false }) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
