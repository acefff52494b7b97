//! Connections that break, bytes that change, mirrors that are gone.

use carrel_layers::Digest;
use carrel_tests::{DockerRegistry, Fault, Proxy};

use super::Home;
use super::made::Layout;

const NOISE: usize = 8_000_000;
/// Where a byte is changed.
const PLACE: u64 = 3_000_000;

fn filled() -> DockerRegistry {
    let layout = Layout::of_everything(NOISE);
    let registry = DockerRegistry::open();
    registry.put(layout.path(), layout.tag(), "it:1");
    registry
}

//= promises.images.download-breaks
#[test]
fn a_broken_download_resumes_and_nothing_is_fetched_twice() {
    let registry = filled();
    let whole = Proxy::start(&registry.address, |_| Fault::None);
    let expected = Home::new().pull(&whole.name("it:1"));
    let broken = Proxy::start(&registry.address, |_| Fault::Cut(1_500_000));
    let home = Home::new();
    let pulled = home.pull(&broken.name("it:1"));
    assert_eq!(pulled.digest, expected.digest);
    let times = broken.blobs().values().copied().max().unwrap();
    assert!(times > 4, "it broke off at all: {:?}", broken.blobs());
    let (came, least) = (broken.came_back(), whole.came_back());
    assert!(came * 10 <= least * 11, "{came} bytes came, and {least} would have been enough");
    home.assert_nothing_is_left_over();
}

//= promises.images.byte-size-media-type
#[test]
fn a_corrupted_byte_is_detected_and_its_blob_is_discarded() {
    let registry = filled();
    let proxy = Proxy::start(&registry.address, |_| Fault::Flip(PLACE));
    let home = Home::new();
    let refused = home.try_pull(&proxy.name("it:1"), "{}", None).unwrap_err();
    assert!(refused.contains("sha256:"), "{refused}");
    for kind in ["images", "names", "staging", "partial"] {
        assert_eq!(home.kept(kind), Vec::<String>::new(), "{kind}");
    }
    for blob in home.kept("blobs") {
        let content = std::fs::read(home.path().join("images/blobs").join(&blob)).unwrap();
        assert_eq!(Digest::of(&content).hex(), blob, "what is kept is what it is called");
    }
    let (blobs, layers) = (home.kept("blobs"), home.kept("layers"));
    // The same image without the fault is fine, and has what the other could not have.
    home.pull(&registry.name("it:1"));
    home.assert_nothing_is_left_over();
    let length = |blob: &String| home.path().join("images/blobs").join(blob).metadata().unwrap().len();
    let (all, all_layers) = (home.kept("blobs"), home.kept("layers"));
    let spoiled: Vec<_> = all.iter().filter(|blob| length(blob) > PLACE).collect();
    assert_eq!((spoiled.len(), all_layers.len()), (1, 3), "one layer is long enough for the fault");
    assert!(!blobs.contains(spoiled[0]), "{blobs:?}");
    assert!(layers.len() < 3 && layers.iter().all(|layer| all_layers.contains(layer)), "{layers:?} of {all_layers:?}");
}

//= promises.images.registries
#[test]
fn a_mirror_is_used_and_a_broken_one_is_skipped() {
    let (registry, mirror) = (filled(), filled());
    let (own, other) =
        (Proxy::start(&registry.address, |_| Fault::None), Proxy::start(&mirror.address, |_| Fault::None));
    let gone = Proxy::start(&mirror.address, |_| Fault::None).address;
    let settings = |mirrors: &[String]| {
        serde_json::json!({own.address.to_string(): {"mirrors": mirrors, "insecure": true}}).to_string()
    };
    let first = Home::new();
    first
        .try_pull(&own.name("it:1"), &settings(&[format!("http://{gone}"), format!("http://{}", other.address)]), None)
        .unwrap();
    assert_eq!(own.asked(), Vec::<String>::new());
    assert!(!other.blobs().is_empty());
    let second = Home::new();
    second.try_pull(&own.name("it:1"), &settings(&[format!("http://{gone}")]), None).unwrap();
    assert!(!own.blobs().is_empty());
}
