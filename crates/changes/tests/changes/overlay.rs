//! Random work in a real overlay: applied to a copy of the project, its changes give exactly what the sandbox saw.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_changes::{ApplyOptions, DiffStyle};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::support::{BASE, TestTrees, TreeItem, USER, items};

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c d", b"\xc3\xa4\"\\", b"e\n\x1b[1m", b"\xff"];
const MODES: [u32; 4] = [0o644, 0o755, 0o600, 0o640];
const CONTENTS: [&[u8]; 6] = [b"", b"one\n", b"one\ntwo\nthree\n", b"no end", b"one\r\ntwo\n\xfe\n", b"\n\n"];
/// Links that stay inside, wherever they are.
const TARGETS: [&[u8]; 4] = [b"a", b"b/c d", b"./\xff", b"nowhere\n"];
/// Links without a target: git follows those that are to be replaced.
const DANGLING: [&[u8]; 3] = [b"nowhere", b"no/where\n", b"./\xfe"];

/// A kind of operation, and its parameters.
type Act = (u8, [u8; 3], [u8; 3], u8);

/// An overlay that is unmounted at the end.
struct MountedOverlay(PathBuf);

/// Whether this process has its own mount namespace; if not, it starts the one that has, and checks its result.
pub(crate) fn has_private_mounts(test: &str) -> bool {
    const MARK: &str = "CARREL_PRIVATE_MOUNTS";
    if let Some(place) = std::env::var_os(MARK) {
        // As in a sandbox, the layer is in memory.
        rustix::mount::mount("tmpfs", place.as_os_str(), "tmpfs", MountFlags::empty(), c"size=256m").unwrap();
        return true;
    }
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new("unshare");
    child.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(MARK, place.path()).env("TMPDIR", place.path());
    let output = child.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    false
}

fn place(root: &Path, choices: [u8; 3]) -> PathBuf {
    let depth = usize::from(choices[0] % 3) + 1;
    let names =
        choices.iter().take(depth).map(|choice| OsStr::from_bytes(NAMES[usize::from(choice / 3) % NAMES.len()]));
    root.join(names.collect::<PathBuf>())
}

fn pick<T: Copy>(from: &[T], choice: u8) -> T {
    from[usize::from(choice) % from.len()]
}

/// Performs one operation. Many fail, which is expected.
fn act(root: &Path, (kind, one, other, choice): Act, targets: &[&[u8]]) {
    let (path, second) = (place(root, one), place(root, other));
    let _ = match kind % 10 {
        0 | 1 => {
            let _ = fs::create_dir_all(path.parent().unwrap());
            fs::write(&path, pick(&CONTENTS, choice))
        }
        2 => fs::create_dir_all(&path),
        3 => fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)),
        4 => symlink(OsStr::from_bytes(pick(targets, choice)), &path),
        5 if path.is_symlink() => Ok(()),
        5 => fs::set_permissions(&path, PermissionsExt::from_mode(pick(&MODES, choice))),
        6 => fs::rename(&path, &second),
        7 => fs::hard_link(&path, &second),
        8 => {
            fs::OpenOptions::new().append(true).open(&path).and_then(|mut file| file.write_all(pick(&CONTENTS, choice)))
        }
        _ => chown(&path, Some(BASE + USER), Some(BASE + USER)),
    };
}

/// A project after some operations, a sandbox after some more, and the tree that it saw at the end.
fn work(before: &[Act], after: &[Act], targets: &[&[u8]]) -> (TestTrees, BTreeMap<Vec<u8>, TreeItem>) {
    let trees = TestTrees::new();
    for name in ["merged", "work"] {
        fs::create_dir(trees.path(name)).unwrap();
    }
    // Everything in a project belongs to its owner: no user inside maps to another one.
    for step in before.iter().take(24).filter(|step| step.0 % 10 != 9) {
        act(&trees.path("project"), *step, targets);
    }
    let overlay = MountedOverlay::mount(&trees);
    for step in after.iter().take(24) {
        act(&overlay.0, *step, targets);
    }
    let observed = items(&overlay.0);
    drop(overlay);
    (trees, observed)
}

// === impl MountedOverlay ===

impl MountedOverlay {
    fn mount(trees: &TestTrees) -> Self {
        let merged = trees.path("merged");
        let at = |name: &str| trees.path(name).to_str().unwrap().to_owned();
        let data = format!("lowerdir={},upperdir={},workdir={},userxattr", at("project"), at("upper"), at("work"));
        let data = std::ffi::CString::new(data).unwrap();
        rustix::mount::mount("overlay", &merged, "overlay", MountFlags::empty(), data.as_c_str()).unwrap();
        Self(merged)
    }
}

impl Drop for MountedOverlay {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::empty()).unwrap();
    }
}

