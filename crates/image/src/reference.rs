//! Parses the image references that users write.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest name, with tag and digest, that a registry accepts.
const MAX_BYTES: usize = 1024;

/// Names an image, as the user writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ImageRef {
    /// The host's own programs and libraries, and nothing else of it.
    Host,
    /// A directory that is a root file system, or a tar of one; which of the two is decided when it is used.
    Path(PathBuf),
    /// A directory that is a root file system.
    Directory(PathBuf),
    /// An OCI image layout in a directory.
    Oci {
        /// The layout's directory.
        path: PathBuf,
        /// The image in it: a tag, or `@` and a digest.
        name: Option<String>,
    },
    /// An OCI image layout in a tar.
    OciArchive {
        /// The tar.
        path: PathBuf,
        /// The image in it: a tag, or `@` and a digest.
        name: Option<String>,
    },
    /// A tar as `docker save` writes it.
    DockerArchive {
        /// The tar.
        path: PathBuf,
        /// The image in it: a name with its tag.
        name: Option<String>,
    },
    /// A name in a registry, `name[:tag][@digest]`, as the user wrote it.
    Registry(String),
}

/// A text that is not an image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an image\nhint: give `host`, a name such as `python:3.12`, a path such as `./root` or `/srv/root.tar`, \
     or `oci:`, `oci-archive:` or `docker-archive:` with one"
)]
pub struct InvalidImageRef(pub String);

// === impl ImageRef ===

impl ImageRef {
    /// The path on this host, unless it is `host` or a registry name.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Host | Self::Registry(_) => None,
            Self::Path(path)
            | Self::Directory(path)
            | Self::Oci { path, .. }
            | Self::OciArchive { path, .. }
            | Self::DockerArchive { path, .. } => Some(path),
        }
    }

    /// Applies `change` to the path, if there is one.
    #[must_use]
    pub fn map_path(self, change: impl FnOnce(PathBuf) -> PathBuf) -> Self {
        match self {
            Self::Path(path) => Self::Path(change(path)),
            Self::Directory(path) => Self::Directory(change(path)),
            Self::Oci { path, name } => Self::Oci { path: change(path), name },
            Self::OciArchive { path, name } => Self::OciArchive { path: change(path), name },
            Self::DockerArchive { path, name } => Self::DockerArchive { path: change(path), name },
            other @ (Self::Host | Self::Registry(_)) => other,
        }
    }

    /// Whether a text can only be a path, by its prefix.
    fn is_path(text: &str) -> bool {
        matches!(text, "." | ".." | "~") || ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start))
    }
}

impl FromStr for ImageRef {
    type Err = InvalidImageRef;

    fn from_str(text: &str) -> Result<Self, InvalidImageRef> {
        let bad = || InvalidImageRef(text.to_owned());
        let path = |path: &str| if path.is_empty() { Err(bad()) } else { Ok(PathBuf::from(path)) };
        let named = |text| {
            let (place, name) = split(text);
            if name == Some("") { Err(bad()) } else { Ok((path(place)?, name.map(str::to_owned))) }
        };
        match text.split_once(':') {
            _ if text == "host" => Ok(Self::Host),
            _ if Self::is_path(text) => Ok(Self::Path(text.into())),
            Some(("dir", place)) => Ok(Self::Directory(path(place)?)),
            Some(("oci", rest)) => named(rest).map(|(path, name)| Self::Oci { path, name }),
            Some(("oci-archive", rest)) => named(rest).map(|(path, name)| Self::OciArchive { path, name }),
            Some(("docker-archive", rest)) => named(rest).map(|(path, name)| Self::DockerArchive { path, name }),
            _ if is_name(text) => Ok(Self::Registry(text.to_owned())),
            _ => Err(bad()),
        }
    }
}

/// Splits a path from the name in it: after the first colon, or the digest from `@` on.
fn split(text: &str) -> (&str, Option<&str>) {
    let digest = text.find("@sha256:");
    match (digest, text.find(':')) {
        (Some(at), Some(colon)) if at < colon => (&text[..at], Some(&text[at..])),
        (_, Some(colon)) => (&text[..colon], Some(&text[colon + 1..])),
        (_, None) => (text, None),
    }
}

