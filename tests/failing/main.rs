//! A shim that dies at the failpoint that a file beside it names. Everything else about it is unchanged.

use std::path::Path;
use std::process::ExitCode;

use carrel_failpoint::Failpoints;
use carrel_shim::{Failpoint, supervise};

fn main() -> ExitCode {
    // Beside the path that it was called by: one program has a name in many directories.
    let called = std::env::args_os().next().expect("argv[0] is set");
    match std::fs::read_to_string(Path::new(&called).with_file_name("failpoint")) {
        Ok(name) => {
            let point = Failpoint::named(&name).expect("a failpoint");
            carrel_failpoint::arm(point.name()).expect("a descriptor of this process");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
    supervise()
}
