//! `carrel exec`: a command as a job of a sandbox that is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use carrel_image::RootFs;
use carrel_layers::Config;
use carrel_local::ExecDefaults;
use carrel_shim_client::messages::{FailureCode, InputWish, JobCommand, JobFollow, JobInfo, JobStarted, JobState};
use carrel_shim_client::{Found, SandboxRecord, ShimClient, ShimError};
use serde_json::json;

use super::command::CommandSpec;
use super::daemon_exec::{DaemonExec, ExecStartResult};
use super::report::SessionReport;
use super::session::control::ShimEndpoint;
use super::session::detach::DetachKeys;
use super::session::driver::{JobSession, SessionOptions, SessionRole};
use super::session::ending::SessionEnding;
use super::session::input::InputEnd;
use super::session::notes::Notes;
use super::session::signals::Signals;
use super::session::terminal::TerminalSize;
use crate::arguments::ExecArguments;
use crate::daemon::DaemonClient;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::{find, images, user};

/// How long a supervisor may take to begin a job.
const BEGINNING: Duration = Duration::from_secs(30);
/// How many ids are drawn for a job, until there is something wrong with who says that each is taken.
const DRAWS: usize = 3;

/// All that is needed, checked before anything is asked for.
#[derive(Debug)]
pub(super) struct ExecPlan<'a> {
    arguments: &'a ExecArguments,
    command: JobCommand,
    keys: DetachKeys,
    notes: Notes,
    /// The daemon that keeps the sandbox, if one does: then it starts the command.
    keeper: Option<DaemonClient>,
}

/// What counts where nothing is asked for.
#[derive(Debug, Default)]
struct CommandDefaults {
    env: Vec<String>,
    cwd: Option<String>,
    user: Option<String>,
}

// === impl CommandDefaults ===

impl CommandDefaults {
    fn of_lasting(record: &SandboxRecord) -> Result<Self, Failure> {
        let defaults = ExecDefaults::of(&images::open_default()?, CarrelHome::find()?.path(), record)
            .map_err(|error| Failure::new("image_unavailable", error).hint("give --user and --workdir"))?;
        Ok(Self { env: defaults.env, cwd: Some(defaults.cwd), user: Some(defaults.user) })
    }
}

impl From<Config> for CommandDefaults {
    fn from(config: Config) -> Self {
        Self { env: config.env, cwd: config.workdir, user: config.user }
    }
}

// === impl ExecPlan ===

impl<'a> ExecPlan<'a> {
    pub(super) fn new(
        arguments: &'a ExecArguments,
        found: &Found,
        keeper: Option<DaemonClient>,
        json: bool,
    ) -> Result<Self, Failure> {
        let keys = super::keys(&arguments.detach_keys)?;
        // Input that is left alone is not read for keys either.
        let keys = if arguments.no_stdin { DetachKeys::default() } else { keys };
        user::check(arguments.user.as_deref())?;
        let command = command(arguments, found.record.as_ref(), keeper.is_some())?;
        let notes = Notes { quiet: arguments.quiet, json };
        Ok(Self { arguments, command, keys, notes, keeper })
    }

    /// Whether the command gets a terminal.
    pub(super) fn terminal(&self) -> bool {
        self.command.tty
    }

    /// Starts the command, and serves it unless it is to be left alone.
    pub(super) async fn drive(&self, found: &Arc<Found>, signals: &mut Signals) -> Result<u8, Failure> {
        let began = Instant::now();
        let name = &self.arguments.name;
        let begun = async {
            let mut client = find::connect_unpaused(name, found).await?;
            let started = match self.keeper.clone() {
                Some(daemon) => self.begin_through(&mut client, DaemonExec { daemon, sandbox: name, found }).await?,
                None => self.begin(&mut client).await?,
            };
            Ok::<_, Failure>((client, started))
        };
        let (client, started) = tokio::select! {
            biased;
            // There is no command yet that it could be for, or none that is known to be.
            signal = signals.ending() => return Err(interrupted(name, signal)),
            begun = begun => begun?,
        };
        let job = &started.info.job;
        if self.arguments.detach {
            return self.leave(&started);
        }
        let created = started.created;
        if !created {
            self.notes.say(&format!("job {job} is there already; attached to it"));
        }
        let follow = JobFollow {
            job: job.clone(),
            stdout: Some(0),
            stderr: Some(0),
            input: self.wish(&started),
            // Whoever started it misses nothing.
            hold: true,
        };
        let input = follow.input != InputWish::None;
        let manner = SessionOptions {
            role: if created { SessionRole::Starter } else { SessionRole::Partner },
            job: job.clone(),
            way: ShimEndpoint::Found(Arc::clone(found)),
            terminal: self.command.tty,
            keys: self.keys.clone(),
            input,
            // The same command again: what it was given of its input is not given twice. What is typed is never the same.
            again: !created && !self.command.tty,
            end: InputEnd::Close,
            timeout: self.arguments.timeout.filter(|_| created).map(|time| time.0),
            notes: self.notes,
        };
        let session = JobSession::new(client.follow(&follow).await?, manner);
        if !created && self.command.tty {
            session.resize();
        }
        let over = session.drive(signals).await?;
        let limit = self.arguments.timeout;
        let (notes, took) = (self.notes, began.elapsed());
        SessionReport { sandbox: name, job, pid: None, notes, limit, took }.say(&over)
    }

