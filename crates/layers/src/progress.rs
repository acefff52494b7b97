//! What is told while an image comes.

use crate::manifest::Descriptor;

/// How a layer came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was there before.
    There,
    /// It was fetched and unpacked.
    Fetched,
}

/// Whoever wants to know how far it is. Called from several threads at once.
pub trait Progress: Sync {
    /// These layers are wanted, the lowest first. Others name them by their place here.
    fn begin(&self, layers: &[Descriptor]) {
        let _ = layers;
    }

    /// So much of a layer is here, of all that its descriptor says.
    fn fetched(&self, layer: usize, bytes: u64) {
        let _ = (layer, bytes);
    }

    /// So much of a layer is unpacked.
    fn unpacked(&self, layer: usize, bytes: u64) {
        let _ = (layer, bytes);
    }

    /// A layer is in its place.
    fn layer_done(&self, layer: usize, how: Done) {
        let _ = (layer, how);
    }

    /// Something that a person may want to know.
    fn said(&self, text: &str) {
        let _ = text;
    }
}

/// Tells nobody.
impl Progress for () {}
