//! Blobs: verified while they are fetched, and kept as received.
//!
//! An incomplete blob is kept, so that a later pull resumes. Kept bytes are read and hashed again before they are used.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_failpoint::Failpoints;

use super::budget;
use super::layer::LayerPull;
use super::{BLOBS, ImageStore, PARTIAL, files};
use crate::cancellation::CancellationToken;
use crate::digest::{Digest, DigestReader, Hasher};
use crate::error::{ImageStoreError, is_full};
use crate::failpoint::PullFailpointStep;
use crate::lock::FileLock;
use crate::manifest::Descriptor;
use crate::progress::PullProgress;
use crate::source::{ImageSource, SourceError};
use crate::unpack::{UnpackError, UnpackProcess, UnpackedLayer};

/// The read size.
const BUFFER: usize = 256 << 10;

/// The content of recorded images, which was synced before they were recorded.
pub(super) struct RecordedContent {
    pub(super) layers: HashSet<Digest>,
    pub(super) blobs: HashSet<Digest>,
    /// An image whose record cannot be read: its content is unknown.
    pub(super) damaged: Option<Digest>,
}

/// Stops the layers of a pull: because the caller cancelled it, or another layer failed.
pub(super) struct PullStop<'a> {
    cancellation: &'a CancellationToken,
    failed: AtomicBool,
    /// Whether a retry is useless.
    forever: AtomicBool,
}

/// A blob that is being read, hashed and perhaps unpacked.
pub(super) struct BlobFlow<'a> {
    store: &'a ImageStore,
    /// The unpack process, if the blob is to be unpacked.
    pub(super) unpacking: Option<UnpackProcess>,
    pub(super) progress: &'a dyn PullProgress,
    /// The index of the layer, for progress.
    pub(super) number: usize,
    halt: &'a PullStop<'a>,
    state: Hasher,
    length: u64,
}

/// Why reading a blob failed.
#[derive(Debug)]
pub(super) enum BlobError {
    /// The source failed.
    Source(SourceError),
    /// The local disk failed.
    Store(io::Error),
    /// It ended after this many bytes.
    Truncated(u64),
    /// Its size differs: this many bytes, or more.
    SizeMismatch(u64),
    /// Its content has another digest.
    DigestMismatch(Digest),
    /// It cannot be unpacked.
    Unpack(UnpackError),
    /// The pull was stopped; `forever` means that a retry is useless.
    Stopped { forever: bool },
    /// The disk is full.
    Full,
}

// === impl ImageStore ===

impl ImageStore {
    /// Lists the content of recorded images.
    pub(super) fn known(&self) -> Result<RecordedContent, ImageStoreError> {
        let records = self.records()?;
        Ok(RecordedContent {
            layers: records.places(),
            blobs: records.blobs(),
            damaged: records.damaged.first().copied(),
        })
    }

    /// Whether the disk has enough free space.
    pub(super) fn has_room(&self) -> io::Result<bool> {
        budget::has_room(&self.handle)
    }

    pub(super) fn full(&self) -> ImageStoreError {
        ImageStoreError::Full(self.path.clone())
    }

    /// Reads a configuration from the store, or fetches it.
    pub(super) fn read_or_fetch(
        &self,
        blob: &Descriptor,
        largest: u64,
        source: &dyn ImageSource,
    ) -> Result<Vec<u8>, ImageStoreError> {
        let path = format!("{BLOBS}/{}", blob.digest.hex());
        let kept = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        if let Some(kept) = kept.filter(|kept| Digest::of(kept) == blob.digest) {
            return Ok(kept);
        }
        let what = "configuration";
        let mut bytes = Vec::new();
        let reader = source.blob(blob, 0)?;
        // One byte more than expected shows that it is too long.
        let bound = blob.size.min(largest).saturating_add(1);
        reader.take(bound).read_to_end(&mut bytes).map_err(SourceError::System)?;
        let (expected, found) = (blob.size, bytes.len() as u64);
        if found != expected {
            return Err(ImageStoreError::Size { what, digest: blob.digest, expected, found });
        }
        let found = Digest::of(&bytes);
        if found != blob.digest {
            return Err(ImageStoreError::Digest { what, expected: blob.digest, found });
        }
        Ok(bytes)
    }

