//! Trees that the operator gives: whose they are on either side.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use carrel_tests::run;
use tempfile::TempDir;

use crate::{Sandbox, launched};

/// Somebody on the host.
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
fn what_a_user_writes_belongs_to_the_owner_of_the_tree() {
    run(async {
        let tree = tree();
        let sandbox = Sandbox::given("host", &[mount(tree.path(), "rw")]).await;
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
fn nobody_inside_stands_for_anybody_else() {
    run(async {
        let tree = tree();
        let sandbox = Sandbox::given("host", &[mount(tree.path(), "rw")]).await;
        for user in ["root", "agbox"] {
            assert!(sandbox.shell_as(user, "cat /given/roots").await.contains("denied"), "{user}");
            assert_ne!(sandbox.shell_as(user, "chown 0 /given/private || echo refused").await, "", "{user}");
        }
        // The control: root reads what the owner may.
        assert_eq!(sandbox.shell_as("root", "cat /given/private").await, "private\n");
        // What root makes would belong to nobody outside.
        assert!(sandbox.shell_as("root", "touch /given/by-root").await.contains("too large"));
        assert!(!tree.path().join("by-root").exists());
        assert_eq!(fs::metadata(tree.path().join("private")).unwrap().uid(), OWNER);
    });
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn neither_privileges_nor_devices_come_with_a_tree() {
    run(async {
        let tree = tree();
        let device = tree.path().join("null");
        assert!(Command::new("mknod").arg(&device).args(["-m", "666", "c", "1", "3"]).status().unwrap().success());
        fs::write(&device, "the control").unwrap();
        for access in ["ro", "rw"] {
            let sandbox = Sandbox::given("host", &[mount(tree.path(), access)]).await;
            assert!(sandbox.shell_as("root", "echo x > /given/null").await.contains("denied"), "{access}");
            let options = sandbox.shell("grep ' /given ' /proc/self/mountinfo | cut -d' ' -f6").await;
            assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
        }
    });
}

//= promises.sandbox.tree-given-read
#[test]
fn what_is_given_to_be_read_is_read_as_by_its_owner_and_not_written() {
    run(async {
        let tree = tree();
        let sandbox = Sandbox::given("host", &[mount(tree.path(), "ro")]).await;
        for user in ["root", "agbox"] {
            assert_eq!(sandbox.shell_as(user, "cat /given/private").await, "private\n");
            assert!(sandbox.shell_as(user, "echo x >> /given/private").await.contains("Read-only"), "{user}");
            assert!(sandbox.shell_as(user, "cat /given/roots").await.contains("denied"), "{user}");
        }
    });
}

//= promises.sandbox.file-system-cannot-show
#[test]
fn a_file_system_without_other_ids_is_refused_for_writing_and_shown_for_reading() {
    let launch = |access: &str, source: &str| {
        launched("host", &[("CARREL_MOUNTS", &format!("{source}:/given:0:{access}"))], "ls /given")
    };
    let (code, _, error) = launch("rw", "/sys/devices/system/cpu");
    assert_eq!(code, Some(125));
    assert!(error.contains("/sys/devices/system/cpu does not support id-mapped mounts"), "{error}");
    let (code, said, error) = launch("ro", "/sys/devices/system/cpu");
    assert_eq!((code, said.contains("cpu0")), (Some(0), true), "{said}{error}");
    let tree = tree();
    let (code, said, error) = launch("rw", tree.path().to_str().unwrap());
    assert_eq!((code, said.contains("private")), (Some(0), true), "{said}{error}");
}

//= promises.sandbox.inside-stands-owner-tree
#[test]
fn a_user_of_another_group_writes_as_the_owner_does() {
    run(async {
        let tree = tempfile::tempdir_in("/var/tmp").unwrap();
        chown(tree.path(), Some(OWNER), Some(OWNER + 1)).unwrap();
        let given = format!("{}:/given:1000.2000:rw", tree.path().display());
        let sandbox = Sandbox::given("host", &[("CARREL_MOUNTS", given)]).await;
        let script = "echo new > /given/new; stat -c %u:%g /given /given/new";
        assert_eq!(sandbox.shell_as("1000:2000", script).await, "1000:2000\n1000:2000\n");
        let made = fs::metadata(tree.path().join("new")).unwrap();
        assert_eq!((made.uid(), made.gid()), (OWNER, OWNER + 1));
        // The control: a group that stands for nobody's makes nothing.
        assert!(sandbox.shell_as("1000:1000", "echo x > /given/other").await.contains("too large"));
    });
}
