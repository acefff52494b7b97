//! Supervises one service: runs it, checks its health, and reports it.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{Place, ProviderError, ServiceFact};
use carrel_control::spec::{Service, Spec};
use carrel_layers::ImageConfig;
use carrel_shim_client::layout::now_ms;
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, JobState, OutcomeKind, StreamName};
use carrel_shim_client::{ShimClient, ShimError, Subscription};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::create::command_line;
use super::service_ref::{ServiceRef, key};
use super::state::{HealthcheckTiming, MAX_CRASHES, STABLE_AFTER, ServiceAction, ServiceState, check, crash_loop};
use super::supervised::ServiceCancellation;
use crate::jobs::environment;
use crate::start::is_stopped_error;
use crate::{LocalInner, blocking, facts, failed, images};

/// How much output of a health check is stored.
const CHECK_OUTPUT_BYTES: u64 = 4096;
/// How much of the last output is part of an error message.
const LAST_OUTPUT_BYTES: u64 = 300;
/// Poll intervals while a command is starting.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

struct ServiceSupervisor {
    inner: Arc<LocalInner>,
    place: Place,
    spec: Spec,
    service: Service,
    service_ref: ServiceRef,
    cancelled: ServiceCancellation,
    to: mpsc::Sender<ServiceFact>,
    /// Whether it was reported as ready.
    reported_ready: bool,
    /// The configuration of its image.
    config: ImageConfig,
}

/// Why the supervision of a service ended.
#[derive(Debug)]
pub(super) enum SupervisionError {
    /// Its sandbox has stopped, or does not answer.
    SandboxLost,
    MainSandboxStopped,
    /// The service failed.
    Failed(ProviderError),
}

/// Runs a service and reports its state, until the receiver is dropped or the main sandbox stops.
pub(crate) fn supervise(
    inner: Arc<LocalInner>,
    place: &Place,
    spec: &Spec,
    service: &Service,
) -> mpsc::Receiver<ServiceFact> {
    let (to, facts) = mpsc::channel(2);
    let key = key(&service.name);
    let cancelled = inner.supervised.add(&place.incarnation, &key);
    let service_ref = match ServiceRef::new(&inner.paths, place, &key) {
        Ok(service_ref) => service_ref,
        Err(error) => {
            // The channel has capacity for it.
            let _sent = to.try_send(ServiceFact::Failed(error));
            return facts;
        }
    };
    let (place, spec, service) = (place.clone(), spec.clone(), service.clone());
    let supervisor = ServiceSupervisor {
        inner,
        place,
        spec,
        service,
        service_ref,
        cancelled,
        to,
        reported_ready: false,
        config: ImageConfig::default(),
    };
    drop(tokio::spawn(async move {
        let (listener, cancelled) = (supervisor.to.clone(), supervisor.cancelled.clone());
        tokio::select! {
            biased;
            () = cancelled.wait() => {}
            () = listener.closed() => {}
            () = supervisor.run() => {}
        }
    }));
    facts
}

// === impl ServiceSupervisor ===

impl ServiceSupervisor {
    async fn run(mut self) {
        let mut soon = 0;
        loop {
            let began = Instant::now();
            let error = match self.run_until_error().await {
                SupervisionError::MainSandboxStopped => return,
                SupervisionError::Failed(error) => error,
                SupervisionError::SandboxLost => {
                    soon = if began.elapsed() < STABLE_AFTER { soon + 1 } else { 0 };
                    if soon < MAX_CRASHES {
                        tokio::time::sleep(MAX_POLL_INTERVAL * 2u32.saturating_pow(soon.max(1) - 1)).await;
                        continue;
                    }
                    crash_loop("its sandbox", soon)
                }
            };
            tracing::info!(sandbox = %self.place.sandbox, service = self.service.name, %error, "service failed");
            let message = format!("service {}: {}", self.service.name, error.message);
            let _left = self.to.send(ServiceFact::Failed(ProviderError { message, ..error })).await;
            return;
        }
    }

