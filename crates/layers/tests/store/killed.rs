//! A process that is killed at any moment leaves nothing that is half usable, and nothing that is in the way.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use carrel_layers::{Done, Failpoint, Layout, Phase, Progress};

use crate::memory::{Home, amd64, open, tree, two_layers};
use crate::trees::assert_same;

/// How a process of these tests is told what to pull: a home and a layout, with a line between them.
const TOLD: &str = "CARREL_TEST_PULL";
const NAME: &str = "example.org/image:latest";

/// Says what becomes of each layer.
struct Said;

impl Progress for Said {
    fn layer_done(&self, _: usize, how: Done) {
        if how == Done::Fetched {
            eprintln!("layer Fetched");
        }
    }
}

/// The other process: alone it has nothing to do.
#[test]
fn another_process_pulls_what_it_is_told() {
    let Ok(told) = std::env::var(TOLD) else { return };
    // All of them begin when the test lets go of their standard input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let (home, layout) = told.split_once('\n').unwrap();
    let source = Layout::directory(Path::new(layout), None).unwrap();
    let stored = open(Path::new(home)).pull(Some(NAME), &source, &amd64(), &Said).unwrap();
    eprintln!("pulled {}", stored.digest);
}

/// Another process, which dies at a moment.
pub(crate) fn another(home: &Home, layout: &Path, dies: Option<Failpoint>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::another_process_pulls_what_it_is_told", "--nocapture"]);
    command.env(TOLD, format!("{}\n{}", home.directory.path().display(), layout.display()));
    command.envs(dies.map(|dies| ("CARREL_FAILPOINT", dies.name())));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

//= promises.images.pull-killed-steps
#[test]
fn a_pull_that_is_killed_anywhere_is_as_if_it_was_not_or_was_done() {
    for dies in Failpoint::all() {
        let home = Home::new();
        let source = two_layers().source();
        let layout = home.directory.path().join("layout");
        source.layout(&layout);
        let output = another(&home, &layout, Some(dies)).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{}: {output:?}", dies.name());
        // What can be seen is whole.
        let recorded =
            dies.phase == Phase::NameRecorded || dies == Failpoint { phase: Phase::ImageRecorded, after: true };
        assert_eq!(home.store.get(source.digest()).unwrap().is_some(), recorded, "{}", dies.name());
        let named = dies == Failpoint { phase: Phase::NameRecorded, after: true };
        assert_eq!(home.store.find(NAME).unwrap().is_some(), named, "{}", dies.name());
        for layer in home.names("layers") {
            assert!(home.path("layers").join(layer).join("about.json").exists(), "{}", dies.name());
        }
        // The next one does what is left, and leaves nothing of the first.
        let stored = home.pull(&source).unwrap();
        let whole = Home::new();
        let expected = whole.pull(&source).unwrap();
        assert_eq!((stored.size, stored.layers), (expected.size, expected.layers));
        for directory in ["blobs", "layers", "images", "names"] {
            assert_eq!(home.names(directory), whole.names(directory), "{}", dies.name());
        }
        for (ours, theirs) in stored.root.layers.iter().zip(&expected.root.layers) {
            assert_same(&tree(ours), &tree(theirs));
        }
        home.store.prune(false).unwrap();
        home.assert_clean();
    }
}

#[test]
fn without_a_moment_to_die_at_it_lives() {
    let home = Home::new();
    let source = two_layers().source();
    let layout = home.directory.path().join("layout");
    source.layout(&layout);
    let output = another(&home, &layout, None).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(home.store.find(NAME).unwrap().is_some());
    home.assert_clean();
}
