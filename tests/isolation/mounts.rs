//! Mounted trees of the host: their owners inside and outside.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use carrel_tests::run;
use tempfile::TempDir;

use crate::{LaunchedSandbox, launch_shell};

/// A user of the host.
const OWNER: u32 = 4242;

/// A file with an owner and a mode.
pub(crate) fn put(path: &Path, content: &str, owner: u32, mode: u32) {
    fs::write(path, content).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn tree() -> TempDir {
    let tree = tempfile::tempdir_in("/var/tmp").unwrap();
    chown(tree.path(), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(tree.path(), Permissions::from_mode(0o755)).unwrap();
    put(&tree.path().join("private"), "private\n", OWNER, 0o600);
    put(&tree.path().join("roots"), "roots\n", 0, 0o600);
    tree
}

fn mount(source: &Path, access: &str) -> (&'static str, String) {
    ("CARREL_MOUNTS", format!("{}:/given:1000:{access}", source.display()))
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn files_that_the_user_of_a_mount_writes_belong_to_the_owner_of_the_tree() {
    run(async {
        let tree = tree();
        let sandbox = LaunchedSandbox::with_env("host", &[mount(tree.path(), "rw")]).await;
        assert_eq!(
            sandbox.shell_as("agbox", "stat -c %u:%g /given /given/private /given/roots").await,
            "1000:1000\n1000:1000\n65534:65534\n"
        );
        assert_eq!(
            sandbox
                .shell_as(
                    "agbox",
                    "cat /given/private; echo more >> /given/private; echo new > /given/new; mkdir /given/directory"
                )
                .await,
            "private\n"
        );
        for name in ["private", "new", "directory"] {
            let made = fs::metadata(tree.path().join(name)).unwrap();
            assert_eq!((made.uid(), made.gid()), (OWNER, OWNER), "{name}");
        }
        assert_eq!(fs::read_to_string(tree.path().join("private")).unwrap(), "private\nmore\n");
        assert_eq!(fs::read_to_string(tree.path().join("new")).unwrap(), "new\n");
    });
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn no_other_user_of_the_host_is_mapped_into_a_mount() {
    run(async {
        let tree = tree();
        let sandbox = LaunchedSandbox::with_env("host", &[mount(tree.path(), "rw")]).await;
        for user in ["root", "agbox"] {
            assert!(sandbox.shell_as(user, "cat /given/roots").await.contains("denied"), "{user}");
            assert_ne!(sandbox.shell_as(user, "chown 0 /given/private || echo refused").await, "", "{user}");
        }
        // The control: root reads what the owner may.
        assert_eq!(sandbox.shell_as("root", "cat /given/private").await, "private\n");
        // A file of root inside would have no owner outside.
        assert!(sandbox.shell_as("root", "touch /given/by-root").await.contains("too large"));
        assert!(!tree.path().join("by-root").exists());
        assert_eq!(fs::metadata(tree.path().join("private")).unwrap().uid(), OWNER);
    });
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn setuid_bits_and_devices_have_no_effect_in_a_mount() {
    run(async {
        let tree = tree();
        let device = tree.path().join("null");
        assert!(Command::new("mknod").arg(&device).args(["-m", "666", "c", "1", "3"]).status().unwrap().success());
        fs::write(&device, "the control").unwrap();
        for access in ["ro", "rw"] {
            let sandbox = LaunchedSandbox::with_env("host", &[mount(tree.path(), access)]).await;
            assert!(sandbox.shell_as("root", "echo x > /given/null").await.contains("denied"), "{access}");
            let options = sandbox.shell("grep ' /given ' /proc/self/mountinfo | cut -d' ' -f6").await;
            assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
        }
    });
}

//= promises.sandbox.tree-given-read
#[test]
fn a_read_only_mount_is_read_as_its_owner_and_not_written() {
    run(async {
        let tree = tree();
        let sandbox = LaunchedSandbox::with_env("host", &[mount(tree.path(), "ro")]).await;
        for user in ["root", "agbox"] {
            assert_eq!(sandbox.shell_as(user, "cat /given/private").await, "private\n");
            assert!(sandbox.shell_as(user, "echo x >> /given/private").await.contains("Read-only"), "{user}");
            assert!(sandbox.shell_as(user, "cat /given/roots").await.contains("denied"), "{user}");
        }
    });
}

//= promises.sandbox.file-system-cannot-show
#[test]
fn a_file_system_without_id_mapping_is_mounted_read_only_and_refused_for_writing() {
    let launch = |access: &str, source: &str| {
        launch_shell("host", &[("CARREL_MOUNTS", &format!("{source}:/given:0:{access}"))], "ls /given")
    };
    let (code, _, error) = launch("rw", "/sys/devices/system/cpu");
    assert_eq!(code, Some(125));
    assert!(error.contains("/sys/devices/system/cpu does not support id-mapped mounts"), "{error}");
    let (code, output, error) = launch("ro", "/sys/devices/system/cpu");
    assert_eq!((code, output.contains("cpu0")), (Some(0), true), "{output}{error}");
    let tree = tree();
    let (code, output, error) = launch("rw", tree.path().to_str().unwrap());
    assert_eq!((code, output.contains("private")), (Some(0), true), "{output}{error}");
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn a_user_with_another_group_writes_as_the_owner_of_the_tree() {
    run(async {
        let tree = tempfile::tempdir_in("/var/tmp").unwrap();
        chown(tree.path(), Some(OWNER), Some(OWNER + 1)).unwrap();
        let given = format!("{}:/given:1000.2000:rw", tree.path().display());
        let sandbox = LaunchedSandbox::with_env("host", &[("CARREL_MOUNTS", given)]).await;
        let script = "echo new > /given/new; stat -c %u:%g /given /given/new";
        assert_eq!(sandbox.shell_as("1000:2000", script).await, "1000:2000\n1000:2000\n");
        let made = fs::metadata(tree.path().join("new")).unwrap();
        assert_eq!((made.uid(), made.gid()), (OWNER, OWNER + 1));
        // The control: a group that is not mapped cannot create files.
        assert!(sandbox.shell_as("1000:1000", "echo x > /given/other").await.contains("too large"));
    });
}
