//! Concurrent pulls of the same image, and images that share layers.

use carrel_tests::{DockerRegistry, Fault, Proxy};

use super::fixtures::ImageFixture;
use super::{PulledImage, PullerHome, outcome};

//= promises.images.times-blob-fetched-layer
#[test]
fn ten_concurrent_pulls_fetch_every_blob_once() {
    let layout = ImageFixture::with_every_kind_of_file(5_000_000);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "it:1");
    let proxy = Proxy::start(&registry.address, |_| Fault::None);
    let home = PullerHome::new();
    let start = |_| {
        let mut command = home.command(&["pull", &proxy.name("it:1"), "{}"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..10).map(start).collect();
    let pulled: Vec<_> = started.into_iter().map(|child| outcome(child.wait_with_output().unwrap()).unwrap()).collect();
    assert!(pulled.iter().all(|one| *one == pulled[0]), "{pulled:?}");
    let blobs = proxy.blob_requests();
    // Three layers and a configuration.
    assert_eq!(blobs.values().copied().collect::<Vec<_>>(), [1; 4], "{blobs:?}");
    home.assert_no_leftovers();
}

//= promises.images.times-blob-fetched-layer
#[test]
fn layers_of_another_image_are_not_fetched_again() {
    let layout = ImageFixture::with_every_kind_of_file(100_000);
    let registry = DockerRegistry::open();
    registry.push(layout.path(), layout.tag(), "first:1");
    let image = format!("{}:it", layout.path().display());
    carrel_tests::umoci(&["config", "--image", &image, "--tag", "other", "--config.env", "A=B"]);
    registry.push(layout.path(), "other", "second:1");
    let home = PullerHome::new();
    let first = home.pull(&registry.name("first:1"));
    let (before, layers) = (home.stored("blobs"), home.path().join("images/layers"));
    let proxy = Proxy::start(&registry.address, |_| Fault::None);
    let second = home.pull(&proxy.name("second:1"));
    assert_ne!(first.digest, second.digest);
    // The directory above the shared layers belongs to one image.
    let shared = |image: &PulledImage| -> Vec<_> {
        image.layers.iter().filter(|layer| layer.parent().unwrap().starts_with(&layers)).cloned().collect()
    };
    assert_eq!((shared(&first).len(), shared(&first)), (3, shared(&second)));
    let blobs = proxy.blob_requests();
    assert_eq!(blobs.len(), 1, "only the configuration: {blobs:?}");
    let fetched = blobs.keys().next().unwrap().strip_prefix("sha256:").unwrap();
    assert!(!before.iter().any(|blob| blob == fetched) && home.stored("blobs").iter().any(|blob| blob == fetched));
}