    /// Starts the command, as the job that was asked for, or as one that is certainly new.
    async fn begin(&self, client: &mut ShimClient) -> Result<JobStarted, Failure> {
        if let Some(job) = &self.arguments.job {
            return Ok(self.start(client, job).await??);
        }
        for _ in 0..DRAWS {
            match self.start(client, &random_id()?).await? {
                Ok(started) if !started.created => {}
                Err(ShimError::Failed(failed)) if is_taken(failed.code) => {}
                started => return Ok(started?),
            }
        }
        let words = format!("{}: each of {DRAWS} random ids is that of a job already", self.arguments.name);
        Err(Failure::new("supervisor_unreadable", words))
    }

    /// The same, by the daemon.
    async fn begin_through(&self, client: &mut ShimClient, mut through: DaemonExec<'_>) -> Result<JobStarted, Failure> {
        if let Some(job) = &self.arguments.job {
            return match through.begin(client, job, &self.command).await? {
                ExecStartResult::Started(started) => Ok(*started),
                ExecStartResult::Taken => through.again(client, job, &self.command).await,
            };
        }
        for _ in 0..DRAWS {
            if let ExecStartResult::Started(started) = through.begin(client, &random_id()?, &self.command).await? {
                return Ok(*started);
            }
        }
        Err(Failure::new("randomness_unavailable", format!("each of {DRAWS} random ids is that of a job already")))
    }

    async fn start(&self, client: &mut ShimClient, job: &str) -> Result<Result<JobStarted, ShimError>, Failure> {
        let started = tokio::time::timeout(BEGINNING, client.start(job, &self.command)).await;
        // Whatever it calls the job, it is the one that was asked for.
        let named =
            |started: JobStarted| JobStarted { info: JobInfo { job: job.to_owned(), ..started.info }, ..started };
        started.map(|started| started.map(named)).map_err(|_| {
            let words = format!("its supervisor does not say within {BEGINNING:?} whether job {job} has begun");
            Failure::new("supervisor_silent", words)
                .hint("`carrel ps NAME` lists jobs; the same --job is not run twice")
        })
    }

    /// Whether its input is ours to give.
    fn wish(&self, started: &JobStarted) -> InputWish {
        let JobStarted { created, info } = started;
        match &info.input {
            _ if !self.command.stdin || info.state == JobState::Ended => InputWish::None,
            _ if *created => InputWish::Take,
            Some(holder) => {
                let words =
                    format!("process {} holds the input of job {}; it is only shown here", holder.pid, info.job);
                let hint = format!("carrel attach --take-over {} {}", self.arguments.name, info.job);
                self.notes.say_with_hint(&words, &hint);
                InputWish::None
            }
            None => InputWish::Ask,
        }
    }

    fn leave(&self, started: &JobStarted) -> Result<u8, Failure> {
        let JobStarted { created, info } = started;
        let line = match self.notes.json {
            true => crate::json::line(&json!({"job": info.job, "created": created})),
            false => format!("{}\n", info.job),
        };
        crate::say(line.as_bytes())
    }
}

/// The command, in a sandbox that was recorded so, and that a daemon keeps or not.
fn command(arguments: &ExecArguments, record: Option<&SandboxRecord>, kept: bool) -> Result<JobCommand, Failure> {
    let root = record.and_then(|record| RootFs::try_from(record.create.root.clone()).ok()).unwrap_or_default();
    let project = record.and_then(|record| record.create.project.as_ref());
    let workspace = || project.and_then(|project| project.target.0.to_str()).map(str::to_owned);
    let (terminal, stdin) = match arguments.detach {
        // Nobody is there: neither at a terminal of ours, nor to give input, unless that is asked for.
        true => (arguments.tty.then(TerminalSize::default), arguments.interactive || arguments.tty),
        false => (TerminalSize::wanted(arguments.tty, arguments.no_tty), !arguments.no_stdin),
    };
    let defaults = match record {
        // The daemon knows them.
        Some(record) if record.lasting && kept => CommandDefaults::default(),
        // A daemon that does not know the sandbox would run the command like this if it did.
        Some(record) if record.lasting => CommandDefaults::of_lasting(record)?,
        Some(record) => images::sandbox_config(record).map(CommandDefaults::from).unwrap_or_default(),
        None => CommandDefaults::default(),
    };
    let asked = CommandSpec {
        words: &arguments.command,
        given: &defaults.env,
        env: &arguments.env,
        cwd: arguments.workdir.clone().or_else(workspace).or(defaults.cwd),
        user: arguments.user.as_deref().or(defaults.user.as_deref()),
        terminal,
        stdin,
        timeout: arguments.timeout,
    };
    asked.command(&root)
}

/// Whether a job has, or had, the id.
fn is_taken(code: FailureCode) -> bool {
    matches!(code, FailureCode::JobConflict | FailureCode::JobPruned)
}

/// That somebody wanted us to end before there was a command to attend.
fn interrupted(name: &str, signal: i32) -> Failure {
    let words = "interrupted before the command was known to have begun";
    let hint = format!("`carrel ps {name}` says whether it has");
    Failure::new("interrupted", words).hint(hint).exit(SessionEnding::Interrupted(signal).exit_code())
}

/// An id that no other job has.
fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(format!("exec-{:032x}", u128::from_ne_bytes(bytes))),
        Ok(_) | Err(_) => Err(Failure::new("randomness_unavailable", "the kernel gives no random bytes")),
    }
}
