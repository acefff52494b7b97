//! A pull that is killed, at every failpoint: the next pull is not affected by it.

use carrel_layers::Failpoint;
use carrel_tests::DockerRegistry;

use super::made::Layout;
use super::{Home, listed};

//= promises.images.pull-killed-steps
#[test]
fn a_pull_killed_at_any_failpoint_is_completed_by_the_next_one() {
    let layout = Layout::of_everything(300_000);
    let registry = DockerRegistry::open();
    registry.put(layout.path(), layout.tag(), "it:1");
    let name = registry.name("it:1");
    let whole = Home::new();
    let expected = whole.pull(&name);
    whole.assert_nothing_is_left_over();
    let tree = listed(&expected);
    let mut wrong = Vec::new();
    for moment in Failpoint::all().map(Failpoint::name) {
        let home = Home::new();
        assert!(home.pull_until(&name, &moment), "{moment} never came");
        let pulled = home.pull(&name);
        assert_eq!(pulled.digest, expected.digest, "after {moment}");
        assert_eq!(listed(&pulled), tree, "after {moment}");
        for kind in ["blobs", "layers", "images", "names", "partial", "staging"] {
            if home.kept(kind) != whole.kept(kind) {
                wrong.push(format!("after {moment}, {kind}: {:?}", home.kept(kind)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
