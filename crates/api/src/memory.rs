//! Limits the memory that requests and responses of each user use.
//!
//! A request is counted from its headers to the end of its response. Beyond a small allowance, received messages and
//! unread responses are charged to the user.

use std::sync::{Arc, Mutex, PoisonError};

use carrel_control::{Caller, Code, Refusal, ShareExceeded, ShareHolder, ShareLimits, SharePermit, ShareQuota};
use tonic::Status;
use tonic::codegen::http::Extensions;

use crate::status::{refused, with_reason};

/// Messages up to this size are always accepted, so that a user without memory can still stop something.
pub(crate) const ALLOWANCE: u64 = 16 << 10;
/// The memory of a file transfer: the window of the agent, its queue, and chunks that wait.
pub(crate) const TRANSFER: u64 = 768 << 10;
/// The memory of an attached exec: input that is not written yet, and output that is not read yet.
pub(crate) const ATTACHMENT: u64 = 256 << 10;

/// The limits for all users.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Concurrent requests.
    pub requests: ShareLimits,
    /// Open streams, including those whose response the client has not read.
    pub streams: ShareLimits,
    /// Bytes of messages.
    pub bytes: ShareLimits,
}

/// The memory that all users use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    requests: ShareQuota,
    streams: ShareQuota,
    bytes: ShareQuota,
}

/// The streams of one connection.
#[derive(Clone, Debug)]
pub(crate) struct StreamQuota {
    quota: ShareQuota,
    holder: ShareHolder,
}

/// The memory that one request uses. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct CallMemory(Arc<CallCharge>);

#[derive(Debug)]
struct CallCharge {
    bytes: ShareQuota,
    holder: ShareHolder,
    /// The charge of its message, until it is answered.
    message: Mutex<Option<SharePermit>>,
    _permit: SharePermit,
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

    /// Admits a request of a caller.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<CallMemory, Status> {
        let holder = ShareHolder::from(caller.namespace());
        let permit = self.requests.take(holder).map_err(|exceeded| {
            let (whose, most) = match exceeded {
                ShareExceeded::Each(most) => ("you have", most),
                ShareExceeded::Total(most) => ("all users have", most),
            };
            let message =
                format!("{whose} {most} requests and streams in progress, which is the limit; end some of them");
            refused(Refusal::new(Code::ResourceExhausted, "LIMIT_REACHED", message).about("limit", "requests"))
        })?;
        Ok(CallMemory(Arc::new(CallCharge {
            bytes: self.bytes.clone(),
            holder,
            message: Mutex::default(),
            _permit: permit,
        })))
    }

    /// The quota for the streams of a caller's connection.
    pub(crate) fn streams(&self, caller: &Caller) -> StreamQuota {
        StreamQuota { quota: self.streams.clone(), holder: caller.namespace().into() }
    }
}

// === impl StreamQuota ===

impl StreamQuota {
    /// A permit for one more stream.
    pub(crate) fn take(&self) -> Result<SharePermit, ShareExceeded> {
        self.quota.take(self.holder)
    }
}

// === impl CallMemory ===

impl CallMemory {
    /// The memory of a request, from its extensions.
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, Status> {
        // The middleware adds it to every request.
        extensions.get::<Self>().cloned().ok_or_else(|| with_reason(Status::internal("")))
    }

    /// Charges bytes, or refuses them.
    pub(crate) fn take(&self, bytes: u64) -> Result<SharePermit, Status> {
        self.0.bytes.take_many(self.0.holder, bytes).map_err(exceeded)
    }

    /// Charges more bytes to a permit, or refuses them.
    pub(crate) fn grow(permit: &mut SharePermit, bytes: u64) -> Result<(), Status> {
        permit.grow(bytes).map_err(exceeded)
    }

    /// Charges bytes beyond the limit if necessary.
    pub(crate) fn charge(&self, bytes: u64) -> SharePermit {
        self.0.bytes.charge(self.0.holder, bytes)
    }

    /// Charges a message. A small one is always accepted.
    pub(crate) fn take_message(&self, bytes: u64) -> Result<SharePermit, Status> {
        if bytes <= ALLOWANCE { Ok(self.charge(bytes)) } else { self.take(bytes) }
    }

    /// Holds the charge of its message until the request is answered. It replaces that of the previous message.
    pub(crate) fn keep(&self, message: SharePermit) {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    /// Whether the user may use this many bytes more.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.0.bytes.has_room(self.0.holder, bytes)
    }
}

fn exceeded(exceeded: ShareExceeded) -> Status {
    let (whose, most) = match exceeded {
        ShareExceeded::Each(most) => ("your requests and their answers", most),
        ShareExceeded::Total(most) => ("the requests of all users and their answers", most),
    };
    let message = format!(
        "{whose} may use {} MiB of memory, which is the limit; read answers, end transfers, or retry later",
        most >> 20
    );
    refused(Refusal::new(Code::ResourceExhausted, "LIMIT_REACHED", message).about("limit", "request_memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: u32) -> Caller {
        Caller { user, group: user, trusted: user == 0 }
    }

    //= promises.control-plane.requests-under-way
    #[test]
    fn one_user_has_1024_concurrent_requests_and_all_users_4096() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let admitted = |caller| -> Vec<_> { std::iter::from_fn(|| memory.admit(&caller).ok()).collect() };
        let held = [1, 2, 3, 4, 0].map(|number| admitted(user(number)));
        assert_eq!(held.each_ref().map(Vec::len), [1024, 1024, 1024, 512, 512]);
        drop(held);
        assert_eq!(admitted(Caller::KEY).len(), 1024, "all clients with the key are one user");
    }

    //= promises.control-plane.open-streams
    #[test]
    fn one_user_has_4096_open_streams_and_all_users_16384() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let acquire = |caller: Caller| -> Vec<_> {
            let streams = memory.streams(&caller);
            std::iter::from_fn(|| streams.take().ok()).collect()
        };
        let held = [1, 2, 3, 4, 0].map(|number| acquire(user(number)));
        assert_eq!(held.each_ref().map(Vec::len), [4096, 4096, 4096, 2048, 2048]);
    }

    //= promises.control-plane.request-memory
    #[test]
    fn one_user_has_32_mib_of_messages_transfers_and_attached_execs() {
        let memory = RequestMemory::new(MemoryLimits::default());
        let [call, other] = [1, 2].map(|number| memory.admit(&user(number)).unwrap());
        let acquire = |bytes| -> Vec<_> { std::iter::from_fn(|| call.take(bytes).ok()).collect() };
        assert_eq!([TRANSFER, ATTACHMENT, 1 << 20].map(|bytes| acquire(bytes).len()), [42, 128, 32]);
        let full = acquire(1 << 20);
        assert!(call.take_message(ALLOWANCE).is_ok() && call.take_message(ALLOWANCE + 1).is_err());
        assert!(other.take(32 << 20).is_ok());
        drop(full);
        assert!(call.take_message(32 << 20).is_ok());
    }
}
