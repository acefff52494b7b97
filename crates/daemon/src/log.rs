//! What the daemon tells while it runs, on standard error: lines for people at a terminal, objects for programs.

use std::io::IsTerminal;

use tracing::Level;

use crate::config::LogLevel;

/// From now on what happens is told.
pub(crate) fn begin(level: LogLevel) {
    let level = match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level);
    // One that is told to somebody already is a test's.
    let _begun = match std::io::stderr().is_terminal() {
        true => tracing::subscriber::set_global_default(lines.with_ansi(false).finish()),
        false => {
            let objects = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            tracing::subscriber::set_global_default(objects.finish())
        }
    };
}
