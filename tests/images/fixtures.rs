//! Images for the tests: one of three small layers with every kind of file, and a Debian with Python.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use carrel_tests::umoci;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use tempfile::TempDir;

/// An OCI layout with one image.
pub struct ImageFixture {
    path: PathBuf,
    tag: &'static str,
    _dir: Option<TempDir>,
}

/// The files of a layer before they are packed.
struct LayerDraft {
    dir: TempDir,
}

impl ImageFixture {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn tag(&self) -> &'static str {
        self.tag
    }

    /// An image with every kind of file, and a file with so many random bytes.
    pub fn with_every_kind_of_file(noise: usize) -> Self {
        let dir = tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("layout");
        let image = format!("{}:it", path.display());
        umoci(&["init", "--layout", path.to_str().unwrap()]);
        umoci(&["new", "--image", &image]);
        for (number, (layer, names)) in [lowest(noise), changes(), sparse_parents()].into_iter().enumerate() {
            let archive = dir.path().join(format!("{number}.tar"));
            layer.pack(&archive, &names);
            umoci(&["raw", "add-layer", "--image", &image, archive.to_str().unwrap()]);
        }
        umoci(&["config", "--image", &image, "--config.env", "COLOUR=green", "--config.cmd", "/bin/sh"]);
        Self { path, tag: "it", _dir: Some(dir) }
    }

    /// A Debian with Python, which is built once and cached.
    pub fn python() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/python.sh");
        let made = Command::new("bash").arg(script).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
        assert!(made.status.success(), "the image with Python could not be built");
        let path = String::from_utf8(made.stdout).unwrap().trim().into();
        Self { path, tag: "it", _dir: None }
    }
}

impl LayerDraft {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("carrel").tempdir_in("/var/tmp").unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn directory(&self, name: &str, mode: u32, owner: u32) {
        fs::create_dir_all(self.path(name)).unwrap();
        self.set_owner(name, mode, owner);
    }

    fn file(&self, name: &str, content: &[u8], mode: u32, owner: u32) {
        fs::write(self.path(name), content).unwrap();
        self.set_owner(name, mode, owner);
    }

    fn set_owner(&self, name: &str, mode: u32, owner: u32) {
        chown(self.path(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn attribute(&self, name: &str, attribute: &str, value: &[u8]) {
        rustix::fs::setxattr(self.path(name), attribute, value, XattrFlags::empty()).unwrap();
    }

    /// Writes the archive: of everything, or of the given names without their parent directories.
    fn pack(&self, archive: &Path, names: &[&str]) {
        let mut tar = Command::new("tar");
        tar.args([
            "--create",
            "--format=pax",
            "--xattrs",
            "--xattrs-include=*",
            "--numeric-owner",
            "--sort=name",
            "--sparse",
        ]);
        // No file is newer than its image.
        tar.arg("--mtime=@1700000000").arg("--file").arg(archive);
        tar.arg("--directory").arg(self.dir.path());
        match names {
            [] => tar.arg("."),
            names => tar.arg("--no-recursion").args(names),
        };
        assert!(tar.stdin(Stdio::null()).status().unwrap().success());
    }
}

/// The lowest layer.
fn lowest(noise: usize) -> (LayerDraft, Vec<&'static str>) {
    let draft = LayerDraft::new();
    draft.set_owner("", 0o755, 0);
    for name in ["bin", "etc", "home", "kept", "opaque", "opaque/deeper", "replaced", "emptied"] {
        draft.directory(name, 0o755, 0);
    }
    draft.directory("tmp", 0o1777, 0);
    draft.directory("home/user", 0o2750, 1000);
    draft.directory("deep/owned", 0o711, 33);
    fs::copy("/bin/busybox", draft.path("bin/busybox")).unwrap();
    draft.set_owner("bin/busybox", 0o755, 0);
    symlink("busybox", draft.path("bin/sh")).unwrap();
    symlink("/nowhere/at all", draft.path("bin/dangling")).unwrap();
    fs::hard_link(draft.path("bin/busybox"), draft.path("bin/same")).unwrap();
    fs::hard_link(draft.path("bin/busybox"), draft.path("home/same")).unwrap();
    draft.file("bin/su", b"#!/bin/sh\n", 0o4755, 0);
    draft.file("bin/wall", b"#!/bin/sh\n", 0o2755, 5);
    draft.file("bin/capable", b"#!/bin/sh\n", 0o755, 0);
    // `cap_net_bind_service+ep`, in the second of its forms.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    draft.attribute("bin/capable", "security.capability", &capability);
    draft.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644, 0);
    draft.file("etc/shadow", b"", 0o000, 0);
    draft.file("etc/gone", b"not for long\n", 0o644, 0);
    draft.file("home/user/noted", b"a note\n", 0o600, 1000);
    draft.attribute("home/user/noted", "user.note", b"\x00\xff of bytes");
    draft.attribute("home/user", "user.directory", b"too");
    draft.file("home/overflow", b"", 0o644, 65534);
    for name in [
        "opaque/hidden",
        "opaque/deeper/hidden",
        "replaced/inside",
        "emptied/one",
        "kept/as it is",
        "kept/\u{e4}\u{6f22}",
    ] {
        draft.file(name, name.as_bytes(), 0o644, 7);
    }
    draft.file(&format!("kept/{}", "long".repeat(50)), b"long", 0o644, 0);
    draft.file("file-then-directory", b"first a file", 0o644, 0);
    draft.file("kept/noise", &random(noise), 0o644, 0);
    let sparse = fs::File::create(draft.path("kept/holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"at the end", 3 << 20).unwrap();
    let mode = Mode::from_raw_mode(0o620);
    rustix::fs::mknodat(CWD, draft.path("kept/fifo"), FileType::Fifo, mode, 0).unwrap();
    draft.set_owner("kept/fifo", 0o620, 3);
    (draft, vec![])
}

/// A layer that removes and replaces files of the lowest.
fn changes() -> (LayerDraft, Vec<&'static str>) {
    let draft = LayerDraft::new();
    draft.set_owner("", 0o755, 0);
    draft.directory("etc", 0o750, 0);
    draft.file("etc/.wh.gone", b"", 0o644, 0);
    draft.directory("opaque", 0o700, 2);
    draft.file("opaque/.wh..wh..opq", b"", 0o644, 0);
    draft.file("opaque/shown", b"after all", 0o644, 0);
    draft.directory("emptied", 0o755, 0);
    draft.file("emptied/.wh.one", b"", 0o644, 0);
    symlink("kept", draft.path("replaced")).unwrap();
    draft.directory("file-then-directory", 0o755, 9);
    draft.file("file-then-directory/inside", b"then a directory", 0o644, 9);
    draft.directory("kept", 0o755, 0);
    draft.file("kept/as it is", b"no more", 0o640, 7);
    (draft, vec![])
}

/// A layer with files whose parent directories are not in the archive: those must not change.
fn sparse_parents() -> (LayerDraft, Vec<&'static str>) {
    let draft = LayerDraft::new();
    for name in ["home/user", "deep/owned", "etc"] {
        draft.directory(name, 0o755, 0);
    }
    draft.file("home/user/late", b"came late\n", 0o600, 1000);
    draft.file("deep/owned/late", b"came late, too\n", 0o604, 33);
    draft.file("etc/.wh.shadow", b"", 0o644, 0);
    (draft, vec!["home/user/late", "deep/owned/late", "etc/.wh.shadow"])
}

/// Bytes that cannot be compressed.
fn random(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[4]
    };
    std::iter::repeat_with(next).take(length).collect()
}
