//! Blobs: checked as they come, and kept as they came.
//!
//! What has come of a blob is kept while the rest is missing, so that a later pull goes on from its end. Whatever is
//! kept is read again before it is believed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::budget;
use super::layer::Wanted;
use super::{BLOBS, PARTIAL, Store, files};
use crate::digest::{Digest, Digesting, Hasher};
use crate::error::{StoreError, is_full};
use crate::failpoint::Phase;
use crate::lock::Lock;
use crate::manifest::Descriptor;
use crate::progress::Progress;
use crate::source::{Source, SourceError};
use crate::stop::Stop;
use crate::unpack::{UnpackError, Unpacked, Unpacking};

/// How much is read at a time.
const BUFFER: usize = 256 << 10;

/// What recorded images have: it was on the disk before they were recorded.
pub(super) struct Known {
    pub(super) layers: HashSet<Digest>,
    pub(super) blobs: HashSet<Digest>,
    /// An image of which nobody can say what it has.
    pub(super) damaged: Option<Digest>,
}

/// Why a layer is not needed any more: whoever wanted the image does not, or another layer has failed.
pub(super) struct Halt<'a> {
    asked: &'a Stop,
    failed: AtomicBool,
    /// Whether no other attempt will need it.
    forever: AtomicBool,
}

/// The bytes of a blob on their way.
pub(super) struct Flow<'a> {
    store: &'a Store,
    /// What they are unpacked by, if they are.
    pub(super) unpacking: Option<Unpacking>,
    pub(super) progress: &'a dyn Progress,
    /// Which layer it is, for the progress.
    pub(super) number: usize,
    halt: &'a Halt<'a>,
    state: Hasher,
    length: u64,
}

/// Why bytes do not arrive.
#[derive(Debug)]
pub(super) enum Broken {
    /// Where they come from.
    From(SourceError),
    /// Where they go.
    Into(io::Error),
    /// They end too early, after so many.
    Cut(u64),
    /// There are not as many as is said, but so many, or more.
    Length(u64),
    /// They are others.
    Other(Digest),
    /// They are not what can be unpacked.
    Unpack(UnpackError),
    /// Nobody needs them now, or ever.
    Stopped { forever: bool },
    /// There is no room for them.
    Full,
}

// === impl Store ===

impl Store {
    /// What recorded images have.
    pub(super) fn known(&self) -> Result<Known, StoreError> {
        let records = self.records()?;
        Ok(Known { layers: records.places(), blobs: records.blobs(), damaged: records.damaged.first().copied() })
    }

    /// Whether the disk has room for more.
    pub(super) fn has_room(&self) -> io::Result<bool> {
        budget::has_room(&self.handle)
    }

    pub(super) fn full(&self) -> StoreError {
        StoreError::Full(self.path.clone())
    }

    /// A configuration, which is small: from the store, or else from the source.
    pub(super) fn small(&self, blob: &Descriptor, largest: u64, source: &dyn Source) -> Result<Vec<u8>, StoreError> {
        let path = format!("{BLOBS}/{}", blob.digest.hex());
        let kept = files::read(&self.handle, &path).map_err(|error| self.failed(error))?;
        if let Some(kept) = kept.filter(|kept| Digest::of(kept) == blob.digest) {
            return Ok(kept);
        }
        let what = "configuration";
        let mut bytes = Vec::new();
        let reader = source.blob(blob, 0)?;
        // One byte more than is expected tells that it is too long.
        let bound = blob.size.min(largest).saturating_add(1);
        reader.take(bound).read_to_end(&mut bytes).map_err(SourceError::System)?;
        let (expected, found) = (blob.size, bytes.len() as u64);
        if found != expected {
            return Err(StoreError::Size { what, digest: blob.digest, expected, found });
        }
        let found = Digest::of(&bytes);
        if found != blob.digest {
            return Err(StoreError::Digest { what, expected: blob.digest, found });
        }
        Ok(bytes)
    }

