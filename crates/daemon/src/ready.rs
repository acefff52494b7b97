//! The ready line on standard output.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// The addresses of a daemon that is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyLine {
    /// The gRPC addresses; the socket of the home is the last.
    pub grpc: Vec<String>,
    /// The HTTP address; not implemented.
    pub http: Option<String>,
    /// The key for TCP listeners that was generated for this run, with `--dev`.
    pub key: Option<String>,
}

// === impl ReadyLine ===

impl ReadyLine {
    pub(crate) fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        let line = serde_json::to_string(self).map_err(io::Error::other)?;
        writeln!(out, "{line}")?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_one_line_with_all_keys() {
        let mut written = Vec::new();
        ReadyLine { grpc: vec!["unix:/x".to_owned()], ..ReadyLine::default() }.write_to(&mut written).unwrap();
        assert_eq!(written, b"{\"grpc\":[\"unix:/x\"],\"http\":null,\"key\":null}\n");
    }
}
