//! A pull that nobody wants any more ends, wherever it is, and what has come of it is kept.

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use carrel_layers::{Descriptor, Manifest, Platform, Progress, Source, SourceError, Stop, StoreError};

use crate::memory::{Build, Home, Memory, amd64, two_layers};
use crate::pull::noise;
use crate::support::Tar;

/// A source whose large layer comes bit by bit, and never ends.
struct Endless<'a> {
    image: &'a Memory,
    stop: Stop,
}

struct Trickle {
    content: Box<dyn Read + Send>,
    left: usize,
    stop: Stop,
}

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            // Nothing comes any more, and whoever waits is asked again and again whether it still wants to.
            self.stop.now();
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let most = into.len().min(self.left);
        let read = self.content.read(&mut into[..most])?;
        self.left -= read;
        Ok(read)
    }
}

impl Source for Endless<'_> {
    fn manifest(&self, platform: &Platform) -> Result<Manifest, SourceError> {
        self.image.manifest(platform)
    }

    fn blob(&self, descriptor: &Descriptor, from: u64) -> Result<Box<dyn Read + Send>, SourceError> {
        let content = self.image.blob(descriptor, from)?;
        if descriptor.size < 1 << 20 {
            return Ok(content);
        }
        Ok(Box::new(Trickle { content, left: 500_000, stop: self.stop.clone() }))
    }
}

//= promises.images.pull-nobody-waits-whose
#[test]
fn a_pull_that_is_stopped_keeps_what_has_come_and_the_next_goes_on() {
    let home = Home::new();
    let small = Tar::default().dir("./").file("small", b"").end();
    let large = Tar::default().dir("./").file("large", &noise(3 << 20)).end();
    let image = Build::default().layer(small).layer(large).source();
    let layer = image.layers()[1].digest;
    let stop = Stop::new();
    let endless = Endless { image: &image, stop: stop.clone() };
    let outcome = home.store.pull_until(Some("name"), &endless, &amd64(), &(), &stop);
    assert!(matches!(outcome, Err(StoreError::Stopped)), "{outcome:?}");
    assert_eq!((home.names("images"), home.names("names")), (vec![], vec![]));
    assert_eq!(home.names("staging"), [""; 0], "nothing is unpacked any more");
    assert_eq!(std::fs::metadata(home.path("partial").join(layer.hex())).unwrap().len(), 500_000);
    image.asked();
    home.pull(&image).unwrap();
    assert!(image.asked().contains(&(layer, 500_000)));
    home.assert_clean();
}

#[test]
fn a_pull_that_is_stopped_before_it_began_asks_for_nothing() {
    let home = Home::new();
    let image = two_layers().source();
    let stop = Stop::new();
    stop.now();
    let outcome = home.store.pull_until(None, &image, &amd64(), &(), &stop);
    assert!(matches!(outcome, Err(StoreError::Stopped)), "{outcome:?}");
    assert_eq!(image.asked(), []);
    home.store.pull_until(None, &image, &amd64(), &(), &Stop::new()).unwrap();
}

/// Says that a pull has begun.
struct Begun(Mutex<Sender<()>>);

impl Progress for Begun {
    fn begin(&self, _: &[Descriptor]) {
        self.0.lock().unwrap().send(()).unwrap();
    }
}

fn begun() -> (Begun, Receiver<()>) {
    let (sender, receiver) = channel();
    (Begun(Mutex::new(sender)), receiver)
}

#[test]
fn a_pull_that_waits_for_another_is_stopped() {
    let home = Home::new();
    let image = two_layers().source();
    // Somebody works on it, or on one of its layers, for ever.
    let layer = image.layers()[0].digest.hex();
    for name in [format!("{}.image", image.digest().hex()), layer] {
        std::fs::create_dir_all(home.path("partial")).unwrap();
        let file = std::fs::File::create(home.path("partial").join(&name)).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let (progress, begun) = begun();
            let (home, image, stop) = (&home, &image, &stop);
            let pull = scope.spawn(move || home.store.pull_until(None, image, &amd64(), &progress, stop));
            begun.recv().unwrap();
            stop.now();
            let outcome = pull.join().unwrap();
            assert!(matches!(outcome, Err(StoreError::Stopped)), "{outcome:?}");
        });
        // Whoever is not stopped gets it when the other ends.
        std::thread::scope(|scope| {
            let (progress, begun) = begun();
            let (home, image) = (&home, &image);
            let pull = scope.spawn(move || home.store.pull_until(None, image, &amd64(), &progress, &Stop::new()));
            begun.recv().unwrap();
            drop(file);
            pull.join().unwrap().unwrap();
        });
        home.store.prune(true).unwrap();
        home.assert_empty();
    }
}
