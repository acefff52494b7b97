//! Whoever looks after one service: has it run, sees whether it is well, and tells.

use std::sync::Arc;
use std::time::Duration;

use carrel_control::provider::{Place, ProviderError, ServiceFact};
use carrel_control::spec::{Service, Spec};
use carrel_layers::Config;
use carrel_shim_client::layout::now_ms;
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, JobState, OutcomeKind, StreamName};
use carrel_shim_client::{ShimClient, ShimError, Subscription};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::course::{CRASHES, Course, Step, Timing, WELL, check, crash_loop};
use super::make::words;
use super::named::{Beside, key};
use super::tended::Over;
use crate::jobs::environment;
use crate::life::has_ended;
use crate::{Inner, blocking, facts, failed, images};

/// How much of what a check says is kept.
const KEPT: u64 = 4096;
/// How much of what a command said last is told when it failed.
const TOLD: u64 = 300;
/// How long to look away from a command that is just beginning, at first and at last.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(100);

/// Whoever looks after one service.
struct Caretaker {
    inner: Arc<Inner>,
    place: Place,
    spec: Spec,
    service: Service,
    beside: Beside,
    over: Over,
    to: mpsc::Sender<ServiceFact>,
    /// Whether it was told that it is well.
    told: bool,
    /// How its image is to be run.
    config: Config,
}

/// Why a service is not looked after any further.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Its sandbox has ended, or does not answer.
    Lost,
    /// The sandbox that it stands beside has ended.
    Alone,
    /// It is given up.
    GivenUp(ProviderError),
}

/// Has a service run, and tells how it is, until nobody listens or the sandbox that it stands beside is to end.
pub(crate) fn tend(inner: Arc<Inner>, place: &Place, spec: &Spec, service: &Service) -> mpsc::Receiver<ServiceFact> {
    let (to, told) = mpsc::channel(2);
    let key = key(&service.name);
    let over = inner.tended.begin(&place.incarnation, &key);
    let beside = match Beside::new(&inner.ground, place, &key) {
        Ok(beside) => beside,
        Err(error) => {
            // There is room for it.
            let _told = to.try_send(ServiceFact::Failed(error));
            return told;
        }
    };
    let (place, spec, service) = (place.clone(), spec.clone(), service.clone());
    let caretaker = Caretaker { inner, place, spec, service, beside, over, to, told: false, config: Config::default() };
    drop(tokio::spawn(async move {
        let (listener, over) = (caretaker.to.clone(), caretaker.over.clone());
        tokio::select! {
            biased;
            () = over.wait() => {}
            () = listener.closed() => {}
            () = caretaker.tend() => {}
        }
    }));
    told
}

// === impl Caretaker ===

impl Caretaker {
    async fn tend(mut self) {
        let mut soon = 0;
        loop {
            let began = Instant::now();
            let error = match self.stay().await {
                Trouble::Alone => return,
                Trouble::GivenUp(error) => error,
                Trouble::Lost => {
                    soon = if began.elapsed() < WELL { soon + 1 } else { 0 };
                    if soon < CRASHES {
                        tokio::time::sleep(LAST * 2u32.saturating_pow(soon.max(1) - 1)).await;
                        continue;
                    }
                    crash_loop("its sandbox", soon)
                }
            };
            tracing::info!(sandbox = %self.place.sandbox, service = self.service.name, %error, "a service is given up");
            let message = format!("the service {}: {}", self.service.name, error.message);
            let _left = self.to.send(ServiceFact::Failed(ProviderError { message, ..error })).await;
            return;
        }
    }

