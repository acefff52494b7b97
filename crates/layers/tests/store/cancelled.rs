//! A cancelled pull ends promptly, and what it fetched is kept.

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use carrel_layers::{
    CancellationToken, Descriptor, ImageSource, ImageStoreError, Manifest, Platform, PullProgress, SourceError,
};

use crate::memory::{ImageBuilder, MemorySource, StoreHome, amd64, two_layers};
use crate::pull::noise;
use crate::support::TarBuilder;

/// A source whose large layer trickles and never ends.
struct EndlessSource<'a> {
    image: &'a MemorySource,
    stop: CancellationToken,
}

struct TrickleReader {
    content: Box<dyn Read + Send>,
    left: usize,
    stop: CancellationToken,
}

impl Read for TrickleReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            // No more data arrives, and the waiting reader polls for the cancellation.
            self.stop.cancel();
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let most = into.len().min(self.left);
        let read = self.content.read(&mut into[..most])?;
        self.left -= read;
        Ok(read)
    }
}

impl ImageSource for EndlessSource<'_> {
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError> {
        self.image.manifest(platform)
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        let content = self.image.blob(descriptor, from)?;
        if descriptor.size < 1 << 20 {
            return Ok(content);
        }
        Ok(Box::new(TrickleReader { content, left: 500_000, stop: self.stop.clone() }))
    }
}

//= promises.images.pull-without-waiting-request
#[test]
fn a_cancelled_pull_keeps_what_it_fetched_and_the_next_resumes() {
    let home = StoreHome::new();
    let small = TarBuilder::default().dir("./").file("small", b"").end();
    let large = TarBuilder::default().dir("./").file("large", &noise(3 << 20)).end();
    let image = ImageBuilder::default().layer(small).layer(large).source();
    let layer = image.layers()[1].digest;
    let stop = CancellationToken::new();
    let endless = EndlessSource { image: &image, stop: stop.clone() };
    let outcome = home.store.pull_cancellable(Some("name"), &endless, &amd64(), &(), &stop);
    assert!(matches!(outcome, Err(ImageStoreError::Cancelled)), "{outcome:?}");
    assert_eq!((home.names("images"), home.names("names")), (vec![], vec![]));
    assert_eq!(home.names("staging"), [""; 0], "nothing is unpacked any more");
    assert_eq!(std::fs::metadata(home.path("partial").join(layer.hex())).unwrap().len(), 500_000);
    image.take_requests();
    home.pull(&image).unwrap();
    assert!(image.take_requests().contains(&(layer, 500_000)));
    home.assert_clean();
}

#[test]
fn a_pull_cancelled_before_its_start_requests_nothing() {
    let home = StoreHome::new();
    let image = two_layers().source();
    let stop = CancellationToken::new();
    stop.cancel();
    let outcome = home.store.pull_cancellable(None, &image, &amd64(), &(), &stop);
    assert!(matches!(outcome, Err(ImageStoreError::Cancelled)), "{outcome:?}");
    assert_eq!(image.take_requests(), []);
    home.store.pull_cancellable(None, &image, &amd64(), &(), &CancellationToken::new()).unwrap();
}

/// Reports that a pull has started.
struct StartSignal(Mutex<Sender<()>>);

impl PullProgress for StartSignal {
    fn begin(&self, _: &[Descriptor]) {
        self.0.lock().unwrap().send(()).unwrap();
    }
}

fn start_signal() -> (StartSignal, Receiver<()>) {
    let (sender, receiver) = channel();
    (StartSignal(Mutex::new(sender)), receiver)
}

#[test]
fn a_pull_that_waits_for_another_can_be_cancelled() {
    let home = StoreHome::new();
    let image = two_layers().source();
    // Another process works on the image, or on one of its layers, and never ends.
    let layer = image.layers()[0].digest.hex();
    for name in [format!("{}.image", image.digest().hex()), layer] {
        std::fs::create_dir_all(home.path("partial")).unwrap();
        let file = std::fs::File::create(home.path("partial").join(&name)).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let stop = CancellationToken::new();
        std::thread::scope(|scope| {
            let (progress, started) = start_signal();
            let (home, image, stop) = (&home, &image, &stop);
            let pull = scope.spawn(move || home.store.pull_cancellable(None, image, &amd64(), &progress, stop));
            started.recv().unwrap();
            stop.cancel();
            let outcome = pull.join().unwrap();
            assert!(matches!(outcome, Err(ImageStoreError::Cancelled)), "{outcome:?}");
        });
        // A waiting pull that is not cancelled continues when the other ends.
        std::thread::scope(|scope| {
            let (progress, started) = start_signal();
            let (home, image) = (&home, &image);
            let pull = scope.spawn(move || {
                home.store.pull_cancellable(None, image, &amd64(), &progress, &CancellationToken::new())
            });
            started.recv().unwrap();
            drop(file);
            pull.join().unwrap().unwrap();
        });
        home.store.prune(true).unwrap();
        home.assert_empty();
    }
}
