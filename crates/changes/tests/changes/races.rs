//! A project of another user, who swaps its directories and files while root applies changes to it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_changes::{ApplyError, ApplyOptions, SavedChanges};

use crate::support::TestTrees;

const OWNER: u32 = 4242;
/// How many times changes are applied during the swaps.
const ROUNDS: u32 = 40;

/// A process of the owner, killed with the test.
struct SwapProcess(Child);

// === impl SwapProcess ===

impl SwapProcess {
    /// Runs a script of the owner in a loop, in the project; it has started when this returns.
    fn start(trees: &TestTrees, script: &str) -> Self {
        let script = format!("$| = 1; my $began = 0; while (1) {{ {script}; print 'x' unless $began++ }}");
        let mut perl = Command::new("perl");
        perl.args(["-e", &script]).current_dir(trees.path("project")).uid(OWNER).gid(OWNER);
        let mut child = perl.stdout(Stdio::piped()).spawn().unwrap();
        let mut began = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut began).unwrap();
        Self(child)
    }
}

impl Drop for SwapProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A project of the owner in a directory that all can search, beside a directory of root.
fn trees() -> TestTrees {
    let trees = TestTrees::new().project("d/keep", "1").directory("precious", 0o755).directory("project", 0o755);
    fs::set_permissions(trees.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    trees
}

fn give(trees: &TestTrees) {
    let done = Command::new("chown").args(["-hR", &format!("{OWNER}:{OWNER}")]).arg(trees.path("project")).status();
    assert!(done.unwrap().success());
}

/// Applies repeatedly; applied changes are reverted in between, so that there is always something to apply.
fn apply_often(kept: &SavedChanges, again: impl Fn()) -> (u32, u32) {
    let (mut applied, mut failed) = (0, 0);
    for _ in 0..ROUNDS {
        match kept.apply(None, ApplyOptions { force: true, ..ApplyOptions::default() }) {
            Ok(_) => applied += 1,
            Err(ApplyError::Refused(_) | ApplyError::System(_) | ApplyError::Halfway { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
        again();
    }
    (applied, failed)
}

#[test]
fn a_directory_swapped_with_a_symlink_does_not_redirect_writes() {
    let trees = trees().upper("d/new", "planted").upper("d/sub/file", "planted").link("upper/d/link", "keep");
    give(&trees);
    let kept = trees.keep();
    // The control: a writer that follows the path writes elsewhere.
    let precious = trees.path("precious");
    fs::rename(trees.path("project/d"), trees.path("project/old")).unwrap();
    symlink(&precious, trees.path("project/d")).unwrap();
    fs::write(trees.path("project/d/control"), "led away").unwrap();
    assert!(precious.join("control").exists());
    fs::remove_file(precious.join("control")).unwrap();
    fs::remove_file(trees.path("project/d")).unwrap();
    fs::rename(trees.path("project/old"), trees.path("project/d")).unwrap();
    // One directory is root's; the other is the owner's own, but not part of the project.
    let other = trees.path("other");
    fs::create_dir(&other).unwrap();
    chown(&other, Some(OWNER), Some(OWNER)).unwrap();
    let swap = |target: &std::path::Path| {
        let target = target.display();
        format!("rename 'd', 'old'; symlink '{target}', 'd'; 1 for 1 .. 3000; unlink 'd'; rename 'old', 'd'")
    };
    let script = format!("{}; {}", swap(&other), swap(&precious));
    let swapper = SwapProcess::start(&trees, &script);
    let (applied, failed) = apply_often(&kept, || {
        for name in ["new", "sub/file", "link"] {
            for directory in ["d", "old"] {
                // As the owner: like the product, this does not follow links when it cleans up.
                let mut rm = Command::new("rm");
                let path = trees.path("project").join(directory).join(name);
                drop(rm.arg("-f").arg(path).uid(OWNER).gid(OWNER).status());
            }
        }
    });
    drop(swapper);
    for place in [&precious, &other] {
        assert_eq!(fs::read_dir(place).unwrap().count(), 0, "{applied} applied, {failed} failed");
    }
}

#[test]
fn a_file_swapped_for_one_of_root_is_neither_chowned_nor_opened() {
    // A file whose permissions change, a directory and a link: all are handled by name once they exist.
    let trees = trees()
        .project("script", "1")
        .upper("script", "1")
        .mode("upper/script", 0o777)
        .directory("upper/made", 0o777)
        .link("upper/link", "script");
    give(&trees);
    let kept = trees.keep();
    // A secret file and a secret directory of root in the directory of the user, which the user can rename.
    let (file, directory) = (trees.path("project/secret"), trees.path("project/vault"));
    fs::write(&file, "secret").unwrap();
    fs::create_dir(&directory).unwrap();
    for (path, mode) in [(&file, 0o600), (&directory, 0o700)] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        chown(path, Some(0), Some(0)).unwrap();
    }
    let held = [File::open(&file).unwrap(), File::open(&directory).unwrap()];
    let script = "rename 'script', 's'; rename 'secret', 'script'; rename 'script', 'secret'; rename 's', 'script'; \
                  for my $n (glob '.carrel-*') { rename $n, 'x'; rename 'vault', $n; rename $n, 'vault'; \
                  rename 'secret', $n; rename $n, 'secret'; rename 'x', $n }";
    let swapper = SwapProcess::start(&trees, script);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // At any time, neither is accessible to others, nor is another user's file.
        let watch = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (held, mode) in held.iter().zip([0o600, 0o700]) {
                    let meta = held.metadata().unwrap();
                    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (0, 0, mode));
                }
            }
        });
        apply_often(&kept, || {
            let mut sh = Command::new("sh");
            sh.args(["-c", "rm -f link; rmdir made; chmod 644 script"]).current_dir(trees.path("project"));
            drop(sh.stderr(Stdio::null()).uid(OWNER).gid(OWNER).status());
        });
        stop.store(true, Ordering::Relaxed);
        watch.join().unwrap();
    });
    drop(swapper);
}