    /// Keeps a manifest or a configuration.
    pub(super) fn keep_small(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let (blobs, name) = (self.directory(BLOBS)?, Digest::of(bytes).hex());
        let kept = files::read(&blobs, &name).map_err(|error| self.failed(error))?;
        if kept.as_deref() == Some(bytes) {
            return Ok(());
        }
        let lock = Lock::take(&self.directory(PARTIAL)?, &name).map_err(|error| self.failed(error))?;
        let write = || -> io::Result<()> {
            let mut file = File::from(lock.file.try_clone()?);
            file.set_len(0)?;
            file.write_all(bytes)
        };
        write().and_then(|()| lock.keep(blobs, &name)).map_err(|error| self.failed(error))
    }

    /// Whether a blob is here as a whole. One that no image has is read to find out, unless it is read anyway.
    pub(super) fn has(&self, blob: &Descriptor, known: &Known, read: bool) -> io::Result<bool> {
        let path = format!("{BLOBS}/{}", blob.digest.hex());
        let Some(mut file) = files::open(&self.handle, &path)? else { return Ok(false) };
        let whole = file.metadata()?.len() == blob.size;
        if whole && (known.blobs.contains(&blob.digest) || !read) {
            return Ok(true);
        }
        let mut digesting = Digesting::new(&mut file);
        if whole && io::copy(&mut digesting, &mut io::sink())? == blob.size && digesting.digest() == blob.digest {
            return Ok(true);
        }
        files::unlink(&self.handle, &path)?;
        Ok(false)
    }

    /// Sends a blob that is here through a flow, and checks it.
    pub(super) fn again(&self, blob: &Descriptor, flow: &mut Flow<'_>) -> Result<(), Broken> {
        let file = files::open(&self.handle, &format!("{BLOBS}/{}", blob.digest.hex())).map_err(Broken::Into)?;
        let file = file.ok_or_else(|| Broken::Into(io::ErrorKind::NotFound.into()))?;
        flow.take(file, blob.size, None, Broken::Into)?;
        flow.check(blob)
    }

    /// Fetches a blob into the file that is locked, from where that ends, and checks it.
    pub(super) fn fetch(
        &self,
        blob: &Descriptor,
        lock: &Lock,
        source: &dyn Source,
        flow: &mut Flow<'_>,
    ) -> Result<(), Broken> {
        let mut file = File::from(lock.file.try_clone().map_err(Broken::Into)?);
        let mut have = file.metadata().map_err(Broken::Into)?.len();
        if have > blob.size {
            file.set_len(0).map_err(Broken::Into)?;
            have = 0;
        }
        file.rewind().map_err(Broken::Into)?;
        flow.take((&file).take(have), have, None, Broken::Into)?;
        if have < blob.size {
            Phase::BlobBegun.begin();
            let reader = source.blob(blob, have).map_err(Broken::From)?;
            let outcome = flow.take(reader, blob.size, Some(&file), |error| Broken::From(error.into()));
            // One that has no more, or is whole, ends where it has to: then it is its length that is not true.
            let whole = |length| (length == have && have > 0) || flow.digest() == blob.digest;
            outcome.map_err(|broken| match broken {
                Broken::Cut(length) if whole(length) => Broken::Length(length),
                broken => broken,
            })?;
        }
        flow.check(blob)
    }
}

// === impl Halt ===

impl<'a> Halt<'a> {
    pub(super) fn new(asked: &'a Stop) -> Self {
        Self { asked, failed: AtomicBool::new(false), forever: AtomicBool::new(false) }
    }

    pub(super) fn is_set(&self) -> bool {
        self.asked.is_said() || self.failed.load(Ordering::Relaxed)
    }

    /// Notes that a layer has failed.
    pub(super) fn fail(&self, forever: bool) {
        self.forever.fetch_or(forever, Ordering::Relaxed);
        self.failed.store(true, Ordering::Relaxed);
    }

    fn broken(&self) -> Broken {
        Broken::Stopped { forever: self.forever.load(Ordering::Relaxed) }
    }
}

// === impl Flow ===

impl<'a> Flow<'a> {
    pub(super) fn new(store: &'a Store, wanted: &Wanted<'a>, unpacking: Option<Unpacking>) -> Self {
        let Wanted { progress, number, halt, .. } = *wanted;
        Self { store, unpacking, progress, number, halt, state: Hasher::default(), length: 0 }
    }