    /// Stores a manifest or a configuration.
    pub(super) fn write_small_blob(&self, bytes: &[u8]) -> Result<(), ImageStoreError> {
        let (blobs, name) = (self.directory(BLOBS)?, Digest::of(bytes).hex());
        let kept = files::read(&blobs, &name).map_err(|error| self.failed(error))?;
        if kept.as_deref() == Some(bytes) {
            return Ok(());
        }
        let lock = FileLock::take(&self.directory(PARTIAL)?, &name).map_err(|error| self.failed(error))?;
        let write = || -> io::Result<()> {
            let mut file = File::from(lock.file.try_clone()?);
            file.set_len(0)?;
            file.write_all(bytes)
        };
        write().and_then(|()| lock.keep(blobs, &name)).map_err(|error| self.failed(error))
    }

    /// Whether the store has a complete blob. One that no image refers to is verified, unless it will be read anyway.
    pub(super) fn has(&self, blob: &Descriptor, known: &RecordedContent, read: bool) -> io::Result<bool> {
        let path = format!("{BLOBS}/{}", blob.digest.hex());
        let Some(mut file) = files::open(&self.handle, &path)? else { return Ok(false) };
        let whole = file.metadata()?.len() == blob.size;
        if whole && (known.blobs.contains(&blob.digest) || !read) {
            return Ok(true);
        }
        let mut digesting = DigestReader::new(&mut file);
        if whole && io::copy(&mut digesting, &mut io::sink())? == blob.size && digesting.digest() == blob.digest {
            return Ok(true);
        }
        files::unlink(&self.handle, &path)?;
        Ok(false)
    }

    /// Verifies a stored blob and passes it to the unpacker.
    pub(super) fn replay_stored(&self, blob: &Descriptor, flow: &mut BlobFlow<'_>) -> Result<(), BlobError> {
        let file = files::open(&self.handle, &format!("{BLOBS}/{}", blob.digest.hex())).map_err(BlobError::Store)?;
        let file = file.ok_or_else(|| BlobError::Store(io::ErrorKind::NotFound.into()))?;
        flow.take(file, blob.size, None, BlobError::Store)?;
        flow.check(blob)
    }

    /// Resumes a blob in its locked partial file, and verifies it.
    pub(super) fn fetch(
        &self,
        blob: &Descriptor,
        lock: &FileLock,
        source: &dyn ImageSource,
        flow: &mut BlobFlow<'_>,
    ) -> Result<(), BlobError> {
        let mut file = File::from(lock.file.try_clone().map_err(BlobError::Store)?);
        let mut have = file.metadata().map_err(BlobError::Store)?.len();
        if have > blob.size {
            file.set_len(0).map_err(BlobError::Store)?;
            have = 0;
        }
        file.rewind().map_err(BlobError::Store)?;
        flow.take((&file).take(have), have, None, BlobError::Store)?;
        if have < blob.size {
            PullFailpointStep::BlobStarted.begin();
            let reader = source.blob(blob, have).map_err(BlobError::Source)?;
            let outcome = flow.take(reader, blob.size, Some(&file), |error| BlobError::Source(error.into()));
            // The partial file has the expected size or more, so the stated size must be wrong.
            let whole = |length| (length == have && have > 0) || flow.digest() == blob.digest;
            outcome.map_err(|broken| match broken {
                BlobError::Truncated(length) if whole(length) => BlobError::SizeMismatch(length),
                broken => broken,
            })?;
        }
        flow.check(blob)
    }
}

// === impl PullStop ===

impl<'a> PullStop<'a> {
    pub(super) fn new(cancellation: &'a CancellationToken) -> Self {
        Self { cancellation, failed: AtomicBool::new(false), forever: AtomicBool::new(false) }
    }

    pub(super) fn is_set(&self) -> bool {
        self.cancellation.is_cancelled() || self.failed.load(Ordering::Relaxed)
    }

    /// Records that a layer failed.
    pub(super) fn fail(&self, forever: bool) {
        self.forever.fetch_or(forever, Ordering::Relaxed);
        self.failed.store(true, Ordering::Relaxed);
    }

    fn broken(&self) -> BlobError {
        BlobError::Stopped { forever: self.forever.load(Ordering::Relaxed) }
    }
}

// === impl BlobFlow ===

impl<'a> BlobFlow<'a> {
    pub(super) fn new(store: &'a ImageStore, wanted: &LayerPull<'a>, unpacking: Option<UnpackProcess>) -> Self {
        let LayerPull { progress, number, halt, .. } = *wanted;
        Self { store, unpacking, progress, number, halt, state: Hasher::default(), length: 0 }
    }

