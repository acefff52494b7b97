//! `carrel logs`: shows the output of a job.

use std::io;
use std::os::fd::AsFd;

use carrel_shim_client::messages::{InputWish, JobFollow, JobInfo, JobOutputGap, JobStream, StreamName};
use carrel_shim_client::{DiscoveredSandbox, FollowEvent, ShimClient, ShimError};
use rustix::io::Errno;

use super::session::notes::SessionNotes;
use super::session::output::write_all;
use super::tail;
use crate::arguments::LogsArguments;
use crate::failure::Failure;
use crate::find;

/// The part of a stream that remains to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutputRange {
    next: u64,
    /// The end of the part; none to follow the stream.
    end: Option<u64>,
}

/// Both streams, of which one may be deselected.
#[derive(Clone, Copy, Debug)]
struct OutputRanges {
    stdout: Option<OutputRange>,
    stderr: Option<OutputRange>,
}

/// Why showing output stopped.
#[derive(Debug)]
pub(super) enum LogsError {
    /// Standard output was closed.
    OutputClosed,
    Failed(Failure),
}

/// Shows the output of a job of a running sandbox.
pub(super) async fn drive(
    arguments: &LogsArguments,
    found: &DiscoveredSandbox,
    notes: SessionNotes,
) -> Result<(), LogsError> {
    let mut client = find::connect(&arguments.name, found).await?;
    let info = find::with_timeout(super::selected(&mut client, &arguments.name, arguments.job.as_deref())).await?;
    let mut ranges = find::with_timeout(async { Ok(OutputRanges::of(arguments, &info, &mut client).await?) }).await?;
    if ranges.are_done() {
        return Ok(());
    }
    let (stdout, stderr) = ranges.offsets();
    let follow = JobFollow { job: info.job, stdout, stderr, input: InputWish::None, hold: false };
    let mut follow = client.follow(&follow).await?;
    while !ranges.are_done() {
        match follow.next().await {
            Ok(Some(FollowEvent::Output { stream, offset, data })) => {
                write(stream, ranges.take(stream, offset, &data))?;
            }
            Ok(Some(FollowEvent::Cut(cut))) => {
                ranges.skip(cut);
                let bytes = cut.to.saturating_sub(cut.from);
                notes.print(&format!("{bytes} bytes of {} were dropped", name(cut.stream)));
            }
            Ok(Some(FollowEvent::Input(_))) => {}
            // All output arrives before the sandbox ends; a shim that is killed sends no more.
            Ok(Some(FollowEvent::Ended(_)) | None) | Err(ShimError::Ended(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes data to the same stream of this process, unbuffered.
pub(super) fn write(stream: StreamName, data: &[u8]) -> Result<(), LogsError> {
    let written = match stream {
        StreamName::Stdout => write_all(io::stdout().as_fd(), data),
        StreamName::Stderr => write_all(io::stderr().as_fd(), data),
    };
    written.map_err(|errno| match errno {
        Errno::PIPE => LogsError::OutputClosed,
        errno => {
            let error = io::Error::from(errno);
            LogsError::Failed(Failure::new("output_failed", format!("write to {}: {error}", name(stream))))
        }
    })
}

pub(super) fn name(stream: StreamName) -> &'static str {
    match stream {
        StreamName::Stdout => "standard output",
        StreamName::Stderr => "standard error",
    }
}

// === impl OutputRange ===

impl OutputRange {
    async fn of(
        arguments: &LogsArguments,
        job: &str,
        stream: StreamName,
        output: &JobStream,
        client: &mut ShimClient,
    ) -> Result<Self, ShimError> {
        let end = (!arguments.follow).then_some(output.length);
        let next = match arguments.tail {
            Some(lines) => tail::of_job(client, job, stream, output, lines).await?,
            None => arguments.from.unwrap_or(0),
        };
        Ok(Self { next, end })
    }

    fn is_done(self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }
}

// === impl OutputRanges ===

impl OutputRanges {
    async fn of(arguments: &LogsArguments, info: &JobInfo, client: &mut ShimClient) -> Result<Self, ShimError> {
        let mut ranges = Self { stdout: None, stderr: None };
        if !arguments.stderr {
            let range = OutputRange::of(arguments, &info.job, StreamName::Stdout, &info.stdout, client).await?;
            ranges.stdout = Some(range);
        }
        if !arguments.stdout {
            let range = OutputRange::of(arguments, &info.job, StreamName::Stderr, &info.stderr, client).await?;
            ranges.stderr = Some(range);
        }
        Ok(ranges)
    }

    /// The offset of each selected stream.
    fn offsets(self) -> (Option<u64>, Option<u64>) {
        (self.stdout.map(|range| range.next), self.stderr.map(|range| range.next))
    }

    fn are_done(self) -> bool {
        [self.stdout, self.stderr].into_iter().flatten().all(OutputRange::is_done)
    }

    fn at(&mut self, stream: StreamName) -> Option<&mut OutputRange> {
        match stream {
            StreamName::Stdout => self.stdout.as_mut(),
            StreamName::Stderr => self.stderr.as_mut(),
        }
    }

    /// The part of the data to show.
    fn take<'d>(&mut self, stream: StreamName, offset: u64, data: &'d [u8]) -> &'d [u8] {
        let Some(range) = self.at(stream) else { return &[] };
        let room = range.end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let wanted = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
        range.next = offset.saturating_add(data.len() as u64);
        data.get(..wanted).unwrap_or_default()
    }

    fn skip(&mut self, cut: JobOutputGap) {
        if let Some(range) = self.at(cut.stream) {
            range.next = range.next.max(cut.to);
        }
    }
}

// === impl LogsError ===

impl<E: Into<Failure>> From<E> for LogsError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(stdout: (u64, u64), stderr: Option<(u64, u64)>) -> OutputRanges {
        let range = |(next, end)| OutputRange { next, end: Some(end) };
        OutputRanges { stdout: Some(range(stdout)), stderr: stderr.map(range) }
    }

    #[test]
    fn output_that_arrives_after_the_start_is_not_shown() {
        let mut both = ranges((0, 5), Some((2, 4)));
        assert_eq!(both.take(StreamName::Stdout, 0, b"abc"), b"abc");
        assert_eq!(both.take(StreamName::Stderr, 2, b"xyz"), b"xy");
        assert!(!both.are_done());
        assert_eq!(both.take(StreamName::Stdout, 3, b"defg"), b"de");
        assert!(both.are_done());
        assert_eq!(both.take(StreamName::Stdout, 7, b"h"), b"");
    }

    #[test]
    fn dropped_output_is_skipped() {
        let mut one = ranges((0, 5), None);
        assert_eq!(one.take(StreamName::Stderr, 0, b"unwanted"), b"");
        one.skip(JobOutputGap { stream: StreamName::Stderr, from: 0, to: 9 });
        assert!(!one.are_done());
        one.skip(JobOutputGap { stream: StreamName::Stdout, from: 0, to: 9 });
        assert!(one.are_done());
    }

    #[test]
    fn a_followed_stream_is_never_done() {
        let mut endless = OutputRanges { stdout: Some(OutputRange { next: 0, end: None }), stderr: None };
        assert_eq!(endless.take(StreamName::Stdout, 0, b"abc"), b"abc");
        assert!(!endless.are_done());
    }
}