    /// Supervises the service until an error.
    async fn run_until_error(&mut self) -> SupervisionError {
        match self.follow().await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, SupervisionError> {
        let Self { inner, place, spec, service, service_ref, cancelled, .. } = &*self;
        let running = inner
            .ensure_running(place, spec, service, service_ref, cancelled)
            .await
            .map_err(SupervisionError::Failed)?;
        let found = running.ok_or(SupervisionError::MainSandboxStopped)?;
        let connect = async || match found.connect().await {
            Ok(shim) => Ok(shim),
            Err(error) if is_stopped_error(&error) => Err(SupervisionError::SandboxLost),
            Err(error) => Err(SupervisionError::Failed(failed(error))),
        };
        let (mut shim, listener) = (connect().await?, connect().await?);
        let (disk, timing) = (service_ref.disk(), HealthcheckTiming::of(service.healthcheck.as_ref()));
        let images = Arc::clone(&inner.images);
        self.config = blocking(move || images::config(&images, &disk)).await.map_err(SupervisionError::Failed)?;
        // Replays the journal before acting on it.
        let (mut state, mut sequence) = (ServiceState::new(timing), 0);
        for fact in shim.journal(1).await? {
            state.apply(&fact);
            sequence = fact.sequence;
        }
        let mut facts = listener.subscribe(sequence + 1).await?;
        let mut pause = MIN_POLL_INTERVAL;
        loop {
            match state.next(now_ms()) {
                ServiceAction::Run { attempt, wait } => {
                    if !apply_facts(&mut facts, &mut state, Some(wait)).await? {
                        start(&mut shim, &facts::primary(attempt), &self.command()).await?;
                        pause = MIN_POLL_INTERVAL;
                        apply_facts(&mut facts, &mut state, None).await?;
                    }
                }
                ServiceAction::Confirm { attempt } => {
                    match shim.job(&facts::primary(attempt)).await? {
                        JobInfo { state: JobState::Starting, .. } => {
                            apply_facts(&mut facts, &mut state, Some(pause)).await?;
                            pause = (pause * 2).min(MAX_POLL_INTERVAL);
                        }
                        // It could not be executed: that is in the journal too.
                        JobInfo { outcome: Some(outcome), .. } if outcome.kind == OutcomeKind::NeverRan => {
                            apply_facts(&mut facts, &mut state, None).await?;
                        }
                        _ => state.runs(),
                    }
                }
                ServiceAction::Check { number, wait } => {
                    if !apply_facts(&mut facts, &mut state, Some(wait)).await? {
                        start(&mut shim, &check(number), &self.check()).await?;
                        apply_facts(&mut facts, &mut state, None).await?;
                    }
                }
                ServiceAction::Wait => drop(apply_facts(&mut facts, &mut state, None).await?),
                ServiceAction::Healthy => {
                    self.report_ready().await?;
                    apply_facts(&mut facts, &mut state, None).await?;
                }
                ServiceAction::GiveUp(error) => {
                    let output = match shim.job(&state.last_ended_job().unwrap_or_default()).await {
                        Ok(info) => last_output(&mut shim, &info).await,
                        Err(_) => String::new(),
                    };
                    return Err(SupervisionError::Failed(ProviderError { message: error.message + &output, ..error }));
                }
            }
        }
    }

    /// Reports the service as ready, once, after its post-start hooks.
    async fn report_ready(&mut self) -> Result<(), SupervisionError> {
        if !self.reported_ready {
            self.inner.run_hooks(&self.place, &self.spec, &self.service, &self.service_ref.key).await?;
            self.reported_ready = true;
            // A dropped receiver ends the supervision.
            let _left = self.to.send(ServiceFact::Ready).await;
        }
        Ok(())
    }

    fn command(&self) -> JobCommand {
        self.job(&command_line(&self.service.command, &self.config))
    }

    /// The command of its health check.
    fn check(&self) -> JobCommand {
        let check = self.service.healthcheck.as_ref();
        let timeout =
            HealthcheckTiming::of(check).map(|timing| u64::try_from(timing.timeout.as_millis()).unwrap_or(u64::MAX));
        let (kind, command_line) = check.and_then(|check| check.test.split_first()).unzip();
        let command_line = command_line.map(<[String]>::to_vec).unwrap_or_default();
        let command_line = if kind.is_some_and(|kind| kind == "CMD-SHELL") {
            ["sh", "-c"].into_iter().map(str::to_owned).chain(command_line).collect()
        } else {
            command_line
        };
        JobCommand { timeout_ms: timeout, keep_bytes: Some(CHECK_OUTPUT_BYTES), ..self.job(&command_line) }
    }

    fn job(&self, command_line: &[String]) -> JobCommand {
        let (program, args) = command_line.split_first().map(|(first, rest)| (first.clone(), rest.to_vec())).unzip();
        let env = environment(None, &self.config, &self.service.envs);
        JobCommand {
            program: program.unwrap_or_default(),
            args: args.unwrap_or_default(),
            env,
            cwd: Some(self.config.workdir.clone().unwrap_or_else(|| "/".to_owned())),
            // An image without a user runs as root of its sandbox.
            user: self.config.user.clone(),
            ..JobCommand::default()
        }
    }
}

// === impl SupervisionError ===

impl From<ShimError> for SupervisionError {
    fn from(error: ShimError) -> Self {
        match error.code() {
            // The sandbox is stopping, or its shim is gone.
            None | Some(FailureCode::WrongState) => Self::SandboxLost,
            Some(_) => Self::Failed(failed(error)),
        }
    }
}

/// Applies the next facts, within a time limit; returns whether there were any.
async fn apply_facts(
    facts: &mut Subscription,
    state: &mut ServiceState,
    within: Option<Duration>,
) -> Result<bool, SupervisionError> {
    let next = match within {
        Some(within) => match tokio::time::timeout(within, facts.next()).await {
            Ok(next) => next,
            Err(_) => return Ok(false),
        },
        None => facts.next().await,
    };
    let some = next?.ok_or(SupervisionError::SandboxLost)?;
    some.iter().for_each(|fact| state.apply(fact));
    Ok(true)
}

/// Starts a job, unless it runs or has run. Ids are never reused; releases differ in the code that says so.
pub(super) async fn start(shim: &mut ShimClient, job: &str, command: &JobCommand) -> Result<(), ShimError> {
    match shim.start(job, command).await.map_err(|error| (error.code(), error)) {
        Ok(_) | Err((Some(FailureCode::JobPruned | FailureCode::JobEnded | FailureCode::JobConflict), _)) => Ok(()),
        Err((_, error)) => Err(error),
    }
}

/// The last line of a job's output, as the end of a message.
pub(super) async fn last_output(shim: &mut ShimClient, info: &JobInfo) -> String {
    let (stream, length) = match (info.stderr.length, info.stdout.length) {
        (0, length) => (StreamName::Stdout, length),
        (length, _) => (StreamName::Stderr, length),
    };
    let limit = u32::try_from(LAST_OUTPUT_BYTES).unwrap_or(u32::MAX);
    let Ok(chunk) = shim.read(&info.job, stream, length.saturating_sub(LAST_OUTPUT_BYTES), limit).await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&chunk.data);
    let last = text.trim().lines().next_back().unwrap_or_default();
    if last.is_empty() { String::new() } else { format!(": {last}") }
}
