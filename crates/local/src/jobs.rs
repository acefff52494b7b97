//! Requests to the shim of a running sandbox: commands, pauses, activity.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{ExecOptions, ExecStart, Place, ProviderError};
use carrel_control::spec::Spec;
use carrel_image::accounts;
use carrel_layers::ImageConfig;
use carrel_shim_client::messages::{FailureCode, JobCommand, JobState, PublishedPort};
use carrel_shim_client::{Liveness, ShimClient, ShimError};
use carrel_store::{ExecId, Pairs};
use tokio::net::TcpListener;

use crate::discovery::is_incarnation;
use crate::plan::WORKSPACE;
use crate::refresh::{Refresher, refresh};
use crate::running::RunningSandbox;
use crate::{LocalInner, blocking, facts, failed};

/// How long a shim may take for a request that it answers immediately.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a cancelled command has to exit by itself.
const GRACE: Duration = Duration::from_secs(1);

/// A request to a shim that returns a boolean or nothing.
#[derive(Clone, Copy)]
enum ShimRequest<'q> {
    /// Runs a job, once.
    Run(&'q str, &'q JobCommand),
    /// Freezes or thaws all processes.
    Pause(bool),
    /// Whether anything but this many clients of ours uses the sandbox.
    Used { ours: u64 },
}

impl LocalInner {
    /// Runs the sandbox's own command.
    pub(crate) async fn command(&self, place: &Place, spec: &Spec, attempt: u32) -> Result<(), ProviderError> {
        let running = self.running_sandbox(place).await?;
        self.refresh(place, &running, spec).await;
        let command_line = [&running.config.entrypoint[..], &spec.command].concat();
        let command = job(
            &running,
            &command_line,
            working_directory("", spec),
            &spec.envs,
            &options(&ExecOptions::default(), spec),
        );
        self.run(place, &running, &facts::primary(attempt), &command).await
    }

    /// Runs a command, once.
    pub(crate) async fn exec(&self, place: &Place, spec: &Spec, exec: &ExecStart) -> Result<(), ProviderError> {
        let running = self.running_sandbox(place).await?;
        self.refresh(place, &running, spec).await;
        let (cwd, options) = (working_directory(&exec.cwd, spec), options(&exec.options, spec));
        let command = job(&running, &exec.command, cwd, &exec.env, &options);
        self.run(place, &running, exec.id.as_str(), &command).await
    }

    /// Refreshes the read-only mounts that the host changed: before the command starts, and periodically from then on.
    async fn refresh(&self, place: &Place, running: &RunningSandbox, spec: &Spec) {
        if spec.mounts.iter().all(|mount| mount.writable) {
            return;
        }
        self.connect_ahead(place).await;
        let Some(pid) = running.shim.lock().await.as_ref().map(|shim| shim.hello().pid) else { return };
        running.refresher.get_or_init(|| Refresher::start(pid));
        let refreshed = blocking(move || refresh(pid).map_err(failed)).await;
        if let Err(error) = refreshed {
            tracing::debug!(sandbox = %place.sandbox, %error, "failed to refresh read-only mounts");
        }
    }

