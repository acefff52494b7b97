//! The daemon with failpoints: it kills itself at the one that `CARREL_FAILPOINT` names.

use std::process::ExitCode;

use carrel_daemon::{ServeOptions, serve};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let home = arguments.next().expect("usage: carrel-failing-daemon HOME [--accept-data-loss] [ADDRESS]…").into();
    let (flags, addresses): (Vec<String>, Vec<String>) = arguments.partition(|argument| argument.starts_with("--"));
    let accept_data_loss = flags.iter().any(|flag| flag == "--accept-data-loss");
    let grpc = addresses.iter().map(|address| address.parse().expect("an address")).collect();
    match serve(&ServeOptions { home, config: None, grpc, dev: false, check: false, detached: false, accept_data_loss })
    {
        Ok(code) => ExitCode::from(code),
        Err(failed) => {
            if !failed.logged {
                eprintln!("error: {failed}");
            }
            ExitCode::from(failed.error.exit())
        }
    }
}
