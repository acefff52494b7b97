//! One life of the daemon: what has to be there before what, and what goes before what.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_control::spec::Host;
use carrel_control::{Clock, Control, Descriptors, Settings};
use carrel_local::{Local, LogTemplate};
use carrel_shim_client::Programs;
use carrel_store::Store;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::address::Address;
use crate::config::{Config, LogConfig, LogFormat};
use crate::error::ServeError;
use crate::home::{lock_file, log_file, own_directory, socket_file};
use crate::listen::{Doors, Plan};
use crate::lock::{Lock, LockError};
use crate::notify::Manager;
use crate::reload::{Reload, reload_on};
use crate::succession::take_over;
use crate::{descriptors, identity, log, store};

/// How long what was asked for last may take to be answered, when we go.
const ANSWERING: Duration = Duration::from_millis(500);
/// How long what is left may hold us up.
const LEAVING: Duration = Duration::from_millis(100);
/// How many supervisors are started ahead.
const PRESTARTED: usize = 1;
/// What is added to the number of a signal that ends us at once.
const SIGNALLED: u8 = 128;

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where everything is kept.
    pub home: PathBuf,
    /// The configuration; the usual one if none is named.
    pub config: Option<PathBuf>,
    /// Where clients connect, besides what the configuration says.
    pub grpc: Vec<Address>,
    /// Whether ports get a key that is made for this life, and told.
    pub dev: bool,
    /// Whether only what is in effect is to be said.
    pub check: bool,
    /// Whether it was started by a command that will be gone.
    pub detached: bool,
    /// Whether it starts although its store knows nothing of disks that are there.
    pub accept_data_loss: bool,
}

/// Why a daemon does not serve, and whether that is in its log already, in the configured format.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ServeFailure {
    /// Why.
    pub error: ServeError,
    /// Whether standard error has it already.
    pub logged: bool,
}

/// The signals that end us.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

/// Serves until a signal says otherwise; returns what to exit with. Sandboxes go on.
pub fn serve(options: &Options) -> Result<u8, ServeFailure> {
    let mut format = LogFormat::Auto;
    run(options, &mut format).map_err(|error| {
        let logged = !options.check && log::failed(&error, format);
        ServeFailure { error, logged }
    })
}

fn run(options: &Options, format: &mut LogFormat) -> Result<u8, ServeError> {
    let config = match Config::load(options.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            // The format is known all the same, unless the file is not even TOML.
            *format = Config::format_of(options.config.as_deref());
            if !options.check {
                log::begin(&LogConfig { format: *format, ..LogConfig::default() }, None, None)?;
            }
            return Err(error.into());
        }
    };
    *format = config.log.format;
    if options.check {
        config.check_files()?;
        let plan = Plan::new(&config, options)?;
        return check(config, &plan, options);
    }
    if options.detached {
        detach()?;
    }
    let is_root = rustix::process::geteuid().is_root();
    let own_log = options.own_log().filter(|_| is_root);
    log::begin(&config.log, config.file.as_deref(), own_log.as_deref())?;
    config.check_files()?;
    let plan = Plan::new(&config, options)?;
    if !is_root {
        return Err(ServeError::NotRoot);
    }
    descriptors::raise();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(system("a runtime"))?;
    // Whoever has the home may take its time to go, and this signal does not end us meanwhile either.
    let hangup = {
        let _within = runtime.enter();
        signal(SignalKind::hangup()).map_err(system("signals"))?
    };
    own_directory(&options.home, true)?;
    let lock = lock_file(&options.home);
    // One that somebody means to have goes before one that a command started.
    let taken = if options.detached { Lock::take(&lock) } else { take_over(&lock) };
    let _home = taken.map_err(|source| match source {
        LockError::Held { .. } => ServeError::Taken { home: options.home.clone(), source },
        LockError::Io { path, source } => ServeError::Home(crate::home::HomeError::Io { path, source }),
    })?;
    identity::verify(&options.home)?;
    let programs = Programs::find()?;
    let code = runtime.block_on(live(options, config, plan, programs, hangup));
    // Whatever still goes on is left to the next daemon.
    runtime.shutdown_timeout(LEAVING);
    code
}

