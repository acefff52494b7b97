use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const ATTRIBUTES: PreservedAttributes = PreservedAttributes { mode: 0o640, modified: Some(1_000_000_000) };

fn name(text: &str) -> FileName {
    FileName::new(text).unwrap()
}

fn write(
    directory: &Arc<HostDirectory>,
    to: &str,
    content: &str,
    attributes: PreservedAttributes,
) -> Result<(), HostDirectoryError> {
    let partial = directory.create_file()?;
    partial.writer().unwrap().write_all(content.as_bytes()).unwrap();
    partial.finish(&name(to), attributes)
}

fn test_directory() -> (TempDir, Arc<HostDirectory>) {
    let dir = tempfile::tempdir().unwrap();
    let directory = HostDirectory::open(dir.path()).unwrap();
    (dir, Arc::new(directory))
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_gets_its_name_when_it_is_complete_with_its_mode_and_time() {
    let (dir, directory) = test_directory();
    write(&directory, "a", "one", ATTRIBUTES).unwrap();
    write(&directory, "a", "two", ATTRIBUTES).unwrap();
    let path = dir.path().join("a");
    let found = path.metadata().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!((found.mode() & 0o7777, found.mtime()), (0o640, 1_000_000_000));
    drop(directory.create_file().unwrap());
    assert_eq!(names(&dir), ["a"], "an unfinished file is removed");
}

#[test]
fn set_user_id_bits_are_cleared() {
    let (dir, directory) = test_directory();
    write(&directory, "a", "", PreservedAttributes { mode: 0o106_777, ..ATTRIBUTES }).unwrap();
    assert_eq!(dir.path().join("a").metadata().unwrap().mode() & 0o7777, 0o777);
    let (inner, made) = directory.open_or_create(&name("d")).unwrap();
    inner.set_attributes(PreservedAttributes { mode: 0o47_777, ..ATTRIBUTES }, made).unwrap();
    let found = dir.path().join("d").metadata().unwrap();
    assert_eq!((made, found.mode() & 0o7777, found.mtime()), (true, 0o1777, 1_000_000_000));
    let (inner, made) = directory.open_or_create(&name("d")).unwrap();
    inner.set_attributes(PreservedAttributes { mode: 0o40_700, ..ATTRIBUTES }, made).unwrap();
    let found = dir.path().join("d").metadata().unwrap();
    assert_eq!((made, found.mode() & 0o7777), (false, 0o1777), "an existing directory keeps its mode");
}

#[test]
fn nothing_is_written_through_a_link() {
    let (dir, directory) = test_directory();
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&victim, dir.path().join("file")).unwrap();
    symlink(outside.path(), dir.path().join("directory")).unwrap();
    // The links resolve.
    assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "untouched");
    assert!(dir.path().join("directory/victim").exists());

    write(&directory, "file", "new", ATTRIBUTES).unwrap();
    assert!(dir.path().join("file").symlink_metadata().unwrap().is_file());
    let refused = directory.open_or_create(&name("directory")).unwrap_err().to_string();
    assert!(refused.ends_with("/directory: a file that is not a directory exists, and is not replaced"), "{refused}");
    let found = victim.metadata().unwrap();
    assert_eq!((std::fs::read_to_string(&victim).unwrap().as_str(), found.mode() & 0o777), ("untouched", 0o600));
    assert_eq!(outside.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_link_is_created_verbatim_and_not_followed() {
    let (dir, directory) = test_directory();
    let outside = tempfile::tempdir().unwrap();
    for target in ["/etc/shadow", "../../../x", "a", outside.path().to_str().unwrap()] {
        directory.link(&name("link"), target, ATTRIBUTES).unwrap();
        assert_eq!(dir.path().join("link").read_link().unwrap(), Path::new(target));
        assert_eq!(dir.path().join("link").symlink_metadata().unwrap().mtime(), 1_000_000_000);
    }
    assert!(directory.open_or_create(&name("link")).is_err());
    assert_eq!(names(&dir), ["link"]);
}

#[test]
fn only_files_and_links_are_replaced() {
    let (dir, directory) = test_directory();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    rustix::fs::mkfifoat(CWD, dir.path().join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    for (taken, what) in [("d", "a directory"), ("pipe", "a device, a pipe or a socket")] {
        let message = format!("{}/{taken}: {what} exists, and is not replaced", dir.path().display());
        assert_eq!(write(&directory, taken, "x", ATTRIBUTES).unwrap_err().to_string(), message);
        assert_eq!(directory.link(&name(taken), "x", ATTRIBUTES).unwrap_err().to_string(), message);
    }
    assert_eq!(names(&dir), ["d", "pipe"]);
    assert!(!directory.open_or_create(&name("d")).unwrap().1, "it existed");
}
