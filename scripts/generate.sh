#!/usr/bin/env bash
# Writes the Rust code of proto/ anew, into crates/api/src/generated. It is committed; a test fails while it is not current.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo run --quiet --package carrel-api --example generate -- crates/api/src/generated