/// Begins, serves, ends.
async fn live(
    options: &Options,
    config: Config,
    plan: Plan,
    programs: Programs,
    hangup: Signal,
) -> Result<u8, ServeError> {
    let (mut ends, manager) = (Ends::listen()?, Manager::find());
    let begun = begin(options, &config, programs);
    let (store, control, local) = tokio::select! {
        begun = begun => begun?,
        // Nothing was promised to anybody yet.
        _ = ends.next() => return Ok(0),
    };
    let (doors, listeners) = Doors::open(&plan, &options.home).await?;
    let (close, closing) = watch::channel(false);
    let mut serving = tokio::spawn(carrel_api::serve(control.clone(), listeners, closing));
    let ready = doors.ready(&plan);
    ready.say(io::stdout()).map_err(system("standard output"))?;
    manager.tell("READY=1");
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let (grpc, home) = (&ready.grpc, options.home.display());
    tracing::info!(version, pid, ?grpc, %home, config = config.file_said(), "serving");
    descriptors::log_room(&control.descriptors());
    let reload = Reload {
        given: options.config.clone(),
        home: options.home.clone(),
        own_log: options.own_log(),
        plan,
        control: control.clone(),
        local,
        running: Mutex::new(config),
    };
    let reloading = tokio::spawn(reload_on(hangup, Arc::new(reload)));

    let signal = tokio::select! {
        signal = ends.next() => signal,
        served = &mut serving => {
            served.map_err(|error| system("the gRPC server")(io::Error::other(error)))??;
            return Err(system("the gRPC server")(io::Error::other("it ended by itself")));
        }
    };
    reloading.abort();
    tracing::info!(signal, "stopping");
    manager.tell("STOPPING=1");
    let ending = async {
        // Nobody is left to be told when all who listen are gone.
        let _told = close.send(true);
        if tokio::time::timeout(ANSWERING, &mut serving).await.is_err() {
            serving.abort();
        }
        control.shutdown().await;
        store.close().await;
    };
    tokio::select! {
        () = ending => {}
        signal = ends.next() => return Ok(SIGNALLED + u8::try_from(signal).unwrap_or(0)),
    }
    drop(doors);
    tracing::info!("stopped");
    Ok(0)
}

/// Opens the store, and goes on where the last daemon was.
async fn begin(options: &Options, config: &Config, programs: Programs) -> Result<(Store, Control, Local), ServeError> {
    let store = store::open(&options.home, options.accept_data_loss)?;
    let local = Local::new(provider_settings(&options.home, config)?, programs)?;
    let control = Control::start(store.clone(), Arc::new(local.clone()), control_settings(config)).await?;
    Ok((store, control, local))
}

/// What the configuration decides about lives of sandboxes.
pub(crate) fn control_settings(config: &Config) -> Settings {
    Settings {
        idle_ttl: config.idle_ttl,
        cleanup_ttl: config.cleanup_ttl,
        retention: config.retention.history.clone(),
        grace: config.grace,
        most_sandboxes: config.limits.sandboxes,
        kept_sandboxes: config.limits.kept_sandboxes,
        user_sandboxes: config.limits.user_sandboxes,
        kept_specs: config.limits.kept_specs,
        most_memory: config.limits.memory,
        default_memory: config.sandbox_memory(),
        host: Host { allowed: config.allow.clone(), ..Host::find() },
        clock: Clock::default(),
        descriptors: Descriptors::default(),
    }
}

/// What the configuration decides about sandboxes on this machine.
pub(crate) fn provider_settings(home: &Path, config: &Config) -> Result<carrel_local::Settings, ServeError> {
    let root = config.log_root(home);
    Ok(carrel_local::Settings {
        home: home.to_owned(),
        logs: LogTemplate::new(root, &config.exec_output_template)?,
        output_quota: config.retention.output_quota(),
        default_memory: config.sandbox_memory(),
        pids: config.limits.pids,
        host_free: config.limits.host_free,
        host_free_inodes: config.limits.host_free_inodes,
        default_disk: config.limits.sandbox_disk,
        default_inodes: config.limits.sandbox_inodes,
        orphans_kept: config.retention.history.orphans_age,
        prestarted: PRESTARTED,
        // The mirrors were read before, when the file was.
        registries: config.registries.settings().unwrap_or_default(),
    })
}

/// Says what is in effect for a daemon that starts now with these flags, in the form of the file.
fn check(config: Config, plan: &Plan, options: &Options) -> Result<u8, ServeError> {
    use std::io::Write;
    let (home, file, unlimited) = (options.home.display(), config.file_said(), config.unlimited().join(" "));
    let mut text = format!("# in effect for a daemon that starts now\n# home: {home}\n# config: {file}\n{plan}");
    text.push_str(&format!("# grpc: unix:{}\n", socket_file(&options.home).display()));
    if let Some(directives) = log::directives() {
        text.push_str(&format!("# {} goes before log.level: {directives:?}\n", log::VARIABLE));
    }
    if !unlimited.is_empty() {
        text.push_str(&format!("# no limit: {unlimited}\n"));
    }
    let effective = config.effective(&options.home, plan.listens(), options.own_log().as_deref());
    text.push_str(&format!("\n{effective}"));
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(system("standard output")(error)),
        _ => Ok(0),
    }
}

/// Leaves the terminal and the directory of whoever started us.
fn detach() -> Result<(), ServeError> {
    // One who leads its group already has no terminal to leave.
    let _session = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(system("/"))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

// === impl Options ===

impl Options {
    /// The log of a daemon that outlives the terminal of whoever started it.
    fn own_log(&self) -> Option<PathBuf> {
        self.detached.then(|| log_file(&self.home))
    }
}

// === impl Ends ===

impl Ends {
    fn listen() -> Result<Self, ServeError> {
        let listen = |kind| signal(kind).map_err(system("signals"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}
