//! Progress of a pull.

use crate::manifest::Descriptor;

/// How a layer became available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// The store already had it.
    AlreadyPresent,
    /// It was fetched and unpacked.
    Fetched,
}

/// Receives the progress of a pull, from several threads at once.
pub trait PullProgress: Sync {
    /// The layers of the image, the lowest first. Later calls refer to them by index.
    fn begin(&self, layers: &[Descriptor]) {
        let _ = layers;
    }

    /// The bytes of a layer that are fetched so far, out of its descriptor's size.
    fn fetched(&self, layer: usize, bytes: u64) {
        let _ = (layer, bytes);
    }

    /// The bytes that are unpacked so far.
    fn unpacked(&self, layer: usize, bytes: u64) {
        let _ = (layer, bytes);
    }

    /// A layer is complete.
    fn layer_done(&self, layer: usize, how: LayerOutcome) {
        let _ = (layer, how);
    }

    /// A message for the user.
    fn message(&self, text: &str) {
        let _ = text;
    }
}

/// Ignores all progress.
impl PullProgress for () {}
