//! `carrel exec`: runs a command as a job of an existing sandbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use carrel_image::RootFs;
use carrel_layers::ImageConfig;
use carrel_local::ExecDefaults;
use carrel_shim_client::messages::{FailureCode, InputWish, JobCommand, JobFollow, JobInfo, JobStarted, JobState};
use carrel_shim_client::{DiscoveredSandbox, SandboxRecord, ShimClient, ShimError};
use serde_json::json;

use super::command::CommandSpec;
use super::daemon_exec::{DaemonExec, ExecStartResult};
use super::report::SessionReport;
use super::session::control::ShimEndpoint;
use super::session::detach::DetachKeys;
use super::session::driver::{JobSession, SessionOptions, SessionRole};
use super::session::ending::SessionEnding;
use super::session::input::InputEnd;
use super::session::notes::SessionNotes;
use super::session::signals::HandledSignals;
use super::session::terminal::TerminalSize;
use crate::arguments::ExecArguments;
use crate::daemon::DaemonClient;
use crate::failure::Failure;
use crate::home::CarrelHome;
use crate::{find, images, user};

/// How long a shim may take to start a job.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How many random ids are tried, before the claim that each is taken is a failure.
const MAX_RANDOM_IDS: usize = 3;

/// A validated exec.
#[derive(Debug)]
pub(super) struct ExecPlan<'a> {
    arguments: &'a ExecArguments,
    command: JobCommand,
    keys: DetachKeys,
    notes: SessionNotes,
    /// The daemon of a persistent sandbox, which starts the command.
    daemon: Option<DaemonClient>,
}

#[derive(Debug, Default)]
struct CommandDefaults {
    env: Vec<String>,
    cwd: Option<String>,
    user: Option<String>,
}

// === impl CommandDefaults ===

impl CommandDefaults {
    fn of_persistent(record: &SandboxRecord) -> Result<Self, Failure> {
        let defaults = ExecDefaults::of(&images::open_default()?, CarrelHome::find()?.path(), record)
            .map_err(|error| Failure::new("image_unavailable", error).hint("give --user and --workdir"))?;
        Ok(Self { env: defaults.env, cwd: Some(defaults.cwd), user: Some(defaults.user) })
    }
}

impl From<ImageConfig> for CommandDefaults {
    fn from(config: ImageConfig) -> Self {
        Self { env: config.env, cwd: config.workdir, user: config.user }
    }
}

// === impl ExecPlan ===

impl<'a> ExecPlan<'a> {
    pub(super) fn new(
        arguments: &'a ExecArguments,
        found: &DiscoveredSandbox,
        daemon: Option<DaemonClient>,
        json: bool,
    ) -> Result<Self, Failure> {
        let keys = super::keys(&arguments.detach_keys)?;
        // Without input, no keys are read either.
        let keys = if arguments.no_stdin { DetachKeys::default() } else { keys };
        user::check(arguments.user.as_deref())?;
        let command = command(arguments, found.record.as_ref(), daemon.is_some())?;
        let notes = SessionNotes { quiet: arguments.quiet, json };
        Ok(Self { arguments, command, keys, notes, daemon })
    }

    /// Whether the command gets a terminal.
    pub(super) fn terminal(&self) -> bool {
        self.command.tty
    }

    /// Starts the command, and attaches to it unless it is detached.
    pub(super) async fn drive(
        &self,
        found: &Arc<DiscoveredSandbox>,
        signals: &mut HandledSignals,
    ) -> Result<u8, Failure> {
        let started_at = Instant::now();
        let name = &self.arguments.name;
        let starting = async {
            let mut client = find::connect_unpaused(name, found).await?;
            let started = match self.daemon.clone() {
                Some(daemon) => {
                    self.start_with_daemon(&mut client, DaemonExec { daemon, sandbox: name, found }).await?
                }
                None => self.start_with_shim(&mut client).await?,
            };
            Ok::<_, Failure>((client, started))
        };
        let (client, started) = tokio::select! {
            biased;
            // The command is not known to have started, so the signal is for this process.
            signal = signals.next_terminating() => return Err(interrupted(name, signal)),
            started = starting => started?,
        };
        let job = &started.info.job;
        if self.arguments.detach {
            return self.print_job(&started);
        }
        let created = started.created;
        if !created {
            self.notes.print(&format!("job {job} exists already; attached to it"));
        }
        let follow = JobFollow {
            job: job.clone(),
            stdout: Some(0),
            stderr: Some(0),
            input: self.input_request(&started),
            // The process that started the job misses no output.
            hold: true,
        };
        let input = follow.input != InputWish::None;
        let options = SessionOptions {
            role: if created { SessionRole::Starter } else { SessionRole::Partner },
            job: job.clone(),
            endpoint: ShimEndpoint::Discovered(Arc::clone(found)),
            terminal: self.command.tty,
            keys: self.keys.clone(),
            input,
            // A retry skips input that the job already received, except on a terminal.
            resend: !created && !self.command.tty,
            end: InputEnd::Close,
            timeout: self.arguments.timeout.filter(|_| created).map(|time| time.0),
            notes: self.notes,
        };
        let session = JobSession::new(client.follow(&follow).await?, options);
        if !created && self.command.tty {
            session.resize();
        }
        let result = session.drive(signals).await?;
        let limit = self.arguments.timeout;
        let (notes, took) = (self.notes, started_at.elapsed());
        SessionReport { sandbox: name, job, end_hint: None, notes, limit, took }.print(&result)
    }