#[test]
fn a_hard_link_elsewhere_keeps_its_permissions() {
    let trees = trees().project("run", "1").upper("run", "1").mode("upper/run", 0o777);
    let kept = trees.keep();
    give(&trees);
    // A user can link a file of root, where the host does not forbid it.
    let precious = trees.path("precious/file");
    fs::write(&precious, "1").unwrap();
    fs::remove_file(trees.path("project/run")).unwrap();
    fs::hard_link(&precious, trees.path("project/run")).unwrap();
    kept.apply(None, ApplyOptions { force: true, ..ApplyOptions::default() }).unwrap();
    let (there, here) = (fs::metadata(&precious).unwrap(), fs::metadata(trees.path("project/run")).unwrap());
    assert_eq!((there.uid(), there.mode() & 0o7777, there.nlink()), (0, 0o644, 1));
    assert_eq!((here.uid(), here.mode() & 0o7777), (OWNER, 0o777));
}

#[test]
fn root_does_not_write_in_a_directory_of_another_user_than_the_owner() {
    let trees = trees().upper("d/new", "x");
    let kept = trees.keep();
    chown(trees.path("project/d"), Some(OWNER), Some(OWNER)).unwrap();
    assert_eq!(
        kept.apply(None, ApplyOptions::default()).unwrap_err().to_string(),
        "nothing was applied: 1 refusal\n  d/new: its directory belongs to another user than the project does"
    );
    assert!(!trees.path("project/d/new").exists());
    // The control: it belongs to the owner.
    chown(trees.path("project"), Some(OWNER), Some(OWNER)).unwrap();
    kept.apply(None, ApplyOptions::default()).unwrap();
    assert_eq!(fs::metadata(trees.path("project/d/new")).unwrap().uid(), OWNER);
}

#[test]
fn a_read_only_directory_is_written_and_stays_read_only() {
    let trees = trees().directory("upper/d", 0o755).upper("d/new", "x").directory("upper/e", 0o500).upper("e/f", "y");
    let trees = trees.mode("upper/d", 0o555);
    give(&trees);
    let kept = trees.keep();
    kept.apply(None, ApplyOptions::default()).unwrap();
    for (name, mode) in [("d", 0o555), ("e", 0o500)] {
        assert_eq!(fs::metadata(trees.path("project").join(name)).unwrap().mode() & 0o7777, mode, "{name}");
    }
    assert_eq!(fs::read(trees.path("project/e/f")).unwrap(), b"y");
}