//= carrel.command.kept-changes-shown-applied
//= promises.changes.changes-applied-copy-project
#[test]
fn changes_applied_to_a_copy_of_the_project_give_what_the_sandbox_saw() {
    if !has_private_mounts("overlay::changes_applied_to_a_copy_of_the_project_give_what_the_sandbox_saw") {
        return;
    }
    bolero::check!().with_iterations(256).with_type::<(Vec<Act>, Vec<Act>, bool)>().for_each(
        |(before, after, other)| {
            let (trees, observed) = work(before, after, &TARGETS);
            let was = trees.items();
            let kept = trees.keep();
            assert_eq!(trees.list().is_empty(), was == observed);
            let copy = trees.copy("copy");
            if *other {
                // Of a user who has only the rights of the file permissions.
                let done = Command::new("chown").args(["-hR", "4242:4343"]).arg(&copy).status().unwrap();
                assert!(done.success());
            }
            kept.apply(Some(&copy), ApplyOptions { dry_run: true, ..ApplyOptions::default() }).unwrap();
            assert_eq!(items(&copy), was, "a dry run writes nothing");
            kept.apply(Some(&copy), ApplyOptions::default()).unwrap();
            assert_eq!(items(&copy), observed);
            let again = kept.apply(Some(&copy), ApplyOptions::default()).unwrap();
            assert!(again.to_string().starts_with("nothing to do"), "{again}");
            assert_eq!(trees.items(), was, "and the project is as it was");
            assert_eq!(kept.changes().summary(), trees.collect().summary());
            assert_eq!(kept.changes().list().to_string(), trees.list());
        },
    );
}

//= promises.changes.changes-applied-copy-project
#[test]
fn git_applies_the_patch_to_a_copy_of_the_project() {
    if !has_private_mounts("overlay::git_applies_the_patch_to_a_copy_of_the_project") {
        return;
    }
    bolero::check!().with_iterations(128).with_type::<(Vec<Act>, Vec<Act>)>().for_each(|(before, after)| {
        let (trees, observed) = work(before, after, &DANGLING);
        let mut patch = Vec::new();
        trees.keep().diff(None, &mut patch, DiffStyle::Patch).unwrap();
        let copy = trees.copy("copy");
        // A tree of git has no empty directories.
        let mut prune = Command::new("find");
        prune.arg(&copy).args(["-mindepth", "1", "-type", "d", "-empty", "-delete"]);
        assert!(prune.status().unwrap().success());
        if !patch.is_empty() {
            fs::write(trees.path("patch"), &patch).unwrap();
            let mut git = Command::new("git");
            git.args(["apply", "--whitespace=nowarn", "../patch"]).current_dir(&copy);
            // No configuration but git's own, and no repository above.
            git.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", trees.dir.path());
            let output = git.env("GIT_CEILING_DIRECTORIES", trees.dir.path()).output().unwrap();
            let patch = String::from_utf8_lossy(&patch);
            assert!(output.status.success(), "{}\n{patch}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(files(&items(&copy)), files(&observed), "{}", String::from_utf8_lossy(&patch));
    });
}

//= promises.changes.changes-applied-copy-project
#[test]
fn the_exported_layer_over_a_copy_of_the_project_gives_what_the_sandbox_saw() {
    if !has_private_mounts("overlay::the_exported_layer_over_a_copy_of_the_project_gives_what_the_sandbox_saw") {
        return;
    }
    bolero::check!().with_iterations(128).with_type::<(Vec<Act>, Vec<Act>)>().for_each(|(before, after)| {
        let (trees, observed) = work(before, after, &TARGETS);
        let mut layer = Vec::new();
        trees.keep().export(&mut layer).unwrap();
        let copy = trees.copy("copy");
        unpack(&layer, &copy);
        assert_eq!(items(&copy), observed);
    });
}

/// Unpacks a layer as the OCI image specification defines.
fn unpack(layer: &[u8], root: &Path) {
    for entry in tar::Archive::new(layer).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = root.join(OsStr::from_bytes(&entry.path_bytes()));
        let name = path.file_name().unwrap().as_bytes();
        let gone = name.strip_prefix(b".wh.").map(|gone| path.with_file_name(OsStr::from_bytes(gone)));
        let kind = entry.header().entry_type();
        // A directory merges with a directory; every other entry replaces the existing one.
        if !(kind.is_dir() && path.is_dir() && !path.is_symlink()) {
            let old = gone.as_deref().unwrap_or(&path);
            let _ = fs::remove_file(old).or_else(|_| fs::remove_dir_all(old));
        }
        match kind {
            _ if gone.is_some() => continue,
            tar::EntryType::Directory => drop(fs::create_dir(&path)),
            tar::EntryType::Symlink => {
                symlink(OsStr::from_bytes(&entry.link_name_bytes().unwrap()), &path).unwrap();
                continue;
            }
            _ => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                fs::write(&path, content).unwrap();
            }
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(entry.header().mode().unwrap())).unwrap();
    }
}

/// The content of a tree as git stores it.
fn files(items: &BTreeMap<Vec<u8>, TreeItem>) -> BTreeMap<&[u8], (bool, &[u8])> {
    items
        .iter()
        .filter_map(|(path, item)| match item {
            TreeItem::File(mode, content) => Some((path.as_slice(), (mode & 0o100 != 0, content.as_slice()))),
            TreeItem::Link(target) => Some((path.as_slice(), (false, target.as_slice()))),
            TreeItem::Directory(_) | TreeItem::Other => None,
        })
        .collect()
}
