//! The order in which a job wrote to its two outputs, as far as it is remembered.

use std::collections::VecDeque;

use carrel_shim_client::messages::StreamName;

/// The maximum number of remembered switches between the outputs.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct OutputOrder {
    /// The offset of each output before which the order is unknown.
    before: [u64; 2],
    /// Runs: which output was written, and up to where.
    turns: VecDeque<(StreamName, u64)>,
}

/// The index of an output in a pair.
pub(crate) fn index(stream: StreamName) -> usize {
    match stream {
        StreamName::Stdout => 0,
        StreamName::Stderr => 1,
    }
}

// === impl OutputOrder ===

impl OutputOrder {
    /// Records that an output was written up to an offset.
    pub(crate) fn note(&mut self, stream: StreamName, end: u64) {
        match self.turns.back_mut() {
            Some((last, until)) if *last == stream => *until = end,
            _ => self.turns.push_back((stream, end)),
        }
        if self.turns.len() > MOST
            && let Some((stream, end)) = self.turns.pop_front()
            && let Some(before) = self.before.get_mut(index(stream))
        {
            *before = end;
        }
    }

    /// The stored form: unknown prefix, whether standard error comes first after it, and the runs.
    pub(crate) fn archived(&self) -> (Vec<u64>, bool, Vec<u64>) {
        let stderr_first = self.turns.front().is_some_and(|(stream, _)| *stream == StreamName::Stderr);
        (self.before.to_vec(), stderr_first, self.turns.iter().map(|(_, end)| *end).collect())
    }

    /// Restores the order from its stored form, in which the outputs alternate.
    pub(crate) fn recalled(before: &[u64], stderr_first: bool, turns: &[u64]) -> Self {
        let streams = [StreamName::Stdout, StreamName::Stderr].into_iter().cycle().skip(usize::from(stderr_first));
        let before = [0, 1].map(|stream| before.get(stream).copied().unwrap_or(0));
        Self { before, turns: streams.zip(turns.iter().copied()).collect() }
    }

    /// What comes next for a reader at these offsets: which output, and up to where.
    pub(crate) fn next(&self, at: [Option<u64>; 2]) -> Option<(StreamName, u64)> {
        let wants = |stream, end: u64| at.get(index(stream)).copied().flatten().is_some_and(|at| at < end);
        let old = [(StreamName::Stdout, self.before[0]), (StreamName::Stderr, self.before[1])];
        old.into_iter().chain(self.turns.iter().copied()).find(|(stream, end)| wants(*stream, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_outputs_are_read_in_the_order_in_which_they_were_written() {
        let (mut order, mut wrote) = (OutputOrder::default(), [0, 0]);
        let mut write = |order: &mut OutputOrder, stream, bytes: u64| {
            wrote[index(stream)] += bytes;
            order.note(stream, wrote[index(stream)]);
        };
        write(&mut order, StreamName::Stdout, 3);
        write(&mut order, StreamName::Stdout, 2);
        write(&mut order, StreamName::Stderr, 7);
        write(&mut order, StreamName::Stdout, 1);
        assert_eq!(order.next([Some(0), Some(0)]), Some((StreamName::Stdout, 5)));
        assert_eq!(order.next([Some(5), Some(0)]), Some((StreamName::Stderr, 7)));
        assert_eq!(order.next([Some(5), Some(7)]), Some((StreamName::Stdout, 6)));
        assert_eq!(order.next([Some(5), None]), Some((StreamName::Stdout, 6)));
        assert_eq!(order.next([Some(6), Some(7)]), None);
        assert_eq!(order.next([None, Some(2)]), Some((StreamName::Stderr, 7)));
        let (before, stderr_first, turns) = order.archived();
        assert_eq!(OutputOrder::recalled(&before, stderr_first, &turns).turns, order.turns);
    }

    //= promises.jobs.bytes-output
    #[test]
    fn output_of_unknown_order_is_read_one_stream_after_the_other() {
        let mut order = OutputOrder::default();
        for number in 1..=1000 {
            order.note(StreamName::Stdout, number);
            order.note(StreamName::Stderr, number);
        }
        let mut at = [Some(0), Some(0)];
        let mut runs = 0;
        while let Some((stream, end)) = order.next(at) {
            at[index(stream)] = Some(end);
            runs += 1;
        }
        assert_eq!((at, runs), ([Some(1000), Some(1000)], MOST + 2));
    }
}
