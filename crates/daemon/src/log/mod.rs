//! The log of the daemon: filter, format and target. All three can change at run time.

mod filter;
mod format;
mod sink;

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, fmt, reload};

use self::format::{LineFormat, LineStyle};
use self::sink::LogSink;
use crate::config::{ConfigError, ConfigFileError, LogConfig, LogFormat};
use crate::error::ServeError;

/// The environment variable that overrides the configured levels, such as `carrel_local=debug,h2=info`.
pub(crate) const VARIABLE: &str = "CARREL_LOG";

static LOG: OnceLock<DaemonLog> = OnceLock::new();

/// The log of this process.
struct DaemonLog {
    filter: reload::Handle<Targets, Registry>,
    format: LineFormat,
    sink: LogSink,
}

/// The directives of the environment variable, if it is set.
pub(crate) fn directives() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())
}

/// Initializes the log. A daemon that a command started logs to a file in its home unless the configuration names
/// another.
pub(crate) fn begin(config: &LogConfig, file: Option<&Path>, detached: Option<&Path>) -> Result<(), ConfigError> {
    let target = config.file.as_deref().or(detached);
    let sink = LogSink::open(target, config).map_err(|source| unusable(file, target, source))?;
    let format = LineFormat::new(style(config.format, target.is_some()));
    let (filter, handle) = reload::Layer::new(filter::targets(config.level, directives().as_deref()));
    let lines =
        fmt::layer().with_ansi(false).log_internal_errors(false).event_format(format.clone()).with_writer(sink.clone());
    // A test may have installed a subscriber already.
    if tracing::subscriber::set_global_default(Registry::default().with(filter).with(lines)).is_ok() {
        let _first = LOG.set(DaemonLog { filter: handle, format, sink });
    }
    Ok(())
}

/// Applies a new configuration; the file is reopened even if its path is the same.
pub(crate) fn reconfigure(config: &LogConfig, file: Option<&Path>, detached: Option<&Path>) -> Result<(), ConfigError> {
    let Some(log) = LOG.get() else { return Ok(()) };
    let target = config.file.as_deref().or(detached);
    log.sink.reopen(target, config).map_err(|source| unusable(file, target, source))?;
    log.format.set(style(config.format, target.is_some()));
    let targets = filter::targets(config.level, directives().as_deref());
    if let Err(error) = log.filter.reload(targets) {
        tracing::warn!(%error, "the log level cannot be changed");
    }
    Ok(())
}

/// Logs why the daemon does not serve, unless a person reads the log at a terminal; returns whether standard error
/// already has it.
pub(crate) fn failed(error: &ServeError, config: LogFormat) -> bool {
    let Some(log) = LOG.get() else { return false };
    let for_programs = config == LogFormat::Json || log.format.style() == LineStyle::Journal;
    if for_programs || log.sink.is_file() {
        let hint = error.hint();
        tracing::error!(code = error.code(), error = %error, hint, "the daemon cannot serve");
    }
    for_programs && !log.sink.is_file()
}

fn unusable(path: Option<&Path>, target: Option<&Path>, source: io::Error) -> ConfigError {
    let file = target.map(Path::to_owned).unwrap_or_default();
    let source = Box::new(ConfigFileError::Open { file, source });
    ConfigError::File { path: path.map(Path::to_owned).unwrap_or_default(), key: "log.file".to_owned(), source }
}

/// The style for a format and a target.
fn style(format: LogFormat, to_file: bool) -> LineStyle {
    let stderr = (!to_file).then(io::stderr);
    let is_journal = stderr.as_ref().is_some_and(|stderr| sink::is_journal(stderr, std::env::var_os("JOURNAL_STREAM")));
    let is_terminal = stderr.as_ref().is_some_and(io::IsTerminal::is_terminal);
    match format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Auto | LogFormat::Text if is_journal => LineStyle::Journal,
        LogFormat::Text => LineStyle::Text,
        LogFormat::Auto if is_terminal => LineStyle::Text,
        LogFormat::Auto => LineStyle::Json,
    }
}
