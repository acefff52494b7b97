//! Flow control of commands (generation 10): how much output and input may be in flight.

use crate::payload::ExecLimits;

/// The fixed charge of each chunk of output, so that many small chunks are bounded too.
pub const OUTPUT_CHUNK_CHARGE: u64 = 256;
/// The largest frame of an acknowledgement, signal or resize.
pub const MAX_CONTROL_FRAME: usize = 4096;

/// The guest's view of one command's output: what was sent, and what the host consumed.
#[derive(Debug)]
pub struct OutputWindow {
    limit: u64,
    charged: u64,
    consumed: u64,
}

/// The guest's view of one command's input: what was received, and what the command consumed.
#[derive(Debug, Default)]
pub struct InputWindow {
    received: u64,
    consumed: u64,
}

/// A violation of flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecFlowError {
    /// An acknowledgement of unsent bytes, or one that goes backwards.
    #[error("acknowledged {acknowledged} of {charged} sent bytes")]
    BadAcknowledgement {
        /// The acknowledged total.
        acknowledged: u64,
        /// The sent total, with charges.
        charged: u64,
    },
    /// A chunk is too large.
    #[error("chunk of {len} bytes exceeds the limit of {limit}")]
    ChunkTooLarge {
        /// The length of the chunk.
        len: usize,
        /// The maximum length.
        limit: u32,
    },
    /// Too much input is outstanding.
    #[error("{outstanding} bytes of input are outstanding, {limit} are allowed")]
    TooMuchInput {
        /// The outstanding bytes, with this chunk.
        outstanding: u64,
        /// The maximum.
        limit: u32,
    },
}

/// An execution limit that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("execution limit {0} is out of bounds")]
pub struct InvalidExecLimits(&'static str);

// === impl ExecLimits ===

impl ExecLimits {
    /// The limits of the published protocol.
    pub const DEFAULT: Self = Self {
        max_executions: 128,
        input_limit: 64 * 1024,
        output_limit: 1024 * 1024,
        stdin_chunk_size: 16 * 1024,
        output_chunk_size: 16 * 1024,
    };

    /// Rejects limits that would stall every command, or let an agent buffer too much.
    pub fn check(self) -> Result<Self, InvalidExecLimits> {
        let mebibyte = 1024 * 1024;
        let within = |name, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(InvalidExecLimits(name)) }
        };
        within("max_executions", self.max_executions, 1, 4096)?;
        within("input_limit", self.input_limit, 1, mebibyte)?;
        within("stdin_chunk_size", self.stdin_chunk_size, 1, self.input_limit)?;
        within("output_chunk_size", self.output_chunk_size, 1, mebibyte)?;
        within("output_limit", self.output_limit, self.output_chunk_size.saturating_add(256), 64 * mebibyte)?;
        Ok(self)
    }
}

// === impl OutputWindow ===

impl OutputWindow {
    /// Creates a window with the given limits.
    pub fn new(limits: &ExecLimits) -> Self {
        Self { limit: limits.output_limit.into(), charged: 0, consumed: 0 }
    }

    /// The maximum length of the next chunk.
    pub fn available(&self) -> usize {
        let free = self.limit.saturating_sub(self.charged - self.consumed);
        usize::try_from(free.saturating_sub(OUTPUT_CHUNK_CHARGE)).unwrap_or(usize::MAX)
    }

    /// Charges a chunk that is sent.
    pub fn charge(&mut self, len: usize) {
        self.charged = self.charged.saturating_add(len as u64).saturating_add(OUTPUT_CHUNK_CHARGE);
    }

    /// Applies an acknowledgement; a repeated one has no effect.
    pub fn acknowledge(&mut self, consumed: u64) -> Result<(), ExecFlowError> {
        if consumed < self.consumed || consumed > self.charged {
            return Err(ExecFlowError::BadAcknowledgement { acknowledged: consumed, charged: self.charged });
        }
        self.consumed = consumed;
        Ok(())
    }
}

// === impl InputWindow ===

impl InputWindow {
    /// Accepts a chunk if it is within the limits.
    pub fn receive(&mut self, len: usize, limits: &ExecLimits) -> Result<(), ExecFlowError> {
        if len as u64 > u64::from(limits.stdin_chunk_size) {
            return Err(ExecFlowError::ChunkTooLarge { len, limit: limits.stdin_chunk_size });
        }
        let outstanding = self.received - self.consumed + len as u64;
        if outstanding > u64::from(limits.input_limit) {
            return Err(ExecFlowError::TooMuchInput { outstanding, limit: limits.input_limit });
        }
        self.received += len as u64;
        Ok(())
    }

    /// Records that the command consumed `len` bytes; returns the total to acknowledge.
    pub fn consume(&mut self, len: usize) -> u64 {
        self.consumed = self.consumed.saturating_add(len as u64).min(self.received);
        self.consumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.protocol.output-command-without-acknowledgement
    #[test]
    fn the_published_window_stalls_after_sixty_three_full_chunks() {
        let limits = ExecLimits::DEFAULT.check().unwrap();
        let mut window = OutputWindow::new(&limits);
        let mut chunks = 0;
        while window.available() >= limits.output_chunk_size as usize {
            window.charge(limits.output_chunk_size as usize);
            chunks += 1;
        }
        assert_eq!((chunks, window.charged), (63, 1_048_320));
        window.acknowledge(16_640).unwrap();
        assert_eq!(window.available(), 16_640);
    }

    //= carrel.protocol.acknowledgements-limits-checked-types
    #[test]
    fn an_acknowledgement_never_goes_backwards_nor_exceeds_what_was_sent() {
        let mut window = OutputWindow::new(&ExecLimits::DEFAULT);
        window.charge(100);
        assert!(window.acknowledge(357).is_err());
        assert_eq!(window.acknowledge(356), Ok(()));
        assert_eq!(window.acknowledge(356), Ok(()));
        assert!(window.acknowledge(355).is_err());
    }

    //= carrel.protocol.acknowledgements-limits-checked-types
    //= promises.protocol.input-command-without-acknowledgement
    #[test]
    fn input_beyond_the_limits_is_rejected() {
        let limits = ExecLimits::DEFAULT;
        let mut window = InputWindow::default();
        assert!(matches!(window.receive(16_385, &limits), Err(ExecFlowError::ChunkTooLarge { .. })));
        for _ in 0..4 {
            window.receive(16_384, &limits).unwrap();
        }
        assert!(matches!(window.receive(1, &limits), Err(ExecFlowError::TooMuchInput { .. })));
        assert_eq!(window.consume(10), 10);
        assert_eq!(window.receive(10, &limits), Ok(()));
    }

    //= carrel.protocol.acknowledgements-limits-checked-types
    #[test]
    fn limits_that_would_stall_every_command_are_rejected() {
        let tight = ExecLimits { output_limit: 16 * 1024, ..ExecLimits::DEFAULT };
        assert_eq!(tight.check(), Err(InvalidExecLimits("output_limit")));
        assert!(ExecLimits { max_executions: 0, ..ExecLimits::DEFAULT }.check().is_err());
        assert!(ExecLimits { stdin_chunk_size: 65_537, ..ExecLimits::DEFAULT }.check().is_err());
    }
}
