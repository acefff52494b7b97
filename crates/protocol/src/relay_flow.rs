//! Credit-based flow control between a relay and its agent (generation 11).
//!
//! Published clients control the flow of some of their streams, older ones of none. Between Carrel's own relay and
//! agent every client has its own credit, so that no client can fill the channel, the relay or the agent at the expense
//! of another.

/// Bytes of one client's frames that may be in flight to the agent before it grants more.
pub const INPUT_WINDOW: u64 = 2 * 1024 * 1024;
/// Bytes of frames that may be in flight to one client before the relay grants more.
pub const OUTPUT_WINDOW: u64 = 64 * 1024;

/// The sending side of a client's credit.
#[derive(Clone, Copy, Debug)]
pub struct CreditSender {
    sent: u64,
    limit: u64,
}

/// The receiving side of a client's credit.
#[derive(Clone, Copy, Debug)]
pub struct CreditReceiver {
    received: u64,
    limit: u64,
}

// === impl CreditSender ===

impl CreditSender {
    /// Creates a sender with an initial window.
    pub const fn new(window: u64) -> Self {
        Self { sent: 0, limit: window }
    }

    /// Whether another frame may be sent. The last one may exceed the limit, because frames are not split.
    pub const fn may_send(&self) -> bool {
        self.sent < self.limit
    }

    /// Whether another frame may be sent after `waiting` queued bytes.
    pub const fn may_send_after(&self, waiting: u64) -> bool {
        self.sent.saturating_add(waiting) < self.limit
    }

    /// Records a sent frame.
    pub const fn sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Applies a grant. An outdated grant has no effect.
    pub const fn grant(&mut self, limit: u64) {
        if limit > self.limit {
            self.limit = limit;
        }
    }
}

// === impl CreditReceiver ===

impl CreditReceiver {
    /// Creates a receiver whose sender starts with one window of credit.
    pub const fn new(window: u64) -> Self {
        Self { received: 0, limit: window }
    }

    /// Records received bytes.
    pub const fn received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
    }

    /// The bytes received beyond the limit.
    pub const fn excess(&self) -> u64 {
        self.received.saturating_sub(self.limit)
    }

    /// Whether enough has been received that a grant may be due.
    pub const fn is_due(&self, window: u64) -> bool {
        self.received.saturating_add(window) >= self.limit.saturating_add(window / 4)
    }

    /// The next limit to grant while `held` received bytes are still buffered; `None` while the increase would be
    /// small.
    pub const fn grant(&mut self, held: u64, window: u64) -> Option<u64> {
        let limit = self.received.saturating_sub(held).saturating_add(window);
        if limit < self.limit.saturating_add(window / 4) {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= carrel.protocol.id-ranges-prologue-both
    //= promises.agent.channel-relay-under-way
    #[test]
    fn a_receiver_that_consumes_everything_never_stalls_its_sender() {
        bolero::check!().with_type::<Vec<u32>>().for_each(|frames| {
            let (mut sender, mut receiver) = (CreditSender::new(OUTPUT_WINDOW), CreditReceiver::new(OUTPUT_WINDOW));
            for frame in frames {
                assert!(sender.may_send(), "{sender:?} {receiver:?}");
                let bytes = u64::from(*frame) % 4_194_308;
                sender.sent(bytes);
                receiver.received(bytes);
                let due = receiver.is_due(OUTPUT_WINDOW);
                let limit = receiver.grant(0, OUTPUT_WINDOW);
                assert_eq!(limit.is_some(), due);
                limit.into_iter().for_each(|limit| sender.grant(limit));
            }
        });
    }

    //= carrel.protocol.id-ranges-prologue-both
    //= promises.agent.channel-relay-under-way
    #[test]
    fn at_most_the_window_and_one_frame_is_buffered() {
        bolero::check!().with_type::<Vec<(u32, u16)>>().for_each(|steps| {
            let (mut sender, mut receiver) = (CreditSender::new(INPUT_WINDOW), CreditReceiver::new(INPUT_WINDOW));
            let mut held = 0u64;
            for (frame, taken) in steps {
                let bytes = u64::from(*frame) % 4_194_308;
                if sender.may_send() {
                    sender.sent(bytes);
                    receiver.received(bytes);
                    held += bytes;
                }
                held = held.saturating_sub(u64::from(*taken));
                if let Some(limit) = receiver.grant(held, INPUT_WINDOW) {
                    sender.grant(limit);
                }
                assert!(held <= INPUT_WINDOW + 4_194_308);
            }
        });
    }

    #[test]
    fn an_outdated_grant_does_not_lower_the_limit() {
        let mut sender = CreditSender::new(10);
        sender.grant(100);
        sender.grant(50);
        sender.sent(99);
        assert!(sender.may_send());
    }
}