/// Whether a text may be a registry name; the registry crate parses it.
fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@+[]".contains(&byte);
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[');
    first && text.len() <= MAX_BYTES && text.bytes().all(known) && !text.ends_with(['/', ':', '@'])
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = |f: &mut fmt::Formatter<'_>, scheme, path: &Path, name: &Option<String>| {
            write!(f, "{scheme}:{}", path.display())?;
            match name.as_deref() {
                None => Ok(()),
                Some(digest) if digest.starts_with('@') => f.write_str(digest),
                Some(name) => write!(f, ":{name}"),
            }
        };
        match self {
            Self::Host => f.write_str("host"),
            Self::Path(path) => path.display().fmt(f),
            Self::Directory(path) => write!(f, "dir:{}", path.display()),
            Self::Oci { path, name } => within(f, "oci", path, name),
            Self::OciArchive { path, name } => within(f, "oci-archive", path, name),
            Self::DockerArchive { path, name } => within(f, "docker-archive", path, name),
            Self::Registry(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    //= promises.sandbox.image
    #[test]
    fn a_reference_is_recognized_by_its_prefix() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            ("host", ImageRef::Host),
            ("./root", ImageRef::Path("./root".into())),
            ("../root.tar", ImageRef::Path("../root.tar".into())),
            ("/srv/a:b", ImageRef::Path("/srv/a:b".into())),
            ("~/root", ImageRef::Path("~/root".into())),
            (".", ImageRef::Path(".".into())),
            ("dir:root", ImageRef::Directory("root".into())),
            ("oci:layout", ImageRef::Oci { path: "layout".into(), name: None }),
            ("oci:/l:v1.0", ImageRef::Oci { path: "/l".into(), name: name("v1.0") }),
            ("oci-archive:a.tar:v1", ImageRef::OciArchive { path: "a.tar".into(), name: name("v1") }),
            (
                "docker-archive:/a.tar:r.io/x:1",
                ImageRef::DockerArchive { path: "/a.tar".into(), name: name("r.io/x:1") },
            ),
            ("debian", ImageRef::Registry("debian".into())),
            ("images/root.tar", ImageRef::Registry("images/root.tar".into())),
            ("python:3.12", ImageRef::Registry("python:3.12".into())),
            ("localhost:5000/a/b:c", ImageRef::Registry("localhost:5000/a/b:c".into())),
            ("[::1]:5000/a", ImageRef::Registry("[::1]:5000/a".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        for text in [format!("oci:/l@{digest}"), format!("x@{digest}"), format!("x:1@{digest}")] {
            assert_eq!(text.parse::<ImageRef>().unwrap().to_string(), text);
        }
        let within = ImageRef::Oci { path: "/l".into(), name: Some(format!("@{digest}")) };
        assert_eq!(format!("oci:/l@{digest}").parse(), Ok(within));
    }

    //= promises.sandbox.image
    #[test]
    fn an_invalid_reference_is_rejected_with_a_hint() {
        let long = "a".repeat(MAX_BYTES + 1);
        for bad in ["", " ", "a b", "-x", "a/", "a:", "a@", "dir:", "oci:", "oci::v1", "oci:a:", "x\n", "ü", &long] {
            assert_eq!(bad.parse::<ImageRef>(), Err(InvalidImageRef(bad.into())));
        }
        assert!(InvalidImageRef("a b".into()).to_string().starts_with("\"a b\" is not an image\nhint: give `host`, "));
    }

    #[test]
    fn map_path_changes_only_the_path() {
        let at =
            |text: &str| text.parse::<ImageRef>().unwrap().map_path(|path| Path::new("/here").join(path)).to_string();
        assert_eq!(at("oci:a:v1"), "oci:/here/a:v1");
        assert_eq!(at("./a"), "/here/./a");
        assert_eq!((at("python:3"), at("host")), ("python:3".to_owned(), "host".to_owned()));
        assert_eq!("docker-archive:a:b:c".parse::<ImageRef>().unwrap().path(), Some(Path::new("a")));
    }
}
