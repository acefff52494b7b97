//! The stored form of a finished job.
#![allow(unreachable_pub, reason = "the record macro declares public types")]

use std::path::Path;
use std::time::{Duration, Instant};

use carrel_protocol::record;
use carrel_shim_client::messages::{JobCommand, JobInfo, JobStream, StreamName};

use super::JobKey;
use super::job::Job;
use super::order::OutputOrder;
use super::output::JobOutputLog;
use crate::journal::wall_ms;

record! {
    /// A finished job.
    pub struct ArchivedJob {
        /// Its description.
        info: JobInfo => required,
        /// Its position among all jobs.
        key: u64 => required,
        /// The hash of its command.
        trace: u64 => required,
        /// Its outputs: standard output, then standard error.
        streams: Vec<ArchivedStream> => required,
        /// The offset of each output before which the order is unknown.
        before: Vec<u64> => default,
        /// Whether standard error came first after that.
        stderr_first: bool => default,
        /// Alternating end offsets of runs of the two outputs.
        turns: Vec<u64> => default,
    }

    /// One output.
    #[derive(Copy)]
    pub struct ArchivedStream {
        /// The length of the kept head.
        head: u64 => required,
        /// How many bytes were written.
        length: u64 => required,
        /// Whether something after the head is not kept.
        cut: bool => default,
        /// The offset of the tail in the stream and in the file.
        tail_from: Option<u64> => omitted,
        tail_at: Option<u64> => omitted,
        /// Its disk usage.
        charged: u64 => default,
    }
}

/// A time of the monotonic clock.
pub(super) fn instant_of(at_ms: u64) -> Instant {
    let (now, past) = (Instant::now(), Duration::from_millis(wall_ms().saturating_sub(at_ms)));
    now.checked_sub(past).unwrap_or(now)
}

// === impl ArchivedJob ===

impl ArchivedJob {
    /// The stored form of a job.
    pub(super) fn of(job: &Job, key: JobKey, trace: u64) -> Self {
        let mut info = job.info(Path::new(""));
        // The directory is known.
        (info.stdout, info.stderr, info.viewers) = (JobStream::default(), JobStream::default(), 0);
        let (before, stderr_first, turns) = job.order.archived();
        let streams = job.streams.iter().map(JobOutputLog::archived).collect();
        Self { info, key, trace, streams, before, stderr_first, turns }
    }

    /// The disk usage of its outputs.
    pub(super) fn charged(&self) -> u64 {
        self.streams.iter().map(|stream| stream.charged).sum()
    }

    /// When it ended.
    pub(super) fn ended(&self) -> Instant {
        instant_of(self.info.ended_ms.unwrap_or(0))
    }

    /// The number of kept bytes of an output.
    pub(super) fn kept_of(&self, stream: usize) -> u64 {
        let Some(stream) = self.streams.get(stream) else { return 0 };
        let tail = stream.tail_from.map_or(0, |from| stream.length.saturating_sub(from));
        if stream.cut { (stream.head + tail).min(stream.length) } else { stream.length }
    }

    /// Loads the job into memory.
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
            Ok::<_, std::io::Error>(JobOutputLog::recalled(format!("{}.{}.log", info.job, name.as_str()), archived))
        };
        let streams = [stream(0, StreamName::Stdout)?, stream(1, StreamName::Stderr)?];
        let order = OutputOrder::recalled(&self.before, self.stderr_first, &self.turns);
        Ok(Job::recalled(&self.info, command, self.trace, streams, order, ended))
    }
}
