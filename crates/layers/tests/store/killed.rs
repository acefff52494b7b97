//! A process killed at any failpoint leaves nothing incomplete that is used, and blocks no other process.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use carrel_failpoint::StepFailpoint;
use carrel_layers::{LayerOutcome, OciLayout, PullFailpointStep, PullProgress};

use crate::memory::{StoreHome, amd64, open, tree, two_layers};
use crate::trees::assert_same;

/// The variable that names the home and the layout to a child process of these tests, separated by a newline.
const PULL: &str = "CARREL_TEST_PULL";
const NAME: &str = "example.org/image:latest";

/// Prints the outcome of each layer.
struct PrintedProgress;

impl PullProgress for PrintedProgress {
    fn layer_done(&self, _: usize, how: LayerOutcome) {
        if how == LayerOutcome::Fetched {
            eprintln!("layer Fetched");
        }
    }
}

/// The child process; on its own it does nothing.
#[test]
fn another_process_pulls_an_image() {
    let Ok(paths) = std::env::var(PULL) else { return };
    // All of them start when the test closes their standard input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let (home, layout) = paths.split_once('\n').unwrap();
    let source = OciLayout::directory(Path::new(layout), None).unwrap();
    let stored = open(Path::new(home)).pull(Some(NAME), &source, &amd64(), &PrintedProgress).unwrap();
    eprintln!("pulled {}", stored.digest);
}

/// Another process, which dies at a failpoint.
pub(crate) fn another(home: &StoreHome, layout: &Path, dies: Option<StepFailpoint<PullFailpointStep>>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::another_process_pulls_an_image", "--nocapture"]);
    command.env(PULL, format!("{}\n{}", home.directory.path().display(), layout.display()));
    command.envs(dies.map(|dies| ("CARREL_FAILPOINT", dies.name())));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

//= promises.images.pull-killed-steps
#[test]
fn a_pull_killed_at_any_failpoint_is_as_if_it_never_ran_or_was_complete() {
    for dies in StepFailpoint::<PullFailpointStep>::all() {
        let home = StoreHome::new();
        let source = two_layers().source();
        let layout = home.directory.path().join("layout");
        source.layout(&layout);
        let output = another(&home, &layout, Some(dies)).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{}: {output:?}", dies.name());
        // Everything visible is complete.
        let recorded = dies.step == PullFailpointStep::NameRecorded
            || dies == StepFailpoint { step: PullFailpointStep::ImageRecorded, after: true };
        assert_eq!(home.store.get(source.digest()).unwrap().is_some(), recorded, "{}", dies.name());
        let named = dies == StepFailpoint { step: PullFailpointStep::NameRecorded, after: true };
        assert_eq!(home.store.find(NAME).unwrap().is_some(), named, "{}", dies.name());
        for layer in home.names("layers") {
            assert!(home.path("layers").join(layer).join("about.json").exists(), "{}", dies.name());
        }
        // The next pull completes it, and removes the leftovers of the first.
        let stored = home.pull(&source).unwrap();
        let whole = StoreHome::new();
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
fn without_a_failpoint_the_process_survives() {
    let home = StoreHome::new();
    let source = two_layers().source();
    let layout = home.directory.path().join("layout");
    source.layout(&layout);
    let output = another(&home, &layout, None).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(home.store.find(NAME).unwrap().is_some());
    home.assert_clean();
}
