//! Broken connections, corrupted bytes, and mirrors that do not answer.

use carrel_layers::Digest;
use carrel_tests::{DockerRegistry, Fault, Proxy};

use super::PullerHome;
use super::fixtures::ImageFixture;

const NOISE: usize = 8_000_000;
/// The offset of the corrupted byte.
const CORRUPTED: u64 = 3_000_000;

/// A registry with one image.
fn registry() -> DockerRegistry {
    let layout = ImageFixture::with_every_kind_of_file(NOISE);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "it:1");
    registry
}

//= promises.images.download-breaks
#[test]
fn a_broken_download_resumes_and_nothing_is_fetched_twice() {
    let registry = registry();
    let whole = Proxy::start(&registry.address, |_| Fault::None);
    let expected = PullerHome::new().pull(&whole.name("it:1"));
    let broken = Proxy::start(&registry.address, |_| Fault::Cut(1_500_000));
    let home = PullerHome::new();
    let pulled = home.pull(&broken.name("it:1"));
    assert_eq!(pulled.digest, expected.digest);
    let times = broken.blob_requests().values().copied().max().unwrap();
    assert!(times > 4, "connections were broken: {:?}", broken.blob_requests());
    let (received, needed) = (broken.response_bytes(), whole.response_bytes());
    assert!(received * 10 <= needed * 11, "{received} bytes were received, and {needed} would have been enough");
    home.assert_no_leftovers();
}

//= promises.images.byte-size-media-type
#[test]
fn a_corrupted_byte_is_detected_and_its_blob_is_discarded() {
    let registry = registry();
    let proxy = Proxy::start(&registry.address, |_| Fault::Flip(CORRUPTED));
    let home = PullerHome::new();
    let refused = home.try_pull(&proxy.name("it:1"), "{}", None).unwrap_err();
    assert!(refused.contains("sha256:"), "{refused}");
    for kind in ["images", "names", "staging", "partial"] {
        assert_eq!(home.stored(kind), Vec::<String>::new(), "{kind}");
    }
    for blob in home.stored("blobs") {
        let content = std::fs::read(home.path().join("images/blobs").join(&blob)).unwrap();
        assert_eq!(Digest::of(&content).hex(), blob, "the content matches the digest");
    }
    let (blobs, layers) = (home.stored("blobs"), home.stored("layers"));
    // A pull without the fault completes the image.
    home.pull(&registry.name("it:1"));
    home.assert_no_leftovers();
    let length = |blob: &String| home.path().join("images/blobs").join(blob).metadata().unwrap().len();
    let (all, all_layers) = (home.stored("blobs"), home.stored("layers"));
    let corrupted: Vec<_> = all.iter().filter(|blob| length(blob) > CORRUPTED).collect();
    assert_eq!((corrupted.len(), all_layers.len()), (1, 3), "one layer is long enough for the fault");
    assert!(!blobs.contains(corrupted[0]), "{blobs:?}");
    assert!(layers.len() < 3 && layers.iter().all(|layer| all_layers.contains(layer)), "{layers:?} of {all_layers:?}");
}

//= promises.images.registries
#[test]
fn a_mirror_is_used_and_a_broken_one_is_skipped() {
    let (registry, mirror) = (registry(), registry());
    let (own, other) =
        (Proxy::start(&registry.address, |_| Fault::None), Proxy::start(&mirror.address, |_| Fault::None));
    let stopped = Proxy::start(&mirror.address, |_| Fault::None).address;
    let settings = |mirrors: &[String]| {
        serde_json::json!({own.address.to_string(): {"mirrors": mirrors, "insecure": true}}).to_string()
    };
    let first = PullerHome::new();
    first
        .try_pull(
            &own.name("it:1"),
            &settings(&[format!("http://{stopped}"), format!("http://{}", other.address)]),
            None,
        )
        .unwrap();
    assert_eq!(own.requests(), Vec::<String>::new());
    assert!(!other.blob_requests().is_empty());
    let second = PullerHome::new();
    second.try_pull(&own.name("it:1"), &settings(&[format!("http://{stopped}")]), None).unwrap();
    assert!(!own.blob_requests().is_empty());
}