    /// Starts the command through the shim, with the given id or a new random one.
    async fn start_with_shim(&self, client: &mut ShimClient) -> Result<JobStarted, Failure> {
        if let Some(job) = &self.arguments.job {
            return Ok(self.start(client, job).await??);
        }
        for _ in 0..MAX_RANDOM_IDS {
            match self.start(client, &random_id()?).await? {
                Ok(started) if !started.created => {}
                Err(ShimError::Failed(failed)) if is_taken(failed.code) => {}
                started => return Ok(started?),
            }
        }
        let message = format!("{}: each of {MAX_RANDOM_IDS} random job ids is taken", self.arguments.name);
        Err(Failure::new("supervisor_unreadable", message))
    }

    /// Starts the command through the daemon.
    async fn start_with_daemon(
        &self,
        client: &mut ShimClient,
        mut exec: DaemonExec<'_>,
    ) -> Result<JobStarted, Failure> {
        if let Some(job) = &self.arguments.job {
            return match exec.start(client, job, &self.command).await? {
                ExecStartResult::Started(started) => Ok(*started),
                ExecStartResult::Taken(taken) => exec.attach(client, job, &self.command, &taken).await,
            };
        }
        for _ in 0..MAX_RANDOM_IDS {
            if let ExecStartResult::Started(started) = exec.start(client, &random_id()?, &self.command).await? {
                return Ok(*started);
            }
        }
        Err(Failure::new("randomness_unavailable", format!("each of {MAX_RANDOM_IDS} random job ids is taken")))
    }

    async fn start(&self, client: &mut ShimClient, job: &str) -> Result<Result<JobStarted, ShimError>, Failure> {
        let started = tokio::time::timeout(START_TIMEOUT, client.start(job, &self.command)).await;
        // The id is the requested one, whatever the shim reports.
        let named =
            |started: JobStarted| JobStarted { info: JobInfo { job: job.to_owned(), ..started.info }, ..started };
        started.map(|started| started.map(named)).map_err(|_| {
            let message = format!("the shim does not confirm within {START_TIMEOUT:?} that job {job} has started");
            Failure::new("supervisor_silent", message)
                .hint("`carrel ps NAME` lists jobs; a retry with the same --job does not run it twice")
        })
    }

    /// Whether to request the input of the job.
    fn input_request(&self, started: &JobStarted) -> InputWish {
        let JobStarted { created, info } = started;
        match &info.input {
            _ if !self.command.stdin || info.state == JobState::Ended => InputWish::None,
            _ if *created => InputWish::Take,
            Some(holder) => {
                let words = format!("process {} holds the input of job {}; attached read-only", holder.pid, info.job);
                let hint = format!("carrel attach --take-over {} {}", self.arguments.name, info.job);
                self.notes.print_with_hint(&words, &hint);
                InputWish::None
            }
            None => InputWish::Ask,
        }
    }

    fn print_job(&self, started: &JobStarted) -> Result<u8, Failure> {
        let JobStarted { created, info } = started;
        let line = match self.notes.json {
            true => crate::json::line(&json!({"job": info.job, "created": created})),
            false => format!("{}\n", info.job),
        };
        crate::write_stdout(line.as_bytes())
    }
}

/// The command for a sandbox with this record; `has_daemon` if the daemon knows the sandbox.
fn command(arguments: &ExecArguments, record: Option<&SandboxRecord>, has_daemon: bool) -> Result<JobCommand, Failure> {
    let root = record.and_then(|record| RootFs::try_from(record.create.root.clone()).ok()).unwrap_or_default();
    let project = record.and_then(|record| record.create.project.as_ref());
    let workspace = || project.and_then(|project| project.target.0.to_str()).map(str::to_owned);
    let (terminal, stdin) = match arguments.detach {
        // A detached command has neither terminal nor input by default.
        true => (arguments.tty.then(TerminalSize::default), arguments.interactive || arguments.tty),
        false => (TerminalSize::requested(arguments.tty, arguments.no_tty), !arguments.no_stdin),
    };
    let defaults = match record {
        // The daemon applies its own.
        Some(record) if record.lasting && has_daemon => CommandDefaults::default(),
        // The defaults that the daemon would apply if it knew the sandbox.
        Some(record) if record.lasting => CommandDefaults::of_persistent(record)?,
        Some(record) => images::sandbox_config(record).map(CommandDefaults::from).unwrap_or_default(),
        None => CommandDefaults::default(),
    };
    let spec = CommandSpec {
        argv: &arguments.command,
        image_env: &defaults.env,
        env: &arguments.env,
        cwd: arguments.workdir.clone().or_else(workspace).or(defaults.cwd),
        user: arguments.user.as_deref().or(defaults.user.as_deref()),
        terminal,
        stdin,
        timeout: arguments.timeout,
    };
    spec.command(&root)
}

/// Whether the id is, or was, in use.
fn is_taken(code: FailureCode) -> bool {
    matches!(code, FailureCode::JobConflict | FailureCode::JobPruned)
}

/// The failure after a signal before the command has started.
fn interrupted(name: &str, signal: i32) -> Failure {
    let message = "interrupted before the command was known to have started";
    let hint = format!("`carrel ps {name}` shows whether it has");
    Failure::new("interrupted", message).hint(hint).exit(SessionEnding::Interrupted(signal).exit_code())
}

/// A random job id.
fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(format!("exec-{:032x}", u128::from_ne_bytes(bytes))),
        Ok(_) | Err(_) => Err(Failure::new("randomness_unavailable", "the kernel provides no random bytes")),
    }
}