    /// Reads exactly up to the expected size.
    fn take(
        &mut self,
        mut from: impl Read,
        size: u64,
        mut into: Option<&File>,
        failed: impl Fn(io::Error) -> BlobError,
    ) -> Result<(), BlobError> {
        let mut buffer = vec![0; BUFFER];
        loop {
            self.ensure_can_continue()?;
            let read = match from.read(&mut buffer) {
                Ok(0) => return if self.length < size { Err(BlobError::Truncated(self.length)) } else { Ok(()) },
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let bytes = buffer.get(..read).unwrap_or_default();
            self.length = self.length.saturating_add(read as u64);
            if self.length > size {
                return Err(BlobError::SizeMismatch(self.length));
            }
            if let Some(into) = &mut into {
                into.write_all(bytes).map_err(BlobError::Store)?;
                PullFailpointStep::BlobStarted.end();
            }
            self.state.write_all(bytes).map_err(BlobError::Store)?;
            self.progress.fetched(self.number, self.length);
            if let Some(unpacking) = &mut self.unpacking {
                if unpacking.write_all(bytes).is_err() {
                    return Err(self.refusal());
                }
                self.progress.unpacked(self.number, unpacking.progress());
            }
        }
    }

    /// Checks for cancellation and free space.
    fn ensure_can_continue(&self) -> Result<(), BlobError> {
        if self.halt.is_set() {
            return Err(self.halt.broken());
        }
        if self.store.has_room().map_err(BlobError::Store)? { Ok(()) } else { Err(BlobError::Full) }
    }

    /// Waits for the unpacker's result, if there is one.
    pub(super) fn finish(&mut self) -> Result<Option<UnpackedLayer>, BlobError> {
        let Some(unpacking) = self.unpacking.take() else { return Ok(None) };
        match unpacking.finish_while(|| self.ensure_can_continue().is_ok()) {
            Some(unpacked) => unpacked.map(Some).map_err(BlobError::Unpack),
            None => Err(self.ensure_can_continue().err().unwrap_or(BlobError::Full)),
        }
    }

    /// The error of an unpacker that accepts no more input.
    fn refusal(&mut self) -> BlobError {
        let outcome = self.unpacking.take().map(UnpackProcess::finish);
        let early = || UnpackError::Process(io::ErrorKind::BrokenPipe.into());
        BlobError::Unpack(outcome.and_then(Result::err).unwrap_or_else(early))
    }

    /// Verifies the digest.
    fn check(&self, blob: &Descriptor) -> Result<(), BlobError> {
        let found = self.digest();
        if found == blob.digest { Ok(()) } else { Err(BlobError::DigestMismatch(found)) }
    }

    /// The digest so far.
    fn digest(&self) -> Digest {
        self.state.clone().digest()
    }
}

// === impl BlobError ===

impl BlobError {
    /// Whether the partial file must be discarded.
    pub(super) fn must_discard_partial(&self) -> bool {
        match self {
            Self::SizeMismatch(_) | Self::DigestMismatch(_) | Self::Unpack(UnpackError::Refused(_)) => true,
            Self::Source(_) | Self::Store(_) | Self::Truncated(_) | Self::Unpack(_) | Self::Full => false,
            Self::Stopped { forever } => *forever,
        }
    }

    /// Whether the disk is full.
    pub(super) fn full(&self) -> bool {
        match self {
            Self::Store(error) => is_full(error),
            Self::Unpack(error) => matches!(error, UnpackError::Full(_)),
            Self::Full => true,
            _ => false,
        }
    }

    /// Converts it to the error that is reported.
    pub(super) fn into_error(self, store: &ImageStore, blob: &Descriptor) -> ImageStoreError {
        let (what, digest, expected) = ("layer", blob.digest, blob.size);
        match self {
            Self::Source(error) => error.into(),
            Self::Store(error) => store.failed(error),
            Self::Truncated(found) => ImageStoreError::Truncated { digest, expected, found },
            Self::SizeMismatch(found) => ImageStoreError::Size { what, digest, expected, found },
            Self::DigestMismatch(found) => ImageStoreError::Digest { what, expected: digest, found },
            Self::Unpack(source) => ImageStoreError::Unpack { blob: digest, source },
            Self::Stopped { .. } => ImageStoreError::Cancelled,
            Self::Full => store.full(),
        }
    }
}
