//! Mount points: no file of the host is created, replaced or removed for one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use carrel_tests::run;
use tempfile::TempDir;

use crate::{LaunchedSandbox, busybox_image, launch_shell};

/// A directory of the host with a writable tree `a`, and files and trees that are mounted into it.
fn home() -> TempDir {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| home.path().join(name);
    for name in ["a", "a/directory", "tree", "etc"] {
        fs::create_dir(path(name)).unwrap();
    }
    for name in ["a/file", "a/directory/file", "tree/file", "file", "etc/passwd", "etc/hosts"] {
        fs::write(path(name), format!("{name}\n")).unwrap();
    }
    symlink("nowhere", path("a/dangling")).unwrap();
    symlink("directory", path("a/link")).unwrap();
    symlink("/tmp", path("a/away")).unwrap();
    home
}

/// Everything in a directory: the inode, the time of the last change, and the content.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = match stat.file_type() {
            kind if kind.is_dir() => {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ => fs::read(&path).unwrap(),
        };
        found.insert(path, (stat.ino(), stat.ctime(), stat.ctime_nsec(), content));
    }
    found
}

/// Mounts `SOURCE:TARGET` of a home; the first is writable.
fn mounts(home: &TempDir, given: &[(&str, &str)]) -> String {
    let access = |number| if number == 0 { "rw" } else { "ro" };
    let one = |(number, (source, target)): (usize, &(&str, &str))| {
        format!("{}/{source}:{target}:0:{}", home.path().display(), access(number))
    };
    given.iter().enumerate().map(one).collect::<Vec<_>>().join(" ")
}

/// The error of the launcher for a mount into a writable tree.
fn refusal(home: &TempDir, source: &str, target: &str) -> String {
    let before = listing(home.path());
    let given = mounts(home, &[("a", "/a"), (source, target)]);
    let (code, _, error) = launch_shell("host", &[("CARREL_MOUNTS", &given)], "true");
    assert_eq!(listing(home.path()), before, "{target}");
    assert_eq!(code, Some(125), "{target}: {error}");
    error.trim().to_owned()
}

//= promises.sandbox.made-replaced-removed-host
#[test]
fn a_mount_inside_a_tree_of_the_host_covers_a_file_and_changes_nothing() {
    let home = home();
    let before = listing(home.path());
    for (given, script, expected) in [
        (vec![("a", "/a"), ("file", "/a/file")], "cat /a/file", "file\n"),
        // The outer mount comes first, in whatever order they are given.
        (vec![("file", "/a/file"), ("a", "/a")], "cat /a/file", "file\n"),
        (vec![("a", "/a"), ("tree", "/a/directory")], "cat /a/directory/file", "tree/file\n"),
        (vec![("a", "/a"), ("file", "/a/link/file")], "cat /a/directory/file; readlink /a/link", "file\ndirectory\n"),
        // A symlink is resolved inside.
        (vec![("a", "/a"), ("tree", "/a/away/new")], "cat /tmp/new/file", "tree/file\n"),
        (vec![("etc", "/etc")], "cat /etc/passwd /etc/hosts; ls /etc", "etc/passwd\netc/hosts\nhosts\npasswd\n"),
    ] {
        let (code, output, error) = launch_shell("host", &[("CARREL_MOUNTS", &mounts(&home, &given))], script);
        assert_eq!((code, output.as_str()), (Some(0), expected), "{given:?}: {error}");
        assert_eq!(listing(home.path()), before, "{given:?}");
    }
    assert!(!Path::new("/tmp/new").exists());
}

//= carrel.command.mounts-environment-directory-user
//= promises.sandbox.made-replaced-removed-host
#[test]
fn mount_points_are_neither_created_nor_replaced_in_a_tree_of_the_host() {
    let home = home();
    for (source, target, expected) in [
        ("file", "/a/new", "the mount point /a/new does not exist in the mount at /a"),
        ("tree", "/a/new/below", "the mount point /a/new/below does not exist in the mount at /a"),
        ("tree", "/a/dangling/new", "the mount point /a/dangling/new does not exist in the mount at /a"),
        ("tree", "/a/link/new", "the mount point /a/link/new does not exist in the mount at /a"),
        ("tree", "/a/dangling", "the mount point /a/dangling is a symbolic link"),
        ("file", "/a/link", "the mount point /a/link is a symbolic link"),
        ("tree", "/a/file", "the mount point /a/file is not a directory, but the source is"),
        ("file", "/a/directory", "the mount point /a/directory is a directory, but the source is not"),
        ("tree", "/usr/new", "the mount point /usr/new does not exist in the mount at /usr"),
        ("file", "/a/file/below", "the mount point /a/file/below cannot be created: Not a directory (os error 20)"),
    ] {
        assert_eq!(refusal(&home, source, target), format!("launch: {expected}"));
    }
}

