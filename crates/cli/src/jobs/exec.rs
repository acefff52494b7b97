//! `carrel exec`: a command as a job of a sandbox that is there.

use std::path::PathBuf;
use std::time::Instant;

use carrel_image::RootFs;
use carrel_shim_client::messages::{InputWish, JobCommand, JobFollow, JobStarted, JobState};
use carrel_shim_client::{Found, SandboxRecord};
use serde_json::json;

use super::asked::Asked;
use super::conclusion::Conclusion;
use super::session::attend::{Manner, Role, Session};
use super::session::detach::DetachKeys;
use super::session::ending::Ending;
use super::session::input::End;
use super::session::notes::Notes;
use super::session::signals::Signals;
use super::session::terminal::TerminalSize;
use crate::arguments::ExecArguments;
use crate::failure::Failure;
use crate::find;
use crate::user;

/// All that is needed, checked before anything is asked for.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    arguments: &'a ExecArguments,
    job: String,
    command: JobCommand,
    keys: DetachKeys,
    notes: Notes,
    socket: PathBuf,
}

// === impl Plan ===

impl<'a> Plan<'a> {
    pub(super) fn new(arguments: &'a ExecArguments, found: &Found, json: bool) -> Result<Self, Failure> {
        let keys = super::keys(&arguments.detach_keys)?;
        user::check(arguments.user.as_deref())?;
        let job = arguments.job.clone().map_or_else(random_id, Ok)?;
        let command = command(arguments, found.record.as_ref())?;
        let notes = Notes { quiet: arguments.quiet, json };
        Ok(Self { arguments, job, command, keys, notes, socket: super::socket_of(found) })
    }

    /// Whether the command gets a terminal.
    pub(super) fn terminal(&self) -> bool {
        self.command.tty
    }

    /// Starts the command, and serves it unless it is to be left alone.
    pub(super) async fn drive(&self, found: &Found, signals: &mut Signals) -> Result<u8, Failure> {
        let began = Instant::now();
        let mut client = tokio::select! {
            biased;
            // There is no command yet that it could be for.
            signal = signals.ending() => return Ok(Ending::Interrupted(signal).exit_code()),
            client = find::adopt(&self.arguments.name, found) => client?,
        };
        let started = client.start(&self.job, &self.command).await?;
        if self.arguments.detach {
            return self.leave(&started);
        }
        let created = started.created;
        if !created {
            self.notes.say(&format!("job {} is there already; attached to it", self.job));
        }
        let follow = JobFollow {
            job: self.job.clone(),
            stdout: Some(0),
            stderr: Some(0),
            input: self.wish(&started),
            // Whoever started it misses nothing.
            hold: true,
        };
        let manner = Manner {
            role: if created { Role::Starter } else { Role::Partner },
            job: self.job.clone(),
            socket: self.socket.clone(),
            terminal: self.command.tty,
            keys: self.keys.clone(),
            // The same command again: what it was given of its input is not given twice. What is typed is never the same.
            again: !created && !self.command.tty,
            end: End::Close,
            timeout: self.arguments.timeout.filter(|_| created).map(|time| time.0),
            notes: self.notes,
        };
        let session = Session::new(client.follow(&follow).await?, manner);
        if !created && self.command.tty {
            session.resize();
        }
        let over = session.drive(signals).await?;
        let limit = self.arguments.timeout;
        let sandbox = &self.arguments.name;
        Conclusion { sandbox, job: &self.job, notes: self.notes, limit, took: began.elapsed() }.say(&over)
    }

    /// Whether its input is ours to give.
    fn wish(&self, started: &JobStarted) -> InputWish {
        let JobStarted { created, info } = started;
        match &info.input {
            _ if !self.command.stdin || info.state == JobState::Ended => InputWish::None,
            _ if *created => InputWish::Take,
            Some(holder) => {
                let words =
                    format!("process {} holds the input of job {}; it is only shown here", holder.pid, self.job);
                let hint = format!("carrel attach --take-over {} {}", self.arguments.name, self.job);
                self.notes.say_with_hint(&words, &hint);
                InputWish::None
            }
            None => InputWish::Ask,
        }
    }

    fn leave(&self, started: &JobStarted) -> Result<u8, Failure> {
        let line = match self.notes.json {
            true => format!("{}\n", json!({"job": self.job, "created": started.created})),
            false => format!("{}\n", self.job),
        };
        crate::say(line.as_bytes())
    }
}

/// The command, in a sandbox that was recorded so.
fn command(arguments: &ExecArguments, record: Option<&SandboxRecord>) -> Result<JobCommand, Failure> {
    let root = record.and_then(|record| RootFs::try_from(record.create.root.clone()).ok()).unwrap_or_default();
    let project = record.and_then(|record| record.create.project.as_ref());
    let workspace = || project.and_then(|project| project.target.0.to_str()).map(str::to_owned);
    let (terminal, stdin) = match arguments.detach {
        // Nobody is there: neither at a terminal of ours, nor to give input, unless that is asked for.
        true => (arguments.tty.then(TerminalSize::default), arguments.interactive || arguments.tty),
        false => (TerminalSize::wanted(arguments.tty, arguments.no_tty), !arguments.no_stdin),
    };
    let asked = Asked {
        words: &arguments.command,
        env: &arguments.env,
        cwd: arguments.workdir.clone().or_else(workspace),
        user: arguments.user.as_deref(),
        terminal,
        stdin,
        timeout: arguments.timeout,
    };
    asked.command(&root)
}

/// An id that no other job has.
fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => Ok(format!("exec-{:08x}", u32::from_ne_bytes(bytes))),
        Ok(_) | Err(_) => Err(Failure::new("randomness_unavailable", "the kernel gives no random bytes")),
    }
}
