//! Pulls: what is fetched, in which order, and what is not fetched twice.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use carrel_layers::{Descriptor, Digest, ImageStoreError, LayerOutcome, media};

use crate::memory::{ImageBuilder, RecordedProgress, StoreHome, amd64, open, two_layers};
use crate::support::{TarBuilder, gzip, zstd};

const NAME: &str = "example.org/image:latest";

#[test]
fn a_pull_stores_all_layers_and_the_name() {
    let home = StoreHome::new();
    let source = two_layers().source();
    let stored = home.pull(&source).unwrap();
    assert_eq!(stored.digest, source.digest());
    assert_eq!(stored.names, [NAME]);
    assert_eq!(stored.config.cmd, ["sh"]);
    assert_eq!(stored.size, 7 + 6);
    let [upper, lower] = &stored.root.layers[..] else { panic!("{:?}", stored.root) };
    assert_eq!(std::fs::read_to_string(lower.join("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(std::fs::read_to_string(upper.join("etc/motd")).unwrap(), "hello\n");
    assert_eq!(std::fs::symlink_metadata(upper.join("etc/gone")).unwrap().rdev(), 0);
    assert_eq!(home.store.find(NAME).unwrap().unwrap(), stored);
    assert_eq!(home.store.get(stored.digest).unwrap().unwrap(), stored);
    assert_eq!(home.store.list().unwrap(), [stored]);
    assert_eq!(home.store.find("example.org/other:latest").unwrap(), None);
    // A reopened store has the same.
    assert!(open(home.directory.path()).find(NAME).unwrap().is_some());
    home.assert_clean();
}

#[test]
fn content_of_the_store_is_not_fetched_again() {
    let home = StoreHome::new();
    let source = two_layers().source();
    home.pull(&source).unwrap();
    assert_eq!(source.take_requests().len(), 3);
    home.pull(&source).unwrap();
    assert_eq!(source.take_requests(), []);
    // Another image has one layer more, and another configuration.
    let other = two_layers().layer(TarBuilder::default().dir("./").file("new", b"").end()).source();
    let progress = RecordedProgress::default();
    home.store.pull(None, &other, &amd64(), &progress).unwrap();
    assert_eq!(other.take_requests().len(), 2);
    let done = progress.done.into_inner().unwrap();
    assert_eq!(
        done.into_values().collect::<Vec<_>>(),
        [[LayerOutcome::AlreadyPresent], [LayerOutcome::AlreadyPresent], [LayerOutcome::Fetched]]
    );
    assert_eq!(home.names("layers").len(), 3);
    home.assert_clean();
}

#[test]
fn a_name_moves_and_its_old_image_stays() {
    let home = StoreHome::new();
    let first = home.pull(&two_layers().source()).unwrap();
    let second = home.pull(&two_layers().config("User", "app".into()).source()).unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(home.store.find(NAME).unwrap().unwrap().digest, second.digest);
    let kept = home.store.get(first.digest).unwrap().unwrap();
    assert_eq!((kept.names, kept.root), (vec![], first.root));
    home.store.name("example.org/image:old", first.digest).unwrap();
    assert_eq!(home.store.find("example.org/image:old").unwrap().unwrap().digest, first.digest);
    assert!(matches!(home.store.name("other", Digest::of(b"none")), Err(ImageStoreError::Unknown(_))));
}

#[test]
fn layers_may_have_any_supported_compression() {
    let home = StoreHome::new();
    let tar = |name: &str| TarBuilder::default().dir("./").file(name, b"content").end();
    let [plain, by_gzip, by_zstd] = ["plain", "gzip", "zstd"].map(tar);
    let build = ImageBuilder::default()
        .packed(media::LAYER, Digest::of(&plain), plain)
        .packed(media::DOCKER_LAYER_GZIP, Digest::of(&by_gzip), gzip(&by_gzip))
        .packed(media::LAYER_ZSTD, Digest::of(&by_zstd), zstd(&by_zstd));
    let stored = home.pull(&build.source()).unwrap();
    for (layer, name) in stored.root.layers.iter().zip(["zstd", "gzip", "plain"]) {
        assert_eq!(std::fs::read_to_string(layer.join(name)).unwrap(), "content");
    }
}

#[test]
fn a_broken_stream_resumes_where_it_ended() {
    for error in [true, false] {
        let home = StoreHome::new();
        let large = TarBuilder::default().dir("./").file("large", &noise(3 << 20)).end();
        let mut source = ImageBuilder::default().layer(large).source();
        let layer = source.layers()[0].clone();
        let half = layer.size / 2;
        source.cut.insert(layer.digest, (half, error));
        let outcome = home.pull(&source).unwrap_err();
        match outcome {
            ImageStoreError::Source(_) => assert!(error),
            ImageStoreError::Truncated { found, .. } => assert!(!error && found == half),
            other => panic!("{other}"),
        }
        assert_eq!(home.names("partial"), [layer.digest.hex()]);
        assert_eq!((home.names("images"), home.names("names"), home.names("layers")), (vec![], vec![], vec![]));
        source.cut.clear();
        source.take_requests();
        source.given();
        let stored = home.pull(&source).unwrap();
        let config = source.blobs.keys().find(|digest| **digest != layer.digest).unwrap();
        let mut requests = source.take_requests();
        requests.retain(|(digest, _)| digest != config);
        assert_eq!(requests, [(layer.digest, half)]);
        assert!(source.given() < layer.size - half + 4096);
        assert_eq!(std::fs::metadata(stored.root.layers[0].join("large")).unwrap().len(), 3 << 20);
        home.assert_clean();
    }
}

#[test]
fn a_partial_blob_of_an_earlier_pull_is_verified() {
    let home = StoreHome::new();
    let large = TarBuilder::default().dir("./").file("large", &noise(1 << 20)).end();
    let source = ImageBuilder::default().layer(large).source();
    let layer = source.layers()[0].clone();
    std::fs::create_dir(home.path("partial")).unwrap();
    for left in [vec![7; 1000], vec![7; usize::try_from(layer.size).unwrap() + 1], source.blobs[&layer.digest].clone()]
    {
        std::fs::write(home.path("partial").join(layer.digest.hex()), left).unwrap();
        home.pull(&source).unwrap();
        home.assert_clean();
        assert_eq!(std::fs::read(home.path("blobs").join(layer.digest.hex())).unwrap(), source.blobs[&layer.digest]);
        home.store.remove(NAME).unwrap();
        assert_eq!(home.names("blobs"), [""; 0]);
    }
}

#[test]
fn an_unrecorded_layer_and_blob_are_verified_before_use() {
    let home = StoreHome::new();
    let source = two_layers().source();
    let stored = home.pull(&source).unwrap();
    let layer = source.layers()[0].clone();
    // As a power cut may leave it: the image was not recorded, and the host has booted since.
    std::fs::remove_dir_all(home.path("images").join(stored.digest.hex())).unwrap();
    let tree = stored.root.layers[1].clone();
    let about = tree.with_file_name("about.json");
    let text = std::fs::read_to_string(&about).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&about, text.replace(boot.trim(), "another")).unwrap();
    std::fs::write(tree.join("etc/hostname"), "").unwrap();
    std::fs::write(home.path("blobs").join(layer.digest.hex()), vec![0; usize::try_from(layer.size).unwrap()]).unwrap();
    source.take_requests();
    home.pull(&source).unwrap();
    assert_eq!(source.take_requests(), [(layer.digest, 0)]);
    assert_eq!(std::fs::read_to_string(tree.join("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(std::fs::read(home.path("blobs").join(layer.digest.hex())).unwrap(), source.blobs[&layer.digest]);
    home.assert_clean();
}

#[test]
fn an_image_for_another_platform_is_reported() {
    let home = StoreHome::new();
    let progress = RecordedProgress::default();
    let platform = "linux/arm64".parse().unwrap();
    home.store.pull(None, &two_layers().source(), &platform, &progress).unwrap();
    assert_eq!(progress.messages.into_inner().unwrap(), ["the image is for linux/amd64, not for linux/arm64"]);
}

//= promises.images.times-blob-fetched-layer
#[test]
fn concurrent_threads_pull_once() {
    let home = StoreHome::new();
    let layers = (0..6).map(|number| TarBuilder::default().dir("./").file(&format!("{number}"), &noise(100_000)).end());
    let source = layers.fold(ImageBuilder::default(), ImageBuilder::layer).source();
    let pulled: Vec<_> = std::thread::scope(|scope| {
        let pulling: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| open(home.directory.path()).pull(Some(NAME), &source, &amd64(), &())))
            .collect();
        pulling.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    assert!(pulled.iter().all(|stored| stored.digest == source.digest()));
    let mut requests = source.take_requests();
    requests.sort();
    requests.dedup();
    assert_eq!(requests.len(), 7, "six layers and the configuration, each once");
    assert_eq!(source.given(), source.blobs.values().map(|blob| blob.len() as u64).sum::<u64>());
    home.assert_clean();
}

//= promises.images.times-blob-fetched-layer
#[test]
fn concurrent_processes_pull_once() {
    let home = StoreHome::new();
    let layers = (0..5).map(|number| TarBuilder::default().dir("./").file(&format!("{number}"), &noise(50_000)).end());
    let source = layers.fold(ImageBuilder::default(), ImageBuilder::layer).source();
    let layout = home.directory.path().join("layout");
    source.layout(&layout);
    let mut children: Vec<_> = (0..10).map(|_| crate::killed::another(&home, &layout, None)).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let mut fetched = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && output.status.signal().is_none(), "{printed}");
        assert!(printed.contains(&format!("pulled {}", source.digest())), "{printed}");
        fetched += printed.lines().filter(|line| *line == "layer Fetched").count();
    }
    assert_eq!(fetched, 5);
    assert_eq!(home.store.find(NAME).unwrap().unwrap().digest, source.digest());
    home.assert_clean();
}

#[test]
fn concurrent_pulls_with_shared_layers_do_not_deadlock() {
    let home = StoreHome::new();
    let tars: Vec<_> =
        (0..4).map(|number| TarBuilder::default().dir("./").file(&format!("{number}"), &noise(50_000)).end()).collect();
    let up = tars.iter().cloned().fold(ImageBuilder::default(), ImageBuilder::layer).source();
    let down = tars.iter().rev().cloned().fold(ImageBuilder::default(), ImageBuilder::layer).source();
    std::thread::scope(|scope| {
        for source in [&up, &down, &up, &down] {
            scope.spawn(|| open(home.directory.path()).pull(None, source, &amd64(), &()).unwrap());
        }
    });
    let blobs = |source: &crate::memory::MemorySource| {
        source.layers().iter().map(|layer: &Descriptor| layer.digest).collect::<Vec<_>>()
    };
    let requests = [up.take_requests(), down.take_requests()].concat();
    for blob in blobs(&up) {
        assert_eq!(requests.iter().filter(|(digest, _)| *digest == blob).count(), 1);
    }
    assert_eq!(home.store.list().unwrap().len(), 2);
    home.assert_clean();
}

/// Bytes that do not compress, always the same.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
}
