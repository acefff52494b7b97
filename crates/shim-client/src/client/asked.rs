//! A request that is under way.

use carrel_protocol::{DecodeError, Envelope, Flags};

use super::ShimClient;
use crate::error::ShimError;
use crate::link;
use crate::messages::Withdraw;

/// The most bytes of an answer that comes in parts.
const MOST: usize = 64 * 1024 * 1024;

/// A request whose answer is not complete. When it is dropped before that, it is withdrawn.
pub(super) struct Asked<'c> {
    client: &'c mut ShimClient,
    id: u32,
    over: bool,
    /// How many bytes of the answer have come.
    taken: usize,
}

// === impl Asked ===

impl<'c> Asked<'c> {
    pub(super) fn new(client: &'c mut ShimClient, id: u32) -> Self {
        Self { client, id, over: false, taken: 0 }
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

    /// All of an answer that comes in parts; `None` stands for its end. A supervisor that never comes to one is not heard
    /// out.
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

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.over {
            // Where it cannot be withdrawn, its answer is passed over.
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

    /// A supervisor that answers the first request with so many parts of a mebibyte, and then ends the answer.
    fn talk(listener: &UnixListener, parts: usize) {
        let (mut socket, mut frame) = (listener.accept().unwrap().0, Vec::new());
        let text = String::new;
        let (name, incarnation, boot_id, release, agent_version) = (text(), text(), text(), text(), text());
        let hello = Hello { version: VERSION, release, name, incarnation, boot_id, shim_pid: 1, pid: 1, agent_version };
        encode(&mut frame, VERSION, 0, &hello).unwrap();
        socket.write_all(&frame).unwrap();
        // It is small, and comes whole.
        assert!(socket.read(&mut [0; 4096]).unwrap() > 0);
        let fact = Fact { message: Some("x".repeat(1 << 20)), ..Fact::new(1, FactKind::Unknown) };
        frame.clear();
        encode(&mut frame, VERSION, 1, &JournalFacts { facts: vec![fact] }).unwrap();
        // Whoever has heard enough goes.
        let sent = (0..parts).try_for_each(|_| socket.write_all(&frame));
        frame.clear();
        encode(&mut frame, VERSION, 1, &JournalEnd { last: 1 }).unwrap();
        let _ended = sent.and_then(|()| socket.write_all(&frame));
    }

    #[tokio::test]
    async fn an_answer_that_does_not_end_is_not_heard_out() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let supervisor = std::thread::spawn(move || [3, 70].map(|parts| talk(&listener, parts)));
        let mut client = ShimClient::connect(&socket).await.unwrap();
        assert_eq!(client.journal(1).await.unwrap().len(), 3);
        let mut client = ShimClient::connect(&socket).await.unwrap();
        let told = client.journal(1).await;
        assert!(matches!(told, Err(ShimError::TooLarge { max: super::MOST })), "{:?}", told.map(|facts| facts.len()));
        drop(client);
        supervisor.join().unwrap();
    }
}
