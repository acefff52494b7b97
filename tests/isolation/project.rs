//! A project: writable inside, unchanged outside, with the changes available afterwards.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use carrel_tests::run;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tempfile::TempDir;

use crate::LaunchedSandbox;
use crate::mounts::put;

/// A user of the host.
const OWNER: u32 = 4242;

/// A sandbox with a project, and a descriptor of the directory with its changes.
struct ProjectSandbox {
    launched: LaunchedSandbox,
    changes: OwnedFd,
}

/// The content of a directory: for each path its kind, mode and content.
type Listing = BTreeMap<PathBuf, (char, u32, String)>;

fn project() -> TempDir {
    let project = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| project.path().join(name);
    for name in ["kept", "renamed", "emptied"] {
        fs::create_dir(path(name)).unwrap();
        put(&path(name).join("file"), &format!("{name}\n"), OWNER, 0o644);
        chown(path(name), Some(OWNER), Some(OWNER)).unwrap();
    }
    for name in ["changed", "deleted", "moved", "mode", "linked", "same"] {
        put(&path(name), &format!("{name}\n"), OWNER, 0o644);
    }
    put(&path("private"), "private\n", OWNER, 0o600);
    chown(project.path(), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(project.path(), Permissions::from_mode(0o750)).unwrap();
    project
}

fn listing(root: &Path) -> Listing {
    let mut found = Listing::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let (kind, content) = match stat.file_type() {
                kind if kind.is_dir() => ('d', String::new()),
                kind if kind.is_char_device() => ('c', format!("{}", stat.rdev())),
                _ => ('f', fs::read_to_string(&path).unwrap()),
            };
            if kind == 'd' {
                left.push(path.clone());
            }
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (kind, stat.mode() & 0o7777, content));
        }
    }
    found
}

impl ProjectSandbox {
    async fn start(project: &Path, env: &[(&str, String)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("changes.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut env = env.to_vec();
        env.push(("CARREL_PROJECT", format!("{}:/workspace/project:1000", project.display())));
        env.push(("CARREL_CHANGES", socket.display().to_string()));
        let launched = LaunchedSandbox::with_env("host", &env).await;
        let (stream, _) = listener.accept().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags).unwrap();
        let changes = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
            _ => None,
        });
        Self { launched, changes: changes.unwrap() }
    }

    async fn user(&self, script: &str) -> String {
        self.launched.shell_as("agbox", &format!("cd /workspace/project && {script}")).await
    }

    /// Kills the sandbox and its launcher, and returns the descriptor and a path of the changes.
    async fn kill(self) -> (OwnedFd, PathBuf) {
        let init = self.launched.init();
        drop(self.launched);
        while Path::new(&format!("/proc/{init}")).exists() {
            tokio::task::yield_now().await;
        }
        let path = format!("/proc/self/fd/{}", self.changes.as_raw_fd()).into();
        (self.changes, path)
    }
}

