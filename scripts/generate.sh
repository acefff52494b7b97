#!/usr/bin/env bash
# Regenerates crates/api/src/generated from proto/. The code is committed; a test fails if it is not current.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo run --quiet --package carrel-api --example generate -- crates/api/src/generated
