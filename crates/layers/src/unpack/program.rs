//! The program `carrel-unpack`: standard input is what is to be unpacked, standard output where it reports, and standard
//! error the directory to unpack into.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::fs::{CWD, Mode, OFlags};

use super::Compression;
use super::confine::{self, Confined, Side};
use super::report::{Report, Reporter};
use super::sys;
use super::work::work;
use crate::archive::{Form, Limits};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) compression: Compression,
    /// What it is the tar of; without one it is not unpacked, but written to a file as it comes out.
    pub(super) form: Option<Form>,
    pub(super) limits: Limits,
}

/// The descriptors that it is started with.
struct Given {
    input: File,
    channel: UnixStream,
    directory: OwnedFd,
}

/// The program `carrel-unpack`. There are two of it: one that stays outside, sees to the ids of the other and waits for
/// its end, and one that is confined and reads what it is given.
pub fn main() -> ExitCode {
    // Nothing is open yet that is ours.
    let given = match sys::close_inherited().map_err(io::Error::from).and_then(|()| Given::take()) {
        Ok(given) => given,
        Err(_) => return ExitCode::from(2),
    };
    let Given { input, channel, directory } = given;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(order) = Order::read(&words) else { return ExitCode::from(2) };
    let reporter = Reporter::new(channel);
    match confine::separate(directory, order.limits) {
        Ok(Side::Outside(waiting)) => {
            // Whatever arrives is not for this side, and the last to hold the channel says that all has ended.
            drop(input);
            waiting.wait(reporter)
        }
        Ok(Side::Inside(confined)) => confined_main(order, input, &confined, reporter),
        Err(failed) => failure(reporter, &Report::Failed(failed.to_string())),
    }
}

fn confined_main(order: Order, input: File, confined: &Confined, mut reporter: Reporter) -> ExitCode {
    // Failed or not, the input is closed when this returns: whoever still writes is told.
    match work(order, input, &confined.root, &mut reporter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failure(reporter, &failed.report()),
    }
}

pub(super) fn failure(mut reporter: Reporter, report: &Report) -> ExitCode {
    // Nobody is left to tell if this fails too.
    let _told = reporter.say(report);
    ExitCode::FAILURE
}

// === impl Given ===

impl Given {
    /// Takes what it was started with, and leaves nothing in its place.
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

// === impl Order ===

impl Order {
    /// As arguments of the program.
    pub(super) fn words(self) -> [String; 4] {
        let compression = Compression::ALL.iter().find(|(known, _)| *known == self.compression);
        let form = match self.form {
            Some(Form::Layer) => "layer",
            Some(Form::Root) => "root",
            None => "file",
        };
        let compression = compression.map_or("none", |(_, word)| word);
        [compression.into(), form.into(), self.limits.bytes.to_string(), self.limits.entries.to_string()]
    }

    fn read(words: &[String]) -> Option<Self> {
        let [compression, form, bytes, entries] = words else { return None };
        let (compression, _) = *Compression::ALL.iter().find(|(_, word)| word == compression)?;
        let form = match form.as_str() {
            "layer" => Some(Form::Layer),
            "root" => Some(Form::Root),
            "file" => None,
            _ => return None,
        };
        let limits = Limits { bytes: bytes.parse().ok()?, entries: entries.parse().ok()? };
        Some(Self { compression, form, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for (compression, _) in Compression::ALL {
            for form in [Some(Form::Root), Some(Form::Layer), None] {
                let order = Order { compression, form, limits: Limits { bytes: 1, entries: u64::MAX } };
                assert_eq!(Order::read(&order.words()), Some(order));
            }
        }
        assert_eq!(Order::read(&["gzip", "layer", "1", "-1"].map(String::from)), None);
        assert_eq!(Order::read(&[]), None);
    }
}