//= carrel.command.project-worked-copy-changed
//= promises.sandbox.changes-project-reach-host
#[test]
fn writes_to_a_project_are_in_its_changes_and_not_on_the_host() {
    run(async {
        let project = project();
        let before = listing(project.path());
        let sandbox = ProjectSandbox::start(project.path(), &[]).await;
        assert_eq!(
            sandbox.user("stat -c '%u:%g %a' . private && cat private").await,
            "1000:1000 750\n1000:1000 600\nprivate\n"
        );
        let script =
            "set -e; echo new > new; echo more >> changed; rm deleted; mv moved here; chmod 755 mode; ln linked link;
             mv renamed again; rm -r emptied; mkdir emptied; echo fresh > emptied/fresh; ls | tr '\\n' ' '";
        assert_eq!(sandbox.user(script).await, "again changed emptied here kept link linked mode new private same ");
        assert_eq!(sandbox.user("cat again/file emptied/*").await, "renamed\nfresh\n");
        let (handle, changes) = sandbox.kill().await;

        assert_eq!(listing(project.path()), before);
        let file = |mode, content: &str| ('f', mode, content.to_owned());
        let whiteout = || ('c', 0, "0".to_owned());
        let directory = || ('d', 0o755, String::new());
        let expected: Listing = [
            ("new", file(0o644, "new\n")),
            ("changed", file(0o644, "changed\nmore\n")),
            ("deleted", whiteout()),
            ("moved", whiteout()),
            ("here", file(0o644, "moved\n")),
            ("mode", file(0o755, "mode\n")),
            ("linked", file(0o644, "linked\n")),
            ("link", file(0o644, "linked\n")),
            ("renamed", whiteout()),
            ("again", directory()),
            ("again/file", file(0o644, "renamed\n")),
            ("emptied", directory()),
            ("emptied/fresh", file(0o644, "fresh\n")),
        ]
        .map(|(path, what)| (path.into(), what))
        .into();
        let mut found = listing(&changes);
        for (kind, mode, _) in found.values_mut() {
            // The mode of a whiteout has no meaning.
            *mode = if *kind == 'c' { 0 } else { *mode };
        }
        assert_eq!(found, expected);
        let inode = |name: &str| fs::metadata(changes.join(name)).unwrap().ino();
        assert_eq!(inode("linked"), inode("link"), "a hard link");
        let mut value = [0; 8];
        let opaque = rustix::fs::getxattr(changes.join("emptied"), "user.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..opaque], b"y");
        for name in ["again", "."] {
            assert!(rustix::fs::getxattr(changes.join(name), "user.overlay.redirect", &mut value).is_err(), "{name}");
        }
        let top = fs::metadata(&changes).unwrap();
        assert_eq!(top.mode() & 0o7777, 0o750);
        assert_eq!(top.uid() % 65536, 1000);
        assert!(top.uid() >= 0x4000_0000, "{}", top.uid());
        drop(handle);
    });
}

//= promises.sandbox.forged-overlay-markers
#[test]
fn a_directory_of_the_project_cannot_be_renamed_by_an_overlay_redirect() {
    run(async {
        let project = project();
        let sandbox = ProjectSandbox::start(project.path(), &[]).await;
        let rename = "perl -e 'rename(\"kept\", \"other\") ? print \"renamed\" : print $!+0'";
        assert_eq!(sandbox.user(rename).await, libc::EXDEV.to_string());
        assert_eq!(
            sandbox.user(&format!("mkdir made && {}", rename.replace("kept", "made"))).await,
            "renamed",
            "the control"
        );
    });
}

//= promises.sandbox.forged-overlay-markers
#[test]
fn a_process_inside_cannot_forge_markers_of_the_overlay() {
    run(async {
        let project = project();
        let sandbox = ProjectSandbox::start(project.path(), &[]).await;
        let attributes = "python3 -c '
import os
for name in [\"user.plain\", \"user.overlay.opaque\", \"user.overlay.redirect\"]:
    try: os.setxattr(\"kept\", name, b\"y\")
    except OSError: pass
'";
        assert_eq!(sandbox.user(attributes).await, "");
        // The control: elsewhere such a device can be created.
        let devices = "mknod /tmp/true c 0 0 && echo made; mknod /workspace/project/false c 0 0";
        let output = sandbox.launched.shell_as("root", devices).await;
        assert!(output.contains("made") && output.contains("not permitted"), "{output}");
        let (_handle, changes) = sandbox.kill().await;
        let mut value = [0; 8];
        assert!(rustix::fs::getxattr(changes.join("kept"), "user.plain", &mut value).is_ok());
        for name in ["user.overlay.opaque", "user.overlay.redirect"] {
            assert!(rustix::fs::getxattr(changes.join("kept"), name, &mut value).is_err(), "{name}");
        }
        assert!(!changes.join("false").exists());
    });
}

//= promises.sandbox.write-root-project-together
#[test]
fn the_root_and_the_project_share_one_disk_that_is_not_visible_inside() {
    run(async {
        let project = project();
        let sandbox = ProjectSandbox::start(project.path(), &[("CARREL_DISK", (8 << 20).to_string())]).await;
        assert_eq!(sandbox.user("head -c 5m /dev/zero > /tmp/fill && echo fits").await, "fits\n");
        assert!(sandbox.user("head -c 5m /dev/zero > fill").await.contains("No space"));
        assert_eq!(
            sandbox.user("rm /tmp/fill; head -c 5m /dev/zero > fill && echo fits").await,
            "fits\n",
            "the control"
        );
        let top = sandbox.launched.shell("ls -A / | tr '\\n' ' '").await;
        for name in ["root", "upper", "work", "project", "lower"] {
            let listed = top.split(' ').any(|found| found.starts_with(name) && !["root", "workspace"].contains(&found));
            assert!(!listed, "{name} in {top}");
        }
        // The directory of that name is the home of root, and empty.
        assert_eq!(sandbox.launched.shell("ls -A /root").await, "");
    });
}

//= promises.sandbox.shown-project-mount
#[test]
fn a_mount_inside_a_project_is_not_a_change() {
    run(async {
        let (project, other) = (project(), tempfile::NamedTempFile::new_in("/var/tmp").unwrap());
        put(other.path(), "shown\n", OWNER, 0o644);
        let before = listing(project.path());
        let given = |name: &str| format!("{}:/workspace/project/{name}:1000:ro", other.path().display());
        let sandbox = ProjectSandbox::start(project.path(), &[("CARREL_MOUNTS", given("same"))]).await;
        assert_eq!(sandbox.user("cat same; echo new > new").await, "shown\n");
        let (_handle, changes) = sandbox.kill().await;
        assert_eq!(listing(project.path()), before);
        assert_eq!(listing(&changes).into_keys().collect::<Vec<_>>(), [Path::new("new")], "the control");

        let env = [("CARREL_PROJECT", &*format!("{}:/workspace:1000", project.path().display()))];
        let mount = format!("{}:/workspace/missing:1000:ro", other.path().display());
        let (code, _, error) = crate::launch_shell("host", &[env[0], ("CARREL_MOUNTS", &mount)], "true");
        let expected = "launch: the mount point /workspace/missing does not exist in the mount at /workspace";
        assert_eq!((code, error.trim()), (Some(125), expected));
    });
}
