//! A pull that is killed, at every failpoint: the next pull is not affected by it.

use carrel_failpoint::StepFailpoint;
use carrel_layers::PullFailpointStep;
use carrel_tests::DockerRegistry;

use super::fixtures::ImageFixture;
use super::{PullerHome, list_image};

//= promises.images.pull-killed-steps
#[test]
fn a_pull_killed_at_any_failpoint_is_completed_by_the_next_one() {
    let layout = ImageFixture::with_every_kind_of_file(300_000);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "it:1");
    let name = registry.name("it:1");
    let whole = PullerHome::new();
    let expected = whole.pull(&name);
    whole.assert_no_leftovers();
    let tree = list_image(&expected);
    let mut wrong = Vec::new();
    for failpoint in StepFailpoint::<PullFailpointStep>::all().map(StepFailpoint::name) {
        let home = PullerHome::new();
        assert!(home.pull_until(&name, &failpoint), "{failpoint} was never reached");
        let pulled = home.pull(&name);
        assert_eq!(pulled.digest, expected.digest, "after {failpoint}");
        assert_eq!(list_image(&pulled), tree, "after {failpoint}");
        for kind in ["blobs", "layers", "images", "names", "partial", "staging"] {
            if home.stored(kind) != whole.stored(kind) {
                wrong.push(format!("after {failpoint}, {kind}: {:?}", home.stored(kind)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
