//! A request that is under way.

use carrel_protocol::{DecodeError, Envelope, Flags};

use super::ShimClient;
use crate::error::ShimError;
use crate::link;
use crate::messages::Withdraw;

/// A request whose answer is not complete. When it is dropped before that, it is withdrawn.
pub(super) struct Asked<'c> {
    client: &'c mut ShimClient,
    id: u32,
    over: bool,
}

// === impl Asked ===

impl<'c> Asked<'c> {
    pub(super) fn new(client: &'c mut ShimClient, id: u32) -> Self {
        Self { client, id, over: false }
    }

    /// The next message of the answer, as `read` understands it. What it does not know is passed over, unless it is the
    /// last.
    pub(super) async fn part<T>(
        &mut self,
        read: impl Fn(&Envelope<'_>) -> Option<Result<T, DecodeError>>,
    ) -> Result<T, ShimError> {
        loop {
            let ShimClient { link, arrivals, ended, .. } = &mut *self.client;
            let frame = arrivals.next(link).await.inspect_err(|_| self.over = true)?;
            if let Some(told) = link::end_told(&frame)? {
                self.over = true;
                *ended = Some(told.clone());
                return Err(ShimError::Ended(told));
            }
            if frame.id != self.id {
                continue;
            }
            self.over = frame.flags.contains(Flags::TERMINAL);
            let envelope = Envelope::parse(frame.body)?;
            if let Some(failed) = link::refusal(&envelope)? {
                return Err(ShimError::Failed(failed));
            }
            match read(&envelope) {
                Some(part) => return Ok(part?),
                None if self.over => return Err(link::unexpected(&envelope).into()),
                None => {}
            }
        }
    }

    /// All of an answer that comes in parts; `None` stands for its end.
    pub(super) async fn all<T>(
        &mut self,
        read: impl Fn(&Envelope<'_>) -> Option<Result<Option<Vec<T>>, DecodeError>>,
    ) -> Result<Vec<T>, ShimError> {
        let mut all = Vec::new();
        while let Some(some) = self.part(&read).await? {
            all.extend(some);
        }
        Ok(all)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.over {
            // Where it cannot be withdrawn, its answer is passed over.
            let _withdrawn = self.client.send(&Withdraw { request: self.id });
        }
    }
}