    async fn run(
        &self,
        place: &Place,
        running: &RunningSandbox,
        id: &str,
        command: &JobCommand,
    ) -> Result<(), ProviderError> {
        match self.send(place, running, ShimRequest::Run(id, command)).await {
            Ok(_) => Ok(()),
            // It runs or ran, and its exit is in the journal. Ids are never reused; releases differ in the code that says so.
            Err(error) if error.code().is_some_and(|code| is_known_job(&code)) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Cancels a command, and returns when it has exited.
    pub(crate) async fn cancel(&self, place: &Place, exec: &ExecId) -> Result<(), ProviderError> {
        // This may take a while, so it uses a connection of its own.
        let Some(mut shim) = self.connect(place).await? else { return Ok(()) };
        match shim.cancel(exec.as_str(), GRACE).await {
            Ok(_) | Err(ShimError::Ended(_) | ShimError::Gone) => Ok(()),
            Err(error) => match error.code() {
                Some(FailureCode::JobUnknown | FailureCode::JobPruned | FailureCode::JobEnded) => Ok(()),
                _ => Err(failed(error)),
            },
        }
    }

    /// Freezes or thaws all processes.
    pub(crate) async fn pause(&self, place: &Place, paused: bool) -> Result<(), ProviderError> {
        let running = self.running_sandbox(place).await?;
        if !paused {
            // The guard leaves it alone for a while.
            self.resumed.add(&place.incarnation);
        }
        self.send(place, &running, ShimRequest::Pause(paused)).await.map_err(failed)?;
        self.pause_services(place, paused).await
    }

    /// Whether the sandbox is in use: by a client of its agent, a viewer, a connection to a port, or a job that is not its
    /// own.
    pub(crate) async fn is_active(&self, place: &Place) -> Result<bool, ProviderError> {
        let running = self.running_sandbox(place).await?;
        if running.agent.connections() > 0 {
            return Ok(true);
        }
        let ours = u64::from(running.agent.is_connected().await);
        self.send(place, &running, ShimRequest::Used { ours }).await.map_err(failed)
    }

    /// The running sandbox; loads it if this process does not know it yet.
    pub(crate) async fn running_sandbox(&self, place: &Place) -> Result<Arc<RunningSandbox>, ProviderError> {
        if let Some(running) = self.running.get(place) {
            return Ok(running);
        }
        let found = self.find(&place.sandbox).await?.filter(|found| is_incarnation(found, place));
        match found {
            Some(found) if found.life == Liveness::Running => {
                Ok(self.running.insert(place, self.load_running(&found).await?))
            }
            _ => Err(failed("the sandbox is not running")),
        }
    }

    /// A new connection; none if the incarnation is not running.
    pub(crate) async fn connect(&self, place: &Place) -> Result<Option<ShimClient>, ProviderError> {
        match self.find(&place.sandbox).await?.filter(|found| is_incarnation(found, place)) {
            Some(found) if found.life == Liveness::Running => found.connect().await.map(Some).map_err(failed),
            _ => Ok(None),
        }
    }

    /// Opens the shared connection ahead of its first request. If that fails, the first request opens it.
    pub(crate) async fn connect_ahead(&self, place: &Place) {
        let Some(running) = self.running.get(place) else { return };
        let mut kept = running.shim.lock().await;
        if kept.is_none() {
            *kept = self.connect(place).await.ok().flatten();
        }
    }

    /// The published ports that the shim serves.
    pub(crate) async fn served_ports(
        &self,
        place: &Place,
        running: &RunningSandbox,
    ) -> Result<Vec<PublishedPort>, ShimError> {
        let mut kept = running.shim.lock().await;
        let answer = with_timeout(self.connection(place, &mut kept).await?.status()).await;
        kept.take_if(|_| answer.as_ref().is_err_and(is_connection_lost));
        Ok(answer?.ports.unwrap_or_default())
    }

    /// Hands ports over to the shim.
    pub(crate) async fn hand_over(
        &self,
        place: &Place,
        running: &RunningSandbox,
        ports: &[(PublishedPort, &TcpListener)],
    ) -> Result<(), ShimError> {
        let mut kept = running.shim.lock().await;
        let answer = with_timeout(self.connection(place, &mut kept).await?.publish(ports)).await;
        kept.take_if(|_| answer.as_ref().is_err_and(is_connection_lost));
        answer
    }

    /// The shared connection, opened if necessary.
    async fn connection<'k>(
        &self,
        place: &Place,
        kept: &'k mut Option<ShimClient>,
    ) -> Result<&'k mut ShimClient, ShimError> {
        let client = match kept.take() {
            Some(client) => client,
            None => {
                let made = self.connect(place).await;
                made.map_err(|error| ShimError::from(std::io::Error::other(error)))?.ok_or(ShimError::Gone)?
            }
        };
        Ok(kept.insert(client))
    }

