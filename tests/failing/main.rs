//! A supervisor that dies where a file beside it says. Everything else about it is as it is.

use std::path::Path;
use std::process::ExitCode;

use carrel_shim::{Failpoint, arm, supervise};

fn main() -> ExitCode {
    // Beside what it was called by: it is one program with a name in many directories.
    let called = std::env::args_os().next().expect("it was called by something");
    match std::fs::read_to_string(Path::new(&called).with_file_name("failpoint")) {
        Ok(name) => arm(Failpoint::named(&name).expect("there is such a place")).expect("it can die"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
    supervise()
}
