//! A followed job, on its own connection.

mod control;
mod shared;

use std::sync::Arc;

use carrel_protocol::{Envelope, Flags, Frame};

pub use self::control::JobControl;
use self::shared::{FollowEnd, FollowShared};
use crate::error::ShimError;
use crate::link::{self, FrameReceiver, ShimLink};
use crate::messages::{JobEnded, JobInfo, JobInput, JobOutput, JobOutputGap, StreamName};
use crate::wire;

/// The output of a job until it ends.
///
/// [`Self::next`] is the only reader of the connection: requests of a [`JobControl`] are sent and answered while it is
/// polled, and fail when this is dropped.
#[derive(Debug)]
pub struct Follow {
    shared: Arc<FollowShared>,
    receiver: FrameReceiver,
    id: u32,
}

/// An event of a followed job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "only one exists at a time")]
pub enum FollowEvent {
    /// It wrote output.
    Output {
        stream: StreamName,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A part of its output is no longer kept.
    Cut(JobOutputGap),
    /// This connection acquired or lost its input.
    Input(JobInput),
    /// It has ended, and all requested output was delivered.
    Ended(JobInfo),
}

// === impl Follow ===

impl Follow {
    pub(crate) fn new(link: ShimLink, receiver: FrameReceiver, version: u8, id: u32, job: String) -> Self {
        Self { shared: Arc::new(FollowShared::new(link, version, id, job)), receiver, id }
    }

    /// The next event; `None` after the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, ShimError> {
        match self.shared.end_of_follow() {
            Some(FollowEnd::Ended(_)) => return Ok(None),
            Some(FollowEnd::Lost(error)) => return Err(error),
            None => {}
        }
        let event = self.advance().await;
        match &event {
            Ok(FollowEvent::Ended(info)) => self.shared.end(FollowEnd::Ended(info.clone().into())),
            Ok(_) => {}
            Err(error) => self.shared.end(FollowEnd::Lost(error.clone())),
        }
        event.map(Some)
    }

    /// A handle to control the job meanwhile.
    pub fn control(&self) -> JobControl {
        JobControl::new(Arc::clone(&self.shared))
    }

    async fn advance(&mut self) -> Result<FollowEvent, ShimError> {
        loop {
            let frame = self.receiver.next(&self.shared.link).await?;
            if let Some(ended) = link::decode_end(&frame)? {
                return Err(ShimError::Ended(ended));
            }
            if frame.id != self.id {
                self.shared.answer(&frame);
            } else if let Some(event) = event(&frame)? {
                return Ok(event);
            }
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        // A control may still hold the connection, so it is shut down explicitly.
        self.shared.end(FollowEnd::Lost(ShimError::Gone));
        self.shared.link.shut_down();
    }
}

// === impl FollowEvent ===

/// The event in a frame; `None` for an unknown message of a newer shim.
fn event(frame: &Frame<'_>) -> Result<Option<FollowEvent>, ShimError> {
    let envelope = Envelope::parse(frame.body)?;
    if let Some(output) = wire::decode(&envelope) {
        let JobOutput { stream, offset, data } = output?;
        return Ok(Some(FollowEvent::Output { stream, offset, data: data.into_owned() }));
    }
    if let Some(cut) = wire::decode(&envelope) {
        return Ok(Some(FollowEvent::Cut(cut?)));
    }
    if let Some(input) = wire::decode(&envelope) {
        return Ok(Some(FollowEvent::Input(input?)));
    }
    if let Some(ended) = wire::decode(&envelope) {
        let JobEnded { info } = ended?;
        return Ok(Some(FollowEvent::Ended(info)));
    }
    if let Some(failed) = link::refusal(&envelope)? {
        return Err(ShimError::Failed(failed));
    }
    if frame.flags.contains(Flags::TERMINAL) {
        return Err(link::unexpected(&envelope).into());
    }
    Ok(None)
}
