//! Builds archives by hand, including invalid ones.

#![allow(dead_code, reason = "every test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::io::Write;
use std::path::{Path, PathBuf};

use carrel_layers::archive::ArchiveForm;
use carrel_layers::{Compression, UnpackError, UnpackProcess, UnpackedLayer, Unpacker};

/// Builds an archive.
#[derive(Clone, Default)]
pub(crate) struct TarBuilder(pub(crate) Vec<u8>);

/// A header with the common fields. Its size and checksum are set when it is written.
pub(crate) fn header(name: &[u8], kind: u8) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    let name = &name[..name.len().min(100)];
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkflag = [kind];
    header.set_mode(if kind == b'5' { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    header.set_size(0);
    header
}

/// A record of an extended header.
pub(crate) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length += 1;
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

impl TarBuilder {
    /// The entries of every valid image.
    pub(crate) fn control() -> Self {
        Self::default().dir("./").dir("etc/").file("etc/hostname", b"carrel\n").symlink("etc/link", "/etc/hostname")
    }

    /// Adds a header and a content, whose size may differ from the one in the header.
    pub(crate) fn raw(mut self, mut header: tar::Header, content: &[u8]) -> Self {
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds an entry with its content.
    pub(crate) fn entry(self, name: &[u8], kind: u8, content: &[u8]) -> Self {
        let mut header = header(name, kind);
        header.set_size(content.len() as u64);
        self.raw(header, content)
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(name.as_bytes(), b'0', content)
    }

    pub(crate) fn dir(self, name: &str) -> Self {
        self.entry(name.as_bytes(), b'5', b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.link(name, b'2', target)
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.link(name, b'1', target)
    }

    fn link(self, name: &str, kind: u8, target: &str) -> Self {
        let mut header = header(name.as_bytes(), kind);
        header.set_link_name_literal(target).unwrap();
        self.raw(header, b"")
    }

    /// Adds an extended header for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.entry(b"pax", b'x', &body)
    }

    /// Ends the archive.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// A directory for trees, and the program that unpacks into it.
pub(crate) struct UnpackFixture {
    pub(crate) home: tempfile::TempDir,
    pub(crate) unpacker: Unpacker,
}

/// An unpacked tree and its result.
pub(crate) struct UnpackedTree {
    pub(crate) path: PathBuf,
    pub(crate) unpacked: UnpackedLayer,
}

impl UnpackFixture {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { home, unpacker: Unpacker::new(env!("CARGO_BIN_EXE_carrel-unpack")) }
    }

    /// Creates a directory and starts to unpack into it.
    pub(crate) fn start(&self, compression: Compression, form: ArchiveForm) -> (PathBuf, UnpackProcess) {
        let path = self.home.path().join("tree");
        let _old = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        let into = std::fs::File::open(&path).unwrap().into();
        (path, self.unpacker.start_form(&into, compression, form).unwrap())
    }

    /// Unpacks a stream with the real process.
    pub(crate) fn stream(
        &self,
        stream: &[u8],
        compression: Compression,
        form: ArchiveForm,
    ) -> Result<UnpackedTree, UnpackError> {
        let (path, mut unpacking) = self.start(compression, form);
        // A failed write is reported by the result.
        let _written = unpacking.write_all(stream);
        Ok(UnpackedTree { path, unpacked: unpacking.finish()? })
    }

    /// Unpacks the tar of a root.
    pub(crate) fn root(&self, archive: &[u8]) -> Result<UnpackedTree, UnpackError> {
        self.stream(archive, Compression::None, ArchiveForm::Root)
    }

    /// Compresses the tar of a layer, and unpacks it.
    pub(crate) fn layer(&self, archive: &[u8]) -> Result<UnpackedTree, UnpackError> {
        self.stream(&gzip(archive), Compression::Gzip, ArchiveForm::Layer)
    }
}

impl UnpackedTree {
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// The names in a directory that may not exist.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
