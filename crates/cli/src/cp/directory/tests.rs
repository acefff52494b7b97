use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const KEPT: PreservedAttributes = PreservedAttributes { mode: 0o640, modified: Some(1_000_000_000) };

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

fn write(
    directory: &Arc<HostDirectory>,
    to: &str,
    content: &str,
    kept: PreservedAttributes,
) -> Result<(), HostDirectoryError> {
    let unfinished = directory.begin()?;
    unfinished.writer().unwrap().write_all(content.as_bytes()).unwrap();
    unfinished.finish(&name(to), kept)
}

fn place() -> (TempDir, Arc<HostDirectory>) {
    let dir = tempfile::tempdir().unwrap();
    let beneath = HostDirectory::open(dir.path()).unwrap();
    (dir, Arc::new(beneath))
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_has_its_name_when_it_is_whole_and_keeps_mode_and_time() {
    let (dir, beneath) = place();
    write(&beneath, "a", "one", KEPT).unwrap();
    write(&beneath, "a", "two", KEPT).unwrap();
    let path = dir.path().join("a");
    let found = path.metadata().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!((found.mode() & 0o7777, found.mtime()), (0o640, 1_000_000_000));
    drop(beneath.begin().unwrap());
    assert_eq!(names(&dir), ["a"], "what is not finished is gone");
}

#[test]
fn nobody_borrows_rights_by_a_copy() {
    let (dir, beneath) = place();
    write(&beneath, "a", "", PreservedAttributes { mode: 0o106_777, ..KEPT }).unwrap();
    assert_eq!(dir.path().join("a").metadata().unwrap().mode() & 0o7777, 0o777);
    let (inner, made) = beneath.enter(&name("d")).unwrap();
    inner.settle(PreservedAttributes { mode: 0o47_777, ..KEPT }, made).unwrap();
    let found = dir.path().join("d").metadata().unwrap();
    assert_eq!((made, found.mode() & 0o7777, found.mtime()), (true, 0o1777, 1_000_000_000));
    let (inner, made) = beneath.enter(&name("d")).unwrap();
    inner.settle(PreservedAttributes { mode: 0o40_700, ..KEPT }, made).unwrap();
    let found = dir.path().join("d").metadata().unwrap();
    assert_eq!((made, found.mode() & 0o7777), (false, 0o1777), "what was there keeps its mode");
}

#[test]
fn nothing_is_written_through_a_link() {
    let (dir, beneath) = place();
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&victim, dir.path().join("file")).unwrap();
    symlink(outside.path(), dir.path().join("directory")).unwrap();
    // The links are good: who follows them gets there.
    assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "untouched");
    assert!(dir.path().join("directory/victim").exists());

    write(&beneath, "file", "new", KEPT).unwrap();
    assert!(dir.path().join("file").symlink_metadata().unwrap().is_file());
    let refused = beneath.enter(&name("directory")).unwrap_err().to_string();
    assert!(
        refused.ends_with("/directory: something else than a directory is there, and is not replaced"),
        "{refused}"
    );
    let found = victim.metadata().unwrap();
    assert_eq!((std::fs::read_to_string(&victim).unwrap().as_str(), found.mode() & 0o777), ("untouched", 0o600));
    assert_eq!(outside.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_link_is_made_as_it_is_and_leads_nobody_else() {
    let (dir, beneath) = place();
    let outside = tempfile::tempdir().unwrap();
    for target in ["/etc/shadow", "../../../x", "a", outside.path().to_str().unwrap()] {
        beneath.link(&name("link"), target, KEPT).unwrap();
        assert_eq!(dir.path().join("link").read_link().unwrap(), Path::new(target));
        assert_eq!(dir.path().join("link").symlink_metadata().unwrap().mtime(), 1_000_000_000);
    }
    assert!(beneath.enter(&name("link")).is_err());
    assert_eq!(names(&dir), ["link"]);
}

#[test]
fn only_files_and_links_are_replaced() {
    let (dir, beneath) = place();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    rustix::fs::mkfifoat(CWD, dir.path().join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    for (taken, what) in [("d", "a directory"), ("pipe", "a device, a pipe or a socket")] {
        let said = format!("{}/{taken}: {what} is there, and is not replaced", dir.path().display());
        assert_eq!(write(&beneath, taken, "x", KEPT).unwrap_err().to_string(), said);
        assert_eq!(beneath.link(&name(taken), "x", KEPT).unwrap_err().to_string(), said);
    }
    assert_eq!(names(&dir), ["d", "pipe"]);
    assert!(!beneath.enter(&name("d")).unwrap().1, "it was there");
}
