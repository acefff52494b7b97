//! The program `carrel-unpack`: reads the archive from standard input, reports to standard output, and gets the target
//! directory as standard error.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::fs::{CWD, Mode, OFlags};

use super::Compression;
use super::confine::{self, ConfinedProcess, ConfinementSide};
use super::pipeline::work;
use super::report::{ReportSender, UnpackReport};
use super::sys;
use crate::archive::{ArchiveForm, ArchiveLimits};

/// The arguments of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnpackArguments {
    pub(super) compression: Compression,
    /// The kind of tar; `None` writes the decompressed stream to a file.
    pub(super) form: Option<ArchiveForm>,
    pub(super) limits: ArchiveLimits,
}

/// The descriptors that the program is started with.
struct InheritedDescriptors {
    input: File,
    channel: UnixStream,
    directory: OwnedFd,
}

/// Runs `carrel-unpack` as two processes: the outer one maps the IDs of the inner one and waits for it; the inner one
/// is confined and reads the archive.
pub fn main() -> ExitCode {
    // No descriptor of ours is open yet.
    let given = match sys::close_inherited().map_err(io::Error::from).and_then(|()| InheritedDescriptors::take()) {
        Ok(given) => given,
        Err(_) => return ExitCode::from(2),
    };
    let InheritedDescriptors { input, channel, directory } = given;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(order) = UnpackArguments::read(&words) else { return ExitCode::from(2) };
    let reporter = ReportSender::new(channel);
    match confine::separate(directory, order.limits) {
        Ok(ConfinementSide::Outside(waiting)) => {
            // The input is for the inner process only, and the channel must close when that one exits.
            drop(input);
            waiting.wait(reporter)
        }
        Ok(ConfinementSide::Inside(confined)) => confined_main(order, input, &confined, reporter),
        Err(failed) => failure(reporter, &UnpackReport::Failed(failed.to_string())),
    }
}

fn confined_main(
    order: UnpackArguments,
    input: File,
    confined: &ConfinedProcess,
    mut reporter: ReportSender,
) -> ExitCode {
    // The input is closed in any case, so that a writer gets `EPIPE`.
    match work(order, input, &confined.root, &mut reporter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failure(reporter, &failed.report()),
    }
}

pub(super) fn failure(mut reporter: ReportSender, report: &UnpackReport) -> ExitCode {
    // If this fails too, there is no one to report to.
    let _ = reporter.send(report);
    ExitCode::FAILURE
}

// === impl InheritedDescriptors ===

impl InheritedDescriptors {
    /// Takes ownership of the standard descriptors and replaces them.
    fn take() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let channel = io::stdout().as_fd().try_clone_to_owned()?;
        let directory = io::stderr().as_fd().try_clone_to_owned()?;
        let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(Self { input: input.into(), channel: channel.into(), directory })
    }
}

// === impl UnpackArguments ===

impl UnpackArguments {
    /// Formats them as command-line arguments.
    pub(super) fn words(self) -> [String; 4] {
        let compression = Compression::ALL.iter().find(|(known, _)| *known == self.compression);
        let form = match self.form {
            Some(ArchiveForm::Layer) => "layer",
            Some(ArchiveForm::Root) => "root",
            None => "file",
        };
        let compression = compression.map_or("none", |(_, word)| word);
        [compression.into(), form.into(), self.limits.bytes.to_string(), self.limits.entries.to_string()]
    }

    fn read(words: &[String]) -> Option<Self> {
        let [compression, form, bytes, entries] = words else { return None };
        let (compression, _) = *Compression::ALL.iter().find(|(_, word)| word == compression)?;
        let form = match form.as_str() {
            "layer" => Some(ArchiveForm::Layer),
            "root" => Some(ArchiveForm::Root),
            "file" => None,
            _ => return None,
        };
        let limits = ArchiveLimits { bytes: bytes.parse().ok()?, entries: entries.parse().ok()? };
        Some(Self { compression, form, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_round_trip() {
        for (compression, _) in Compression::ALL {
            for form in [Some(ArchiveForm::Root), Some(ArchiveForm::Layer), None] {
                let order =
                    UnpackArguments { compression, form, limits: ArchiveLimits { bytes: 1, entries: u64::MAX } };
                assert_eq!(UnpackArguments::read(&order.words()), Some(order));
            }
        }
        assert_eq!(UnpackArguments::read(&["gzip", "layer", "1", "-1"].map(String::from)), None);
        assert_eq!(UnpackArguments::read(&[]), None);
    }
}