    /// Sends a request on the shared connection. If the connection was lost, it reconnects once.
    async fn send(&self, place: &Place, running: &RunningSandbox, request: ShimRequest<'_>) -> Result<bool, ShimError> {
        let mut kept = running.shim.lock().await;
        if let Some(shim) = kept.as_mut() {
            match request.send(shim).await {
                Err(error) if is_connection_lost(&error) => *kept = None,
                answer => return answer,
            }
        }
        let answer = request.send(self.connection(place, &mut kept).await?).await;
        if answer.as_ref().is_err_and(is_connection_lost) {
            *kept = None;
        }
        answer
    }
}

/// Limits the time of a request that a shim answers immediately.
async fn with_timeout<T>(answer: impl Future<Output = Result<T, ShimError>>) -> Result<T, ShimError> {
    tokio::time::timeout(TIMEOUT, answer).await.unwrap_or(Err(ShimError::Silent(TIMEOUT)))
}

/// Whether the connection cannot be used for another request.
fn is_connection_lost(error: &ShimError) -> bool {
    !matches!(error, ShimError::Failed(_))
}

// === impl ShimRequest ===

impl ShimRequest<'_> {
    /// Sends the request, with a time limit.
    async fn send(self, shim: &mut ShimClient) -> Result<bool, ShimError> {
        with_timeout(self.execute(shim)).await
    }

    async fn execute(self, shim: &mut ShimClient) -> Result<bool, ShimError> {
        match self {
            Self::Run(job, command) => shim.start(job, command).await.map(|started| started.created),
            Self::Pause(true) => shim.pause().await.map(|()| true),
            Self::Pause(false) => shim.resume().await.map(|()| true),
            Self::Used { ours } => {
                if shim.statistics().await?.clients > ours {
                    return Ok(true);
                }
                let status = shim.status().await?;
                if status.port_connections.is_some_and(|connections| connections > 0) {
                    return Ok(true);
                }
                // An ended job has no viewers for long.
                if status.running_jobs == 0 {
                    return Ok(false);
                }
                let jobs = shim.jobs().await?;
                let mut running = jobs.iter().filter(|job| job.state != JobState::Ended);
                Ok(running.any(|job| job.viewers > 0 || !facts::is_internal(&job.job)))
            }
        }
    }
}

/// The working directory of a command: its own, else that of the sandbox.
fn working_directory<'a>(cwd: &'a str, spec: &'a Spec) -> &'a str {
    if cwd.is_empty() { spec.workdir.as_deref().unwrap_or_default() } else { cwd }
}

/// The options of a command: its own, else those of the sandbox.
fn options(options: &ExecOptions, spec: &Spec) -> ExecOptions {
    ExecOptions { user: options.user.clone().or_else(|| spec.user.clone()), ..options.clone() }
}

/// A command as the shim expects it.
pub(crate) fn job(
    running: &RunningSandbox,
    command_line: &[String],
    cwd: &str,
    env: &Pairs,
    options: &ExecOptions,
) -> JobCommand {
    let (user, home) = match &options.user {
        Some(user) => (user.clone(), accounts::home(Some(user), &running.accounts)),
        None => (running.user.name.clone(), running.user.home.clone()),
    };
    let env = environment(Some(&home), &running.config, env);
    let (program, args) =
        command_line.split_first().map_or((String::new(), Vec::new()), |(first, rest)| (first.clone(), rest.to_vec()));
    let size = JobCommand::default();
    let (rows, cols) = options.terminal.unwrap_or((size.rows, size.cols));
    JobCommand {
        program,
        args,
        env,
        cwd: Some(if cwd.is_empty() { WORKSPACE.to_owned() } else { cwd.to_owned() }),
        user: Some(user),
        tty: options.terminal.is_some(),
        rows,
        cols,
        stdin: options.stdin,
        timeout_ms: options.timeout_ms,
        ..JobCommand::default()
    }
}

