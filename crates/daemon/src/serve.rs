//! One run of the daemon, from start to shutdown.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrel_control::spec::Host;
use carrel_control::{Clock, Control, ControlSettings, Descriptors};
use carrel_local::{LocalProvider, LogTemplate};
use carrel_shim_client::Programs;
use carrel_store::Store;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::address::Address;
use crate::config::{Config, LogConfig, LogFormat};
use crate::error::ServeError;
use crate::handover::take_over;
use crate::home::{lock_file, log_file, own_directory, socket_file};
use crate::listen::{ListenPlan, OpenListeners};
use crate::lock::{LockError, PidFileLock};
use crate::notify::ServiceManager;
use crate::reload::{Reloader, reload_on};
use crate::{descriptors, home_binding, log, store};

/// How long running requests may take to finish at shutdown.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// How long remaining tasks may delay the exit.
const RUNTIME_TIMEOUT: Duration = Duration::from_millis(100);
/// How many supervisors are prestarted.
const PRESTARTED: usize = 1;
/// The exit code after a second signal is this plus the signal number.
const SIGNAL_EXIT_BASE: u8 = 128;

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The directory with all data of the daemon.
    pub home: PathBuf,
    /// The configuration file; the default one if `None`.
    pub config: Option<PathBuf>,
    /// Addresses to listen on, in addition to those of the configuration.
    pub grpc: Vec<Address>,
    /// Whether TCP listeners use a key that is generated for this run and printed.
    pub dev: bool,
    /// Whether to print the effective configuration only.
    pub check: bool,
    /// Whether a command started it in the background.
    pub detached: bool,
    /// Whether it starts even if its store does not know disks that exist in the home.
    pub accept_data_loss: bool,
}

/// Why a daemon does not serve, and whether its log already has that, in the configured format.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ServeFailure {
    /// The cause.
    pub error: ServeError,
    /// Whether it was already written to standard error.
    pub logged: bool,
}

/// The signals that start the shutdown.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Serves until a signal arrives; returns the exit code. Sandboxes keep running.
pub fn serve(options: &ServeOptions) -> Result<u8, ServeFailure> {
    let mut format = LogFormat::Auto;
    run(options, &mut format).map_err(|error| {
        let logged = !options.check && log::failed(&error, format);
        ServeFailure { error, logged }
    })
}

fn run(options: &ServeOptions, format: &mut LogFormat) -> Result<u8, ServeError> {
    let config = match Config::load(options.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            // The log format can be read even so, unless the file is not TOML.
            *format = Config::log_format_of(options.config.as_deref());
            if !options.check {
                log::begin(&LogConfig { format: *format, ..LogConfig::default() }, None, None)?;
            }
            return Err(error.into());
        }
    };
    *format = config.log.format;
    if options.check {
        config.check_files()?;
        let plan = ListenPlan::new(&config, options)?;
        return check(config, &plan, options);
    }
    if options.detached {
        detach()?;
    }
    let is_root = rustix::process::geteuid().is_root();
    let own_log = options.own_log().filter(|_| is_root);
    log::begin(&config.log, config.file.as_deref(), own_log.as_deref())?;
    config.check_files()?;
    let plan = ListenPlan::new(&config, options)?;
    if !is_root {
        return Err(ServeError::NotRoot);
    }
    descriptors::raise();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(system("a runtime"))?;
    // Installed early: the previous daemon may take a while to exit, and `SIGHUP` must not kill this one meanwhile.
    let hangup = {
        let _within = runtime.enter();
        signal(SignalKind::hangup()).map_err(system("signals"))?
    };
    own_directory(&options.home, true)?;
    let lock = lock_file(&options.home);
    // A daemon that the user starts replaces one that a command started.
    let taken = if options.detached { PidFileLock::take(&lock) } else { take_over(&lock) };
    let _home = taken.map_err(|source| match source {
        LockError::Held { .. } => ServeError::Taken { home: options.home.clone(), source },
        LockError::Io { path, source } => ServeError::Home(crate::home::HomeError::Io { path, source }),
    })?;
    home_binding::verify(&options.home)?;
    let programs = Programs::find()?;
    let code = runtime.block_on(serve_until_signal(options, config, plan, programs, hangup));
    // Unfinished work is left to the next daemon.
    runtime.shutdown_timeout(RUNTIME_TIMEOUT);
    code
}

