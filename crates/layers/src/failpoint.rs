//! Points at which a test can kill a process that works on the store.

carrel_failpoint::failpoints! {
    /// The steps of a pull, in order. Each has a failpoint before and after it.
    pub enum PullFailpointStep {
        /// Fetch the manifest.
        Manifest,
        /// Write the first bytes of a blob.
        BlobStarted,
        /// Verify a blob and move it into place.
        BlobComplete,
        /// Unpack a layer.
        LayerStaged,
        /// Move a layer into place.
        LayerKept,
        /// Write the image's record.
        ImageRecorded,
        /// Write the image's name.
        NameRecorded,
    }
}