    /// Takes bytes until there are so many in all, and no more.
    fn take(
        &mut self,
        mut from: impl Read,
        size: u64,
        mut into: Option<&File>,
        failed: impl Fn(io::Error) -> Broken,
    ) -> Result<(), Broken> {
        let mut buffer = vec![0; BUFFER];
        loop {
            self.goes_on()?;
            let read = match from.read(&mut buffer) {
                Ok(0) => return if self.length < size { Err(Broken::Cut(self.length)) } else { Ok(()) },
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let bytes = buffer.get(..read).unwrap_or_default();
            self.length = self.length.saturating_add(read as u64);
            if self.length > size {
                return Err(Broken::Length(self.length));
            }
            if let Some(into) = &mut into {
                into.write_all(bytes).map_err(Broken::Into)?;
                Phase::BlobBegun.end();
            }
            self.state.write_all(bytes).map_err(Broken::Into)?;
            self.progress.fetched(self.number, self.length);
            if let Some(unpacking) = &mut self.unpacking {
                if unpacking.write_all(bytes).is_err() {
                    return Err(self.refusal());
                }
                self.progress.unpacked(self.number, unpacking.progress());
            }
        }
    }

    /// Whether there is a reason to go on, and room.
    fn goes_on(&self) -> Result<(), Broken> {
        if self.halt.is_set() {
            return Err(self.halt.broken());
        }
        if self.store.has_room().map_err(Broken::Into)? { Ok(()) } else { Err(Broken::Full) }
    }

    /// Waits for what all of it unpacks to, if it is unpacked.
    pub(super) fn finish(&mut self) -> Result<Option<Unpacked>, Broken> {
        let Some(unpacking) = self.unpacking.take() else { return Ok(None) };
        match unpacking.finish_while(|| self.goes_on().is_ok()) {
            Some(unpacked) => unpacked.map(Some).map_err(Broken::Unpack),
            None => Err(self.goes_on().err().unwrap_or(Broken::Full)),
        }
    }

    /// What the unpacker says that takes no more.
    fn refusal(&mut self) -> Broken {
        let outcome = self.unpacking.take().map(Unpacking::finish);
        let early = || UnpackError::Process(io::ErrorKind::BrokenPipe.into());
        Broken::Unpack(outcome.and_then(Result::err).unwrap_or_else(early))
    }

    /// Whether all that came is the blob.
    fn check(&self, blob: &Descriptor) -> Result<(), Broken> {
        let found = self.digest();
        if found == blob.digest { Ok(()) } else { Err(Broken::Other(found)) }
    }

    /// The digest of all that came.
    fn digest(&self) -> Digest {
        self.state.clone().digest()
    }
}

// === impl Broken ===

impl Broken {
    /// Whether what came is of no use for going on.
    pub(super) fn spoiled(&self) -> bool {
        match self {
            Self::Length(_) | Self::Other(_) | Self::Unpack(UnpackError::Refused(_)) => true,
            Self::From(_) | Self::Into(_) | Self::Cut(_) | Self::Unpack(_) | Self::Full => false,
            Self::Stopped { forever } => *forever,
        }
    }

    /// Whether it was the disk that had no room.
    pub(super) fn full(&self) -> bool {
        match self {
            Self::Into(error) => is_full(error),
            Self::Unpack(error) => matches!(error, UnpackError::Full(_)),
            Self::Full => true,
            _ => false,
        }
    }

    /// What is told of it.
    pub(super) fn told(self, store: &Store, blob: &Descriptor) -> StoreError {
        let (what, digest, expected) = ("layer", blob.digest, blob.size);
        match self {
            Self::From(error) => error.into(),
            Self::Into(error) => store.failed(error),
            Self::Cut(found) => StoreError::Cut { digest, expected, found },
            Self::Length(found) => StoreError::Size { what, digest, expected, found },
            Self::Other(found) => StoreError::Digest { what, expected: digest, found },
            Self::Unpack(source) => StoreError::Unpack { blob: digest, source },
            Self::Stopped { .. } => StoreError::Stopped,
            Self::Full => store.full(),
        }
    }
}