    /// Stays with it until there is trouble.
    async fn stay(&mut self) -> Trouble {
        match self.follow().await {
            Ok(never) => match never {},
            Err(trouble) => trouble,
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Trouble> {
        let Self { inner, place, spec, service, beside, over, .. } = &*self;
        let standing = inner.standing(place, spec, service, beside, over).await.map_err(Trouble::GivenUp)?;
        let found = standing.ok_or(Trouble::Alone)?;
        let connect = async || match found.connect().await {
            Ok(shim) => Ok(shim),
            Err(error) if has_ended(&error) => Err(Trouble::Lost),
            Err(error) => Err(Trouble::GivenUp(failed(error))),
        };
        let (mut shim, listener) = (connect().await?, connect().await?);
        let (disk, timing) = (beside.disk(), Timing::of(service.healthcheck.as_ref()));
        let images = Arc::clone(&inner.images);
        self.config = blocking(move || images::config(&images, &disk)).await.map_err(Trouble::GivenUp)?;
        // All that has happened, before anything is done about it.
        let (mut course, mut heard) = (Course::new(timing), 0);
        for fact in shim.journal(1).await? {
            course.hear(&fact);
            heard = fact.sequence;
        }
        let mut facts = listener.subscribe(heard + 1).await?;
        let mut pause = FIRST;
        loop {
            match course.next(now_ms()) {
                Step::Run { attempt, wait } => {
                    if !hear(&mut facts, &mut course, Some(wait)).await? {
                        start(&mut shim, &facts::primary(attempt), &self.command()).await?;
                        pause = FIRST;
                        hear(&mut facts, &mut course, None).await?;
                    }
                }
                Step::Confirm { attempt } => {
                    match shim.job(&facts::primary(attempt)).await? {
                        JobInfo { state: JobState::Starting, .. } => {
                            hear(&mut facts, &mut course, Some(pause)).await?;
                            pause = (pause * 2).min(LAST);
                        }
                        // It never ran: that is in the journal too.
                        JobInfo { outcome: Some(outcome), .. } if outcome.kind == OutcomeKind::NeverRan => {
                            hear(&mut facts, &mut course, None).await?;
                        }
                        _ => course.runs(),
                    }
                }
                Step::Check { number, wait } => {
                    if !hear(&mut facts, &mut course, Some(wait)).await? {
                        start(&mut shim, &check(number), &self.check()).await?;
                        hear(&mut facts, &mut course, None).await?;
                    }
                }
                Step::Wait => drop(hear(&mut facts, &mut course, None).await?),
                Step::Well => {
                    self.is_well().await?;
                    hear(&mut facts, &mut course, None).await?;
                }
                Step::GiveUp(error) => {
                    let said = match shim.job(&course.ended_last().unwrap_or_default()).await {
                        Ok(info) => said(&mut shim, &info).await,
                        Err(_) => String::new(),
                    };
                    return Err(Trouble::GivenUp(ProviderError { message: error.message + &said, ..error }));
                }
            }
        }
    }

    /// Tells that it is well, once, when what is to run then has run.
    async fn is_well(&mut self) -> Result<(), Trouble> {
        if !self.told {
            self.inner.run_hooks(&self.place, &self.spec, &self.service, &self.beside.key).await?;
            self.told = true;
            // Whoever does not listen any more ends this soon.
            let _left = self.to.send(ServiceFact::Ready).await;
        }
        Ok(())
    }

    /// What it runs.
    fn command(&self) -> JobCommand {
        self.job(&words(&self.service.command, &self.config))
    }

    /// What looks whether it is well.
    fn check(&self) -> JobCommand {
        let check = self.service.healthcheck.as_ref();
        let timeout = Timing::of(check).map(|timing| u64::try_from(timing.timeout.as_millis()).unwrap_or(u64::MAX));
        let (kind, words) = check.and_then(|check| check.test.split_first()).unzip();
        let words = words.map(<[String]>::to_vec).unwrap_or_default();
        let words = if kind.is_some_and(|kind| kind == "CMD-SHELL") {
            ["sh", "-c"].into_iter().map(str::to_owned).chain(words).collect()
        } else {
            words
        };
        JobCommand { timeout_ms: timeout, keep_bytes: Some(KEPT), ..self.job(&words) }
    }

    fn job(&self, words: &[String]) -> JobCommand {
        let (program, args) = words.split_first().map(|(first, rest)| (first.clone(), rest.to_vec())).unzip();
        let env = environment(None, &self.config, &self.service.envs);
        JobCommand {
            program: program.unwrap_or_default(),
            args: args.unwrap_or_default(),
            env,
            cwd: Some(self.config.workdir.clone().unwrap_or_else(|| "/".to_owned())),
            // An image that names no user has the root of its sandbox.
            user: self.config.user.clone(),
            ..JobCommand::default()
        }
    }
}

// === impl Trouble ===

impl From<ShimError> for Trouble {
    fn from(error: ShimError) -> Self {
        match error.code() {
            // It is coming to an end, or there is nobody to ask.
            None | Some(FailureCode::WrongState) => Self::Lost,
            Some(_) => Self::GivenUp(failed(error)),
        }
    }
}

/// Hears what happens, for so long at most; whether something did.
async fn hear(facts: &mut Subscription, course: &mut Course, within: Option<Duration>) -> Result<bool, Trouble> {
    let next = match within {
        Some(within) => match tokio::time::timeout(within, facts.next()).await {
            Ok(next) => next,
            Err(_) => return Ok(false),
        },
        None => facts.next().await,
    };
    let some = next?.ok_or(Trouble::Lost)?;
    some.iter().for_each(|fact| course.hear(fact));
    Ok(true)
}

/// Runs a job, unless it runs or has run. An id is used once: what differs is how a release puts the same thing.
pub(super) async fn start(shim: &mut ShimClient, job: &str, command: &JobCommand) -> Result<(), ShimError> {
    match shim.start(job, command).await.map_err(|error| (error.code(), error)) {
        Ok(_) | Err((Some(FailureCode::JobPruned | FailureCode::JobEnded | FailureCode::JobConflict), _)) => Ok(()),
        Err((_, error)) => Err(error),
    }
}

/// What a job said last, as the end of a sentence.
pub(super) async fn said(shim: &mut ShimClient, info: &JobInfo) -> String {
    let (stream, length) = match (info.stderr.length, info.stdout.length) {
        (0, length) => (StreamName::Stdout, length),
        (length, _) => (StreamName::Stderr, length),
    };
    let limit = u32::try_from(TOLD).unwrap_or(u32::MAX);
    let Ok(chunk) = shim.read(&info.job, stream, length.saturating_sub(TOLD), limit).await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&chunk.data);
    let last = text.trim().lines().next_back().unwrap_or_default();
    if last.is_empty() { String::new() } else { format!(": {last}") }
}
