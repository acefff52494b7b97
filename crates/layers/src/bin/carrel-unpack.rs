//! The program that unpacks one layer, and can do nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    carrel_layers::unpack::main()
}
