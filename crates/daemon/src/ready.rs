//! The one line on standard output, once everything can be asked for.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// Where a daemon that is ready can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Where gRPC clients connect; the socket of the home is the last.
    pub grpc: Vec<String>,
    /// Where browsers and HTTP clients connect; nowhere yet.
    pub http: Option<String>,
    /// The key for ports that was made for this life, with `--dev`.
    pub key: Option<String>,
}

// === impl Ready ===

impl Ready {
    /// Says it.
    pub(crate) fn say(&self, mut out: impl Write) -> io::Result<()> {
        let line = serde_json::to_string(self).map_err(io::Error::other)?;
        writeln!(out, "{line}")?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_with_all_its_keys() {
        let mut said = Vec::new();
        Ready { grpc: vec!["unix:/x".to_owned()], ..Ready::default() }.say(&mut said).unwrap();
        assert_eq!(said, b"{\"grpc\":[\"unix:/x\"],\"http\":null,\"key\":null}\n");
    }
}