/// The environment of a command: the image's variables, overridden by the requested ones. `HOME` is a default for both.
pub(crate) fn environment(home: Option<&str>, config: &ImageConfig, requested: &Pairs) -> Vec<String> {
    let of_image = config.env.iter().filter_map(|variable| variable.split_once('='));
    let mut all: Pairs = of_image.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    all.extend(requested.clone());
    let home = home.filter(|_| !all.contains_key("HOME")).map(|home| format!("HOME={home}"));
    home.into_iter().chain(all.iter().map(|(key, value)| format!("{key}={value}"))).collect()
}

/// Whether an error says that the shim already has the job.
fn is_known_job(code: &FailureCode) -> bool {
    matches!(code, FailureCode::JobPruned | FailureCode::JobEnded | FailureCode::JobConflict)
}

#[cfg(test)]
mod tests {
    use carrel_image::{ImageRef, RootFs};

    use super::*;

    fn requested(cwd: &str, env: &[(&str, &str)], options: &ExecOptions) -> JobCommand {
        let running = RunningSandbox::new(
            &RootFs::resolve(&ImageRef::Host).unwrap(),
            ImageConfig::default(),
            "/agent.sock".into(),
        );
        let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        job(&running, &["ls".to_owned(), "-l".to_owned()], cwd, &env, options)
    }

    #[test]
    fn a_command_runs_as_the_exec_user_in_the_workspace() {
        let command = requested("", &[("A", "b=c")], &ExecOptions::default());
        assert_eq!((command.program.as_str(), command.args.as_slice()), ("ls", &["-l".to_owned()][..]));
        assert_eq!((command.user.as_deref(), command.cwd.as_deref()), (Some("agbox"), Some("/workspace")));
        assert_eq!(command.env, ["HOME=/home/agbox", "A=b=c"]);
        assert!(!command.tty && !command.stdin && command.timeout_ms.is_none());
    }

    #[test]
    fn options_that_a_command_does_not_set_come_from_the_sandbox() {
        let spec = Spec { user: Some("node".to_owned()), workdir: Some("/srv".to_owned()), ..Spec::default() };
        let own = ExecOptions { user: Some("root".to_owned()), stdin: true, ..ExecOptions::default() };
        assert_eq!((working_directory("", &spec), working_directory("/tmp", &spec)), ("/srv", "/tmp"));
        assert_eq!(options(&ExecOptions::default(), &spec).user.as_deref(), Some("node"));
        assert_eq!(options(&own, &spec).user.as_deref(), Some("root"));
        assert!(options(&own, &spec).stdin);
        assert_eq!((working_directory("", &Spec::default()), options(&own, &Spec::default()).user), ("", own.user));
    }

    #[test]
    fn options_of_a_command_take_precedence() {
        let options =
            ExecOptions { user: Some("root".to_owned()), terminal: Some((40, 120)), stdin: true, timeout_ms: Some(5) };
        let command = requested("/tmp", &[], &options);
        assert_eq!((command.user.as_deref(), command.cwd.as_deref()), (Some("root"), Some("/tmp")));
        assert_eq!(command.env, ["HOME=/root"]);
        assert_eq!((command.tty, command.rows, command.cols), (true, 40, 120));
        assert_eq!((command.stdin, command.timeout_ms), (true, Some(5)));
        assert_eq!(requested("", &[("HOME", "/elsewhere")], &options).env, ["HOME=/elsewhere"]);
    }

    #[test]
    fn variables_of_the_image_are_set_unless_overridden() {
        let variables = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let config = ImageConfig { env: variables("A=1 B=2 broken"), ..ImageConfig::default() };
        let requested = Pairs::from([("B".to_owned(), "3".to_owned())]);
        assert_eq!(environment(Some("/h"), &config, &requested), variables("HOME=/h A=1 B=3"));
        let config = ImageConfig { env: variables("HOME=/of/image"), ..ImageConfig::default() };
        assert_eq!(environment(Some("/h"), &config, &Pairs::new()), variables("HOME=/of/image"));
        assert!(environment(None, &ImageConfig::default(), &Pairs::new()).is_empty());
    }
}
