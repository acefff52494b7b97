//! What `carrel cp` is to copy: the source and the target.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A copy into a sandbox, or out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyRequest {
    Upload {
        source: PathBuf,
        name: String,
        target: SandboxPath,
    },
    Download {
        name: String,
        source: SandboxPath,
        target: PathBuf,
    },
    /// A tar archive from standard input.
    Extract {
        name: String,
        target: SandboxPath,
    },
    /// A tar archive to standard output.
    Archive {
        name: String,
        source: SandboxPath,
    },
}

/// An absolute path inside a sandbox, without a trailing `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SandboxPath {
    path: String,
    /// It was given with a trailing `/`, and so must be a directory.
    pub(crate) directory: bool,
    /// It was given with a trailing `.`, and so means the contents of a directory.
    pub(crate) contents: bool,
}

/// One side of a copy.
enum CopyEndpoint {
    Host(PathBuf),
    /// Standard input or output.
    Stream,
    Sandbox(String, SandboxPath),
}

// === impl CopyRequest ===

impl CopyRequest {
    pub(crate) fn parse(source: &OsStr, target: &OsStr) -> Result<Self, Failure> {
        match (CopyEndpoint::parse(source)?, CopyEndpoint::parse(target)?) {
            (CopyEndpoint::Host(source), CopyEndpoint::Sandbox(name, target)) => {
                Ok(Self::Upload { source, name, target })
            }
            (CopyEndpoint::Sandbox(name, source), CopyEndpoint::Host(target)) => {
                Ok(Self::Download { name, source, target })
            }
            (CopyEndpoint::Stream, CopyEndpoint::Sandbox(name, target)) => Ok(Self::Extract { name, target }),
            (CopyEndpoint::Sandbox(name, source), CopyEndpoint::Stream) => Ok(Self::Archive { name, source }),
            (CopyEndpoint::Host(_) | CopyEndpoint::Stream, CopyEndpoint::Host(_) | CopyEndpoint::Stream) => {
                Err(wrong("neither path is in a sandbox")
                    .hint("give a path in a sandbox as NAME:PATH; use `cp` to copy on the host"))
            }
            (CopyEndpoint::Sandbox(..), CopyEndpoint::Sandbox(..)) => Err(wrong("both paths are in sandboxes")
                .hint("copy to the host first; a host path that contains `:` must begin with / or ./")),
        }
    }

    /// The sandbox.
    pub(crate) fn name(&self) -> &str {
        let (Self::Upload { name, .. }
        | Self::Download { name, .. }
        | Self::Extract { name, .. }
        | Self::Archive { name, .. }) = self;
        name
    }

    /// Whether it writes to the sandbox.
    pub(crate) fn writes_to_sandbox(&self) -> bool {
        matches!(self, Self::Upload { .. } | Self::Extract { .. })
    }
}

// === impl CopyEndpoint ===

impl CopyEndpoint {
    /// Text before the first `:` is the name of a sandbox, unless it contains a `/`.
    fn parse(text: &OsStr) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        let colon =
            bytes.iter().position(|byte| *byte == b':').filter(|at| !bytes.iter().take(*at).any(|b| *b == b'/'));
        let Some((name, rest)) = colon.and_then(|at| bytes.split_at_checked(at)) else {
            if bytes.is_empty() {
                return Err(wrong("a path is empty"));
            }
            if bytes == b"-" {
                return Ok(Self::Stream);
            }
            return Ok(Self::Host(OsString::from_vec(bytes.to_vec()).into()));
        };
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| wrong("the name of a sandbox and a path inside must be UTF-8"))
        };
        let (name, path) = (text(name)?, text(rest.get(1..).unwrap_or_default())?);
        if name.is_empty() || path.is_empty() {
            return Err(
                wrong("a path in a sandbox needs a name and a path").hint("write it as NAME:PATH, such as web:/etc")
            );
        }
        if path.contains('\0') {
            return Err(wrong("a path contains a NUL byte"));
        }
        Ok(Self::Sandbox(name, SandboxPath::new(&path)))
    }
}