/// Starts the daemon, serves, and shuts down.
async fn serve_until_signal(
    options: &ServeOptions,
    config: Config,
    plan: ListenPlan,
    programs: Programs,
    hangup: Signal,
) -> Result<u8, ServeError> {
    let (mut shutdown_signals, manager) = (ShutdownSignals::listen()?, ServiceManager::find());
    let started = start(options, &config, programs);
    let (store, control, local) = tokio::select! {
        started = started => started?,
        // No request was accepted yet.
        _ = shutdown_signals.next() => return Ok(0),
    };
    let (open_listeners, listeners) = OpenListeners::open(&plan, &options.home).await?;
    let (close, closing) = watch::channel(false);
    let mut serving = tokio::spawn(carrel_api::serve(control.clone(), listeners, closing));
    let ready = open_listeners.ready(&plan);
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let (grpc, home) = (&ready.grpc, options.home.display());
    tracing::info!(version, pid, ?grpc, %home, config = config.file_description(), "serving");
    descriptors::log_room(&control.descriptors());
    // A program that waits for it finds both in the log.
    ready.write_to(io::stdout()).map_err(system("standard output"))?;
    manager.notify("READY=1");
    let reload = Reloader {
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
        signal = shutdown_signals.next() => signal,
        served = &mut serving => {
            served.map_err(|error| system("the gRPC server")(io::Error::other(error)))??;
            return Err(system("the gRPC server")(io::Error::other("it exited unexpectedly")));
        }
    };
    reloading.abort();
    tracing::info!(signal, "stopping");
    manager.notify("STOPPING=1");
    let ending = async {
        // The send fails if all listeners have already stopped.
        let _sent = close.send(true);
        if tokio::time::timeout(REQUEST_TIMEOUT, &mut serving).await.is_err() {
            serving.abort();
        }
        control.shutdown().await;
        store.close().await;
    };
    tokio::select! {
        () = ending => {}
        signal = shutdown_signals.next() => return Ok(SIGNAL_EXIT_BASE + u8::try_from(signal).unwrap_or(0)),
    }
    drop(open_listeners);
    tracing::info!("stopped");
    Ok(0)
}

/// Opens the store and the provider, and adopts running sandboxes.
async fn start(
    options: &ServeOptions,
    config: &Config,
    programs: Programs,
) -> Result<(Store, Control, LocalProvider), ServeError> {
    let store = store::open(&options.home, options.accept_data_loss)?;
    let local = LocalProvider::new(provider_settings(&options.home, config)?, programs)?;
    let control = Control::start(store.clone(), Arc::new(local.clone()), control_settings(config)).await?;
    Ok((store, control, local))
}

/// The settings of the control plane.
pub(crate) fn control_settings(config: &Config) -> ControlSettings {
    ControlSettings {
        idle_ttl: config.idle_ttl,
        cleanup_ttl: config.cleanup_ttl,
        retention: config.retention.history.clone(),
        grace: config.grace,
        max_sandboxes: config.limits.sandboxes,
        kept_sandboxes: config.limits.kept_sandboxes,
        user_sandboxes: config.limits.user_sandboxes,
        kept_specs: config.limits.kept_specs,
        max_memory: config.limits.memory,
        default_memory: config.sandbox_memory(),
        host: Host { allowed: config.allow.clone(), ..Host::find() },
        clock: Clock::default(),
        descriptors: Descriptors::default(),
    }
}

pub(crate) fn provider_settings(home: &Path, config: &Config) -> Result<carrel_local::LocalSettings, ServeError> {
    let root = config.log_root(home);
    Ok(carrel_local::LocalSettings {
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
        // The mirrors were validated when the file was read.
        registries: config.registries.settings().unwrap_or_default(),
    })
}

/// Prints the effective configuration for these flags, in the format of the file.
fn check(config: Config, plan: &ListenPlan, options: &ServeOptions) -> Result<u8, ServeError> {
    use std::io::Write;
    let (home, file, unlimited) = (options.home.display(), config.file_description(), config.unlimited().join(" "));
    let mut text = format!("# in effect for a daemon that starts now\n# home: {home}\n# config: {file}\n{plan}");
    text.push_str(&format!("# grpc: unix:{}\n", socket_file(&options.home).display()));
    if let Some(directives) = log::directives() {
        text.push_str(&format!("# {} overrides log.level: {directives:?}\n", log::VARIABLE));
    }
    if !unlimited.is_empty() {
        text.push_str(&format!("# no limit: {unlimited}\n"));
    }
    let effective = config.effective(&options.home, plan.listen_configs(), options.own_log().as_deref());
    text.push_str(&format!("\n{effective}"));
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(system("standard output")(error)),
        _ => Ok(0),
    }
}

/// Leaves the terminal session and the working directory of the parent process.
fn detach() -> Result<(), ServeError> {
    // A process group leader has no controlling terminal to leave.
    let _session = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(system("/"))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

// === impl ServeOptions ===

impl ServeOptions {
    /// The log file of a daemon that a command started in the background.
    fn own_log(&self) -> Option<PathBuf> {
        self.detached.then(|| log_file(&self.home))
    }
}

// === impl ShutdownSignals ===

impl ShutdownSignals {
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
