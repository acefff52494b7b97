//! Credit between a relay and its agent (generation 11): how much of each client's bytes may be on their way.
//!
//! Published clients pace some of their streams and not others, and older ones none. Between our own two programs every
//! client has a share, so that none of them can fill the channel, the relay or the agent at the expense of another.

/// How many bytes of one client's frames may be on their way to the agent before it grants more.
pub const INPUT_WINDOW: u64 = 2 * 1024 * 1024;
/// How many bytes of frames may be on their way to one client before the relay grants more.
pub const OUTPUT_WINDOW: u64 = 64 * 1024;

/// The side that sends.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    sent: u64,
    limit: u64,
}

/// The side that receives.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    received: u64,
    limit: u64,
}

// === impl Sender ===

impl Sender {
    /// A sender that may send so much before it hears anything.
    pub const fn new(window: u64) -> Self {
        Self { sent: 0, limit: window }
    }

    /// Whether another frame may be sent. The last one may exceed the limit: frames are not cut.
    pub const fn may_send(&self) -> bool {
        self.sent < self.limit
    }

    /// Whether another frame may be sent behind so many bytes that wait to be sent before it.
    pub const fn may_send_after(&self, waiting: u64) -> bool {
        self.sent.saturating_add(waiting) < self.limit
    }

    /// Notes a frame that was sent.
    pub const fn sent(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Takes a grant. One that is older than the last changes nothing.
    pub const fn grant(&mut self, limit: u64) {
        if limit > self.limit {
            self.limit = limit;
        }
    }
}

// === impl Receiver ===

impl Receiver {
    /// A receiver whose sender may send so much before it hears anything.
    pub const fn new(window: u64) -> Self {
        Self { received: 0, limit: window }
    }

    /// Notes bytes that arrived.
    pub const fn received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
    }

    /// How much more than the limit has arrived.
    pub const fn excess(&self) -> u64 {
        self.received.saturating_sub(self.limit)
    }

    /// Whether so much has arrived that a grant may be due.
    pub const fn is_due(&self, window: u64) -> bool {
        self.received.saturating_add(window) >= self.limit.saturating_add(window / 4)
    }

    /// The next limit to be told, when `held` of what arrived still waits and so much may be on its way: nothing while
    /// there is little to tell.
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
    fn whoever_takes_everything_is_never_waited_for() {
        bolero::check!().with_type::<Vec<u32>>().for_each(|frames| {
            let (mut sender, mut receiver) = (Sender::new(OUTPUT_WINDOW), Receiver::new(OUTPUT_WINDOW));
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
    fn no_more_is_held_than_the_window_and_one_frame() {
        bolero::check!().with_type::<Vec<(u32, u16)>>().for_each(|steps| {
            let (mut sender, mut receiver) = (Sender::new(INPUT_WINDOW), Receiver::new(INPUT_WINDOW));
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
    fn a_grant_that_is_late_takes_nothing_back() {
        let mut sender = Sender::new(10);
        sender.grant(100);
        sender.grant(50);
        sender.sent(99);
        assert!(sender.may_send());
    }
}
