//! A job that has ended, as it is written down while it is not in memory.
#![allow(unreachable_pub, reason = "records are declared for all")]

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_protocol::record;
use carrel_shim_client::messages::{JobCommand, JobInfo, JobStream, StreamName};

use super::Key;
use super::job::Job;
use super::order::Order;
use super::output::Stream;
use crate::log::wall_ms;

record! {
    /// A job that has ended.
    pub struct ArchivedJob {
        /// What is told of it.
        info: JobInfo => required,
        /// Its place among all jobs.
        key: u64 => required,
        /// Of its command.
        trace: u64 => required,
        /// Its outputs: standard output, then standard error.
        streams: Vec<ArchivedStream> => required,
        /// Up to where each output is older than what follows.
        before: Vec<u64> => default,
        /// Whether standard error was written first of what follows.
        stderr_first: bool => default,
        /// Up to where one output was written, and then the other, by turns.
        turns: Vec<u64> => default,
    }

    /// One output.
    #[derive(Copy)]
    pub struct ArchivedStream {
        /// How much of its beginning is kept.
        head: u64 => required,
        /// How many bytes were written.
        length: u64 => required,
        /// Whether something behind the head is not kept.
        cut: bool => default,
        /// Where the end begins, and where it is in the file.
        tail_from: Option<u64> => omitted,
        tail_at: Option<u64> => omitted,
        /// How much of the disk it takes.
        charged: u64 => default,
    }
}

/// When something happened, by the clock that does not jump.
pub(super) fn instant_of(at_ms: u64) -> Instant {
    let (now, past) = (Instant::now(), Duration::from_millis(wall_ms().saturating_sub(at_ms)));
    now.checked_sub(past).unwrap_or(now)
}

// === impl ArchivedJob ===

impl ArchivedJob {
    /// One that has ended.
    pub(super) fn of(job: &Job, key: Key, trace: u64) -> Self {
        let mut info = job.info(Path::new(""));
        // Where it is kept is known.
        (info.stdout, info.stderr, info.viewers) = (JobStream::default(), JobStream::default(), 0);
        let (before, stderr_first, turns) = job.order.archived();
        let streams = job.streams.iter().map(Stream::archived).collect();
        Self { info, key, trace, streams, before, stderr_first, turns }
    }

    /// How much of the disk its outputs take.
    pub(super) fn charged(&self) -> u64 {
        self.streams.iter().map(|stream| stream.charged).sum()
    }

    /// When it ended.
    pub(super) fn ended(&self) -> Instant {
        instant_of(self.info.ended_ms.unwrap_or(0))
    }

    /// How many bytes of an output are kept.
    pub(super) fn kept_of(&self, stream: usize) -> u64 {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        let tail = stream.tail_from.map_or(0, |from| stream.length.saturating_sub(from));
        if stream.cut { (stream.head + tail).min(stream.length) } else { stream.length }
    }

    /// The job, in memory again.
    pub(super) fn recall(self) -> std::io::Result<Job> {
        let ended = self.ended();
        let info = &self.info;
        let mut words = info.command.iter().cloned();
        let command = JobCommand {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            user: info.user.clone(),
            cwd: info.cwd.clone(),
            tty: info.tty,
            timeout_ms: info.timeout_ms,
            ..JobCommand::default()
        };
        let stream = |number: usize, name: StreamName| {
            let archived = self.streams.get(number).copied().ok_or(std::io::ErrorKind::InvalidData)?;
            Ok::<_, std::io::Error>(Stream::recalled(format!("{}.{}.log", info.job, name.as_str()), archived))
        };
        let streams = [stream(0, StreamName::Stdout)?, stream(1, StreamName::Stderr)?];
        let order = Order::recalled(&self.before, self.stderr_first, &self.turns);
        Ok(Job::recalled(&self.info, command, self.trace, streams, order, ended))
    }
}