//= promises.sandbox.refused-mount-points
#[test]
fn reserved_and_duplicate_mount_points_are_refused() {
    let home = home();
    for target in ["/dev", "/dev/null", "/proc", "/proc/1/environ", "/sys/new"] {
        let expected =
            format!("launch: the mount point {target} is reserved: every sandbox has its own /dev, /proc and /sys");
        assert_eq!(refusal(&home, "file", target), expected);
    }
    assert_eq!(refusal(&home, "tree", "/a"), "launch: the mount point /a is used twice");
    let project = ("CARREL_PROJECT", &*format!("{}:/a:0", home.path().join("tree").display()));
    let given = mounts(&home, &[("a", "/a")]);
    let (code, _, error) = launch_shell("host", &[project, ("CARREL_MOUNTS", &given)], "true");
    assert_eq!((code, error.trim()), (Some(125), "launch: the mount point /a is used twice"));
}

//= promises.sandbox.whole-host-proc-sys
#[test]
fn the_root_of_the_host_is_neither_an_image_nor_a_project() {
    let whole =
        "launch: / is the root of the host, which can be neither an image nor a project; choose a directory below it";
    let (code, _, error) = launch_shell("/", &[], "true");
    assert_eq!((code, error.trim()), (Some(125), whole));
    let (code, _, error) = launch_shell("host", &[("CARREL_PROJECT", "/:/workspace:0")], "true");
    assert_eq!((code, error.trim()), (Some(125), whole));
    for (image, env) in [("/proc", ("", "")), ("/sys", ("", "")), ("host", ("CARREL_PROJECT", "/sys:/workspace:0"))] {
        let env = if env.0.is_empty() { vec![] } else { vec![env] };
        let (code, _, error) = launch_shell(image, &env, "true");
        assert!(code == Some(125) && error.contains("does not support id-mapped mounts"), "{image}: {error}");
    }
    let (code, _, error) = launch_shell("host", &[("CARREL_MOUNTS", "/var/tmp:/x:65536:ro")], "true");
    assert_eq!((code, error.trim()), (Some(125), "launch: no sandbox has a user or group 65536: the highest is 65535"));
}

//= promises.sandbox.made-replaced-removed-host
#[test]
fn a_mount_point_follows_symlinks_of_the_image_and_is_created_in_the_root_of_the_sandbox() {
    let (home, image) = (home(), busybox_image());
    let path = |name: &str| image.path().join(name);
    fs::create_dir(path("usr")).unwrap();
    fs::rename(path("bin"), path("usr/bin")).unwrap();
    symlink("usr/bin", path("bin")).unwrap();
    symlink("../../../usr", path("upwards")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    fs::write(path("plain"), "").unwrap();
    let before = listing(image.path());
    let image = image.path().to_str().unwrap();
    let given = [
        ("tree", "/bin/new"),
        ("tree", "/upwards/other"),
        ("tree", "/dangling"),
        ("tree", "/plain"),
        ("tree", "/new/directory"),
        ("file", "/bin/stat"),
    ];
    let script =
        "readlink /bin; for d in /usr/bin/new /usr/other /dangling /plain /new/directory; do cat $d/file; done;
        cat /usr/bin/stat";
    run(async {
        let sandbox = LaunchedSandbox::with_env(image, &[("CARREL_MOUNTS", mounts(&home, &given))]).await;
        assert_eq!(sandbox.shell(script).await, format!("usr/bin\n{}file\n", "tree/file\n".repeat(5)));
    });
    let (code, _, error) =
        launch_shell(image, &[("CARREL_MOUNTS", &mounts(&home, &[("tree", "/dangling/new")]))], "true");
    assert_eq!(code, Some(125));
    assert!(error.contains("the mount point /dangling/new cannot be created: No such file"), "{error}");
    assert_eq!(listing(image.as_ref()), before);
    // In a tree of the host, no mount point is created.
    let (_, _, error) = launch_shell("host", &[("CARREL_MOUNTS", &mounts(&home, &[("tree", "/bin/new")]))], "true");
    assert_eq!(error.trim(), "launch: the mount point /bin/new does not exist in the mount at /usr");
}

//= promises.sandbox.failed-step
#[test]
fn an_error_names_the_mount_point_or_the_source() {
    let (home, image) = (home(), busybox_image());
    fs::create_dir_all(image.path().join("tree")).unwrap();
    let given = mounts(&home, &[("file", "/tree")]);
    let (_, _, error) = launch_shell(image.path().to_str().unwrap(), &[("CARREL_MOUNTS", &given)], "true");
    assert_eq!(error.trim(), "launch: the mount point /tree is a directory, but the source is not");
    let (_, _, error) = launch_shell("host", &[("CARREL_MOUNTS", "/var/tmp/nothing-here:/x:0:ro")], "true");
    assert_eq!(error.trim(), "launch: /var/tmp/nothing-here: No such file or directory (os error 2)");
}
