//! What requests and answers of each user take of the daemon's memory.
//!
//! A request holds a place from its headers to the end of its answer. Beyond a small allowance, messages that are received
//! and answers that the client has not taken are charged to its user.

use std::sync::{Arc, Mutex, PoisonError};

use carrel_control::{Caller, Code, Refusal, ShareExceeded, ShareHolder, ShareLimits, SharePermit, ShareQuota};
use tonic::Status;
use tonic::codegen::http::Extensions;

use crate::status::{explained, refused};

/// What a message may cost without regard to the limit, so that a user who has used it up can still stop something.
pub(crate) const ALLOWANCE: u64 = 16 << 10;
/// What a file that is read or written takes on its way: the window of the agent, its queue, and pieces that wait.
pub(crate) const TRANSFER: u64 = 768 << 10;
/// What an attached exec takes: input that is not taken yet, and output that is not read yet.
pub(crate) const ATTACHMENT: u64 = 256 << 10;

/// What users may take of the daemon's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Requests under way.
    pub requests: ShareLimits,
    /// Streams that are open on connections: also those that are answered, where the client has not read the answer.
    pub streams: ShareLimits,
    /// Bytes of messages.
    pub bytes: ShareLimits,
}

/// What all users take. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    requests: ShareQuota,
    streams: ShareQuota,
    bytes: ShareQuota,
}

/// What the streams of one connection take.
#[derive(Clone, Debug)]
pub(crate) struct StreamQuota {
    quota: ShareQuota,
    holder: ShareHolder,
}

/// What one request takes. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct CallMemory(Arc<Call>);

#[derive(Debug)]
struct Call {
    bytes: ShareQuota,
    holder: ShareHolder,
    /// What its message takes, for as long as it is answered.
    message: Mutex<Option<SharePermit>>,
    _place: SharePermit,
}

// === impl MemoryLimits ===

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            requests: ShareLimits { total: 4096, each: 1024, reserved: 512 },
            streams: ShareLimits { total: 4 * 4096, each: 4 * 1024, reserved: 4 * 512 },
            bytes: ShareLimits { total: 128 << 20, each: 32 << 20, reserved: 16 << 20 },
        }
    }
}

// === impl RequestMemory ===

impl RequestMemory {
    pub(crate) fn new(limits: MemoryLimits) -> Self {
        let MemoryLimits { requests, streams, bytes } = limits;
        Self { requests: ShareQuota::new(requests), streams: ShareQuota::new(streams), bytes: ShareQuota::new(bytes) }
    }

    /// Admits one more request of a caller.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<CallMemory, Status> {
        let holder = ShareHolder::from(caller.namespace());
        let place = self.requests.take(holder).map_err(|exceeded| {
            let (whose, most) = match exceeded {
                ShareExceeded::Each(most) => ("you have", most),
                ShareExceeded::Total(most) => ("all users have", most),
            };
            let words = format!("{whose} {most} requests and streams under way, which is the limit: end some of them");
            refused(Refusal::new(Code::ResourceExhausted, "LIMIT_REACHED", words).about("limit", "requests"))
        })?;
        Ok(CallMemory(Arc::new(Call { bytes: self.bytes.clone(), holder, message: Mutex::default(), _place: place })))
    }

    /// The streams of a connection of a caller.
    pub(crate) fn streams(&self, caller: &Caller) -> StreamQuota {
        StreamQuota { quota: self.streams.clone(), holder: caller.namespace().into() }
    }
}

// === impl StreamQuota ===

impl StreamQuota {
    /// A place for one more stream.
    pub(crate) fn take(&self) -> Result<SharePermit, ShareExceeded> {
        self.quota.take(self.holder)
    }
}

// === impl CallMemory ===

impl CallMemory {
    /// What the request takes, as the door counted it.
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, Status> {
        // Nothing comes in but by the door.
        extensions.get::<Self>().cloned().ok_or_else(|| explained(Status::internal("")))
    }

    /// Takes so many bytes of what the user may have.
    pub(crate) fn take(&self, bytes: u64) -> Result<SharePermit, Status> {
        self.0.bytes.take_many(self.0.holder, bytes).map_err(exceeded)
    }

    /// Takes so many bytes more for what has taken some already.
    pub(crate) fn grow(permit: &mut SharePermit, bytes: u64) -> Result<(), Status> {
        permit.grow(bytes).map_err(exceeded)
    }

    /// Counts so many bytes, whether the user may have them or not.
    pub(crate) fn charge(&self, bytes: u64) -> SharePermit {
        self.0.bytes.charge(self.0.holder, bytes)
    }

    /// Takes what a message costs: a small one is always let through.
    pub(crate) fn take_message(&self, bytes: u64) -> Result<SharePermit, Status> {
        if bytes <= ALLOWANCE { Ok(self.charge(bytes)) } else { self.take(bytes) }
    }

    /// Keeps what its message takes until the request is answered, in place of that of the message before.
    pub(crate) fn keep(&self, message: SharePermit) {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    /// Whether the user may have so many bytes more.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.0.bytes.has_room(self.0.holder, bytes)
    }
}

fn exceeded(exceeded: ShareExceeded) -> Status {
    let (whose, most) = match exceeded {
        ShareExceeded::Each(most) => ("your requests and their answers", most),
        ShareExceeded::Total(most) => ("the requests of all users and their answers", most),
    };
    let words = format!(
        "{whose} may take {} MiB of the daemon's memory, which is the limit: read answers, end transfers, or retry later",
        most >> 20
    );
    refused(Refusal::new(Code::ResourceExhausted, "LIMIT_REACHED", words).about("limit", "request_memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: u32) -> Caller {
        Caller { user, group: user, trusted: user == 0 }
    }

    //= promises.control-plane.requests-under-way
    #[test]
    fn one_user_has_1024_requests_under_way_and_all_4096() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let admitted = |caller| -> Vec<_> { std::iter::from_fn(|| memory.admit(&caller).ok()).collect() };
        let held = [1, 2, 3, 4, 0].map(|number| admitted(user(number)));
        assert_eq!(held.each_ref().map(Vec::len), [1024, 1024, 1024, 512, 512]);
        drop(held);
        assert_eq!(admitted(Caller::KEY).len(), 1024, "all that have the key are one user");
    }

    //= promises.control-plane.open-streams
    #[test]
    fn one_user_has_4096_streams_open_and_all_16384() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let taken = |caller: Caller| -> Vec<_> {
            let streams = memory.streams(&caller);
            std::iter::from_fn(|| streams.take().ok()).collect()
        };
        let held = [1, 2, 3, 4, 0].map(|number| taken(user(number)));
        assert_eq!(held.each_ref().map(Vec::len), [4096, 4096, 4096, 2048, 2048]);
    }

    //= promises.control-plane.request-memory
    #[test]
    fn one_user_has_32_mib_of_messages_transfers_and_attached_execs() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let [call, other] = [1, 2].map(|number| memory.admit(&user(number)).unwrap());
        let taken = |bytes| -> Vec<_> { std::iter::from_fn(|| call.take(bytes).ok()).collect() };
        assert_eq!([TRANSFER, ATTACHMENT, 1 << 20].map(|bytes| taken(bytes).len()), [42, 128, 32]);
        let full = taken(1 << 20);
        assert!(call.take_message(ALLOWANCE).is_ok() && call.take_message(ALLOWANCE + 1).is_err());
        assert!(other.take(32 << 20).is_ok());
        drop(full);
        assert!(call.take_message(32 << 20).is_ok());
    }
}