// === impl SandboxPath ===

impl SandboxPath {
    fn new(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (directory, contents) = (path.ends_with('/'), means_contents(Path::new(path)));
        Self { path: format!("/{}", parts.join("/")), directory, contents }
    }

    /// The path; with a trailing `/`, a link is followed.
    pub(crate) fn path(&self) -> String {
        if self.directory && self.path != "/" { format!("{}/", self.path) } else { self.path.clone() }
    }

    /// The last component.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The parent directory.
    pub(crate) fn parent(&self) -> String {
        match self.path.rsplit_once('/') {
            Some(("", _)) | None => "/".to_owned(),
            Some((parent, _)) => parent.to_owned(),
        }
    }
}

/// Whether a path means the contents of a directory, because it ends in no name.
pub(crate) fn means_contents(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let named = bytes.get(..end).unwrap_or_default();
    matches!(named.rsplit(|byte| *byte == b'/').next(), None | Some(b"" | b"." | b".."))
}

/// Joins a path and a name inside a sandbox.
pub(crate) fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

fn wrong(message: &str) -> Failure {
    Failure::new("usage", message).hint("carrel cp --help").exit(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(source: &str, target: &str) -> Result<CopyRequest, String> {
        CopyRequest::parse(source.as_ref(), target.as_ref()).map_err(|failure| failure.message)
    }

    #[test]
    fn exactly_one_side_is_a_sandbox() {
        let inside = |path: &str| SandboxPath::new(path);
        let into = |source: &str, name: &str, target: &str| {
            Ok(CopyRequest::Upload { source: source.into(), name: name.to_owned(), target: inside(target) })
        };
        assert_eq!(parsed("a", "web:/b"), into("a", "web", "/b"));
        assert_eq!(parsed("./a:b", "web:b:c"), into("./a:b", "web", "b:c"));
        assert_eq!(parsed("/a:b", "web:/"), into("/a:b", "web", "/"));
        let out_of = CopyRequest::Download { name: "web".to_owned(), source: inside("/b"), target: ".".into() };
        assert_eq!(parsed("web:/b", "."), Ok(out_of));
        assert_eq!(parsed("-", "web:/b"), Ok(CopyRequest::Extract { name: "web".to_owned(), target: inside("/b") }));
        assert_eq!(parsed("web:/b", "-"), Ok(CopyRequest::Archive { name: "web".to_owned(), source: inside("/b") }));
        assert_eq!(parsed("./-", "web:/b"), into("./-", "web", "/b"));
        assert!(parsed("-", "b").is_err() && parsed("-", "-").is_err());
        assert_eq!(parsed("a", "b").unwrap_err(), "neither path is in a sandbox");
        assert_eq!(parsed("a:b", "c:d").unwrap_err(), "both paths are in sandboxes");
        for (source, target) in [(":x", "y"), ("x:", "y"), ("", "x:y")] {
            assert!(parsed(source, target).is_err(), "{source} {target}");
        }
    }

    #[test]
    fn a_path_inside_is_absolute_and_normalised() {
        for (given, path, name, parent) in [
            ("/a//b", "/a/b", "b", "/a"),
            ("a/b", "/a/b", "b", "/a"),
            ("a/", "/a/", "a", "/"),
            ("/", "/", "", "/"),
            ("/a/.", "/a/.", ".", "/a"),
        ] {
            let inside = SandboxPath::new(given);
            assert_eq!((inside.path().as_str(), inside.name(), inside.parent().as_str()), (path, name, parent));
        }
        assert_eq!((join("/", "x"), join("/a", "x"), join("/a/", "x")), ("/x".into(), "/a/x".into(), "/a/x".into()));
    }

    #[test]
    fn a_path_that_ends_in_no_name_means_the_contents_of_the_directory() {
        for path in [".", "..", "a/.", "a/..", "a/./", "/", ""] {
            assert!(means_contents(Path::new(path)), "{path}");
        }
        for path in ["a", "a/", "./a", "a/.b", "..."] {
            assert!(!means_contents(Path::new(path)), "{path}");
        }
    }
}
