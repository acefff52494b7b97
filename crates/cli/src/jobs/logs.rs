//! `carrel logs`: what a job wrote, as it wrote it.

use std::io;
use std::os::fd::AsFd;

use carrel_shim_client::messages::{InputWish, JobCut, JobFollow, JobInfo, JobStream, StreamName};
use carrel_shim_client::{FollowEvent, Found, ShimClient, ShimError};
use rustix::io::Errno;

use super::session::notes::Notes;
use super::session::output::write_all;
use super::tail;
use crate::arguments::LogsArguments;
use crate::failure::Failure;
use crate::find;

/// How far one output has been shown, and how far it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutputRange {
    next: u64,
    /// The first byte that is not wanted; without one, there is no end to it.
    end: Option<u64>,
}

/// Both outputs, of which one may not be wanted.
#[derive(Clone, Copy, Debug)]
struct OutputRanges {
    stdout: Option<OutputRange>,
    stderr: Option<OutputRange>,
}

/// Why the showing stops.
#[derive(Debug)]
pub(super) enum LogsError {
    /// Nobody reads it any more.
    OutputClosed,
    Failed(Failure),
}

/// Shows what is kept of a job of a sandbox that runs.
pub(super) async fn drive(arguments: &LogsArguments, found: &Found, notes: Notes) -> Result<(), LogsError> {
    let mut client = find::connect(&arguments.name, found).await?;
    let info = find::with_timeout(super::chosen(&mut client, &arguments.name, arguments.job.as_deref())).await?;
    let mut stretches =
        find::with_timeout(async { Ok(OutputRanges::of(arguments, &info, &mut client).await?) }).await?;
    if stretches.are_done() {
        return Ok(());
    }
    let (stdout, stderr) = stretches.places();
    let follow = JobFollow { job: info.job, stdout, stderr, input: InputWish::None, hold: false };
    let mut follow = client.follow(&follow).await?;
    while !stretches.are_done() {
        match follow.next().await {
            Ok(Some(FollowEvent::Output { stream, offset, data })) => {
                write(stream, stretches.take(stream, offset, &data))?;
            }
            Ok(Some(FollowEvent::Cut(cut))) => {
                stretches.pass(cut);
                let bytes = cut.to.saturating_sub(cut.from);
                notes.say(&format!("{bytes} bytes of its {} are not kept", name(cut.stream)));
            }
            Ok(Some(FollowEvent::Input(_))) => {}
            // With the sandbox everything that it wrote is told; a supervisor that is gone without a word told nothing.
            Ok(Some(FollowEvent::Ended(_)) | None) | Err(ShimError::Ended(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes to the one of our streams that stands for the job's, at once and in this order.
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
        let mut stretches = Self { stdout: None, stderr: None };
        if !arguments.stderr {
            let stretch = OutputRange::of(arguments, &info.job, StreamName::Stdout, &info.stdout, client).await?;
            stretches.stdout = Some(stretch);
        }
        if !arguments.stdout {
            let stretch = OutputRange::of(arguments, &info.job, StreamName::Stderr, &info.stderr, client).await?;
            stretches.stderr = Some(stretch);
        }
        Ok(stretches)
    }

    /// Where each begins, if it is wanted.
    fn places(self) -> (Option<u64>, Option<u64>) {
        (self.stdout.map(|stretch| stretch.next), self.stderr.map(|stretch| stretch.next))
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

    /// What is wanted of some bytes.
    fn take<'d>(&mut self, stream: StreamName, offset: u64, data: &'d [u8]) -> &'d [u8] {
        let Some(stretch) = self.at(stream) else { return &[] };
        let room = stretch.end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let wanted = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
        stretch.next = offset.saturating_add(data.len() as u64);
        data.get(..wanted).unwrap_or_default()
    }

    fn pass(&mut self, cut: JobCut) {
        if let Some(stretch) = self.at(cut.stream) {
            stretch.next = stretch.next.max(cut.to);
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

    fn stretches(stdout: (u64, u64), stderr: Option<(u64, u64)>) -> OutputRanges {
        let stretch = |(next, end)| OutputRange { next, end: Some(end) };
        OutputRanges { stdout: Some(stretch(stdout)), stderr: stderr.map(stretch) }
    }

    #[test]
    fn what_was_there_is_shown_and_nothing_that_came_meanwhile() {
        let mut both = stretches((0, 5), Some((2, 4)));
        assert_eq!(both.take(StreamName::Stdout, 0, b"abc"), b"abc");
        assert_eq!(both.take(StreamName::Stderr, 2, b"xyz"), b"xy");
        assert!(!both.are_done());
        assert_eq!(both.take(StreamName::Stdout, 3, b"defg"), b"de");
        assert!(both.are_done());
        assert_eq!(both.take(StreamName::Stdout, 7, b"h"), b"");
    }

    #[test]
    fn what_is_not_kept_is_passed() {
        let mut one = stretches((0, 5), None);
        assert_eq!(one.take(StreamName::Stderr, 0, b"unwanted"), b"");
        one.pass(JobCut { stream: StreamName::Stderr, from: 0, to: 9 });
        assert!(!one.are_done());
        one.pass(JobCut { stream: StreamName::Stdout, from: 0, to: 9 });
        assert!(one.are_done());
    }

    #[test]
    fn without_an_end_there_is_always_more() {
        let mut endless = OutputRanges { stdout: Some(OutputRange { next: 0, end: None }), stderr: None };
        assert_eq!(endless.take(StreamName::Stdout, 0, b"abc"), b"abc");
        assert!(!endless.are_done());
    }
}
