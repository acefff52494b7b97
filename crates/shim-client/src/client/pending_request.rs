//! A pending request.

use carrel_protocol::{DecodeError, Envelope, Flags};

use super::ShimClient;
use crate::error::ShimError;
use crate::link;
use crate::messages::Withdraw;

/// The maximum size of a response in several parts.
const MOST: usize = 64 * 1024 * 1024;

/// A request whose response is incomplete. If dropped, it is withdrawn.
pub(super) struct PendingRequest<'c> {
    client: &'c mut ShimClient,
    id: u32,
    over: bool,
    /// The bytes received so far.
    taken: usize,
}

// === impl PendingRequest ===

impl<'c> PendingRequest<'c> {
    pub(super) fn new(client: &'c mut ShimClient, id: u32) -> Self {
        Self { client, id, over: false, taken: 0 }
    }

    /// The next message of the response, decoded by `read`. Unknown messages are skipped, except for the last.
    pub(super) async fn part<T>(
        &mut self,
        read: impl Fn(&Envelope<'_>) -> Option<Result<T, DecodeError>>,
    ) -> Result<T, ShimError> {
        loop {
            let ShimClient { link, receiver, ended, .. } = &mut *self.client;
            let frame = receiver.next(link).await.inspect_err(|_| self.over = true)?;
            if let Some(received) = link::decode_end(&frame)? {
                self.over = true;
                *ended = Some(received.clone());
                return Err(ShimError::Ended(received));
            }
            if frame.id != self.id {
                continue;
            }
            self.over = frame.flags.contains(Flags::TERMINAL);
            self.taken = self.taken.saturating_add(frame.body.len());
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

    /// Collects a response in several parts; `None` marks its end. A response that exceeds the limit is an error.
    pub(super) async fn all<T>(
        &mut self,
        read: impl Fn(&Envelope<'_>) -> Option<Result<Option<Vec<T>>, DecodeError>>,
    ) -> Result<Vec<T>, ShimError> {
        let mut all = Vec::new();
        while let Some(some) = self.part(&read).await? {
            if self.taken > MOST {
                return Err(ShimError::TooLarge { max: MOST });
            }
            all.extend(some);
        }
        Ok(all)
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.over {
            // If it cannot be withdrawn, its response is skipped.
            let _withdrawn = self.client.send(&Withdraw { request: self.id });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use crate::messages::{Fact, FactKind, Hello, JournalEnd, JournalFacts, VERSION};
    use crate::{ShimClient, ShimError, encode};

    /// A shim that answers the first request with so many parts of one mebibyte, and then ends the response.
    fn respond(listener: &UnixListener, parts: usize) {
        let (mut socket, mut frame) = (listener.accept().unwrap().0, Vec::new());
        let text = String::new;
        let (name, incarnation, boot_id, release, agent_version) = (text(), text(), text(), text(), text());
        let hello = Hello { version: VERSION, release, name, incarnation, boot_id, shim_pid: 1, pid: 1, agent_version };
        encode(&mut frame, VERSION, 0, &hello).unwrap();
        socket.write_all(&frame).unwrap();
        // The request is small and arrives in one read.
        assert!(socket.read(&mut [0; 4096]).unwrap() > 0);
        let fact = Fact { message: Some("x".repeat(1 << 20)), ..Fact::new(1, FactKind::Unknown) };
        frame.clear();
        encode(&mut frame, VERSION, 1, &JournalFacts { facts: vec![fact] }).unwrap();
        // The client may disconnect first.
        let sent = (0..parts).try_for_each(|_| socket.write_all(&frame));
        frame.clear();
        encode(&mut frame, VERSION, 1, &JournalEnd { last: 1 }).unwrap();
        let _ended = sent.and_then(|()| socket.write_all(&frame));
    }

    #[tokio::test]
    async fn a_response_beyond_the_size_limit_is_rejected() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let supervisor = std::thread::spawn(move || [3, 70].map(|parts| respond(&listener, parts)));
        let mut client = ShimClient::connect(&socket).await.unwrap();
        assert_eq!(client.journal(1).await.unwrap().len(), 3);
        let mut client = ShimClient::connect(&socket).await.unwrap();
        let received = client.journal(1).await;
        assert!(
            matches!(received, Err(ShimError::TooLarge { max: super::MOST })),
            "{:?}",
            received.map(|facts| facts.len())
        );
        drop(client);
        supervisor.join().unwrap();
    }
}
