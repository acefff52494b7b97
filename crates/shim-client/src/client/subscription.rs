//! A stream of a sandbox's facts.

use carrel_protocol::{Envelope, Flags};

use crate::error::ShimError;
use crate::link::{self, FrameReceiver, ShimLink};
use crate::messages::{Fact, JournalEnd, JournalFacts, SandboxEnd};
use crate::wire;

/// The facts of a sandbox's journal until it ends.
#[derive(Debug)]
pub struct Subscription {
    link: ShimLink,
    receiver: FrameReceiver,
    id: u32,
    /// How the sandbox ended, once it has.
    over: Option<Result<(), ShimError>>,
    ended: Option<SandboxEnd>,
}

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(link: ShimLink, receiver: FrameReceiver, id: u32) -> Self {
        Self { link, receiver, id, over: None, ended: None }
    }

    /// The next facts; `None` when the sandbox has ended. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Fact>>, ShimError> {
        if let Some(over) = &self.over {
            return over.clone().map(|()| None);
        }
        let next = self.advance().await;
        match &next {
            Ok(Some(_)) => {}
            Ok(None) => self.over = Some(Ok(())),
            Err(error) => self.over = Some(Err(error.clone())),
        }
        next
    }

    /// How the sandbox ended, once it has.
    pub fn ended(&self) -> Option<&SandboxEnd> {
        self.ended.as_ref()
    }

    async fn advance(&mut self) -> Result<Option<Vec<Fact>>, ShimError> {
        loop {
            let frame = self.receiver.next(&self.link).await?;
            if let Some(ended) = link::decode_end(&frame)? {
                self.ended = Some(ended);
                return Ok(None);
            }
            if frame.id != self.id {
                continue;
            }
            let envelope = Envelope::parse(frame.body)?;
            if let Some(failed) = link::refusal(&envelope)? {
                return Err(ShimError::Failed(failed));
            }
            if let Some(facts) = wire::decode(&envelope) {
                let JournalFacts { facts } = facts?;
                return Ok(Some(facts));
            }
            if let Some(end) = wire::decode::<JournalEnd>(&envelope) {
                return Ok(end.map(|_| None)?);
            }
            if frame.flags.contains(Flags::TERMINAL) {
                return Err(link::unexpected(&envelope).into());
            }
        }
    }
}
