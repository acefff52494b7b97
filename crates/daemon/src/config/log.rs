//! The configuration of the log.

use std::path::PathBuf;

/// Level, format and target of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The least severe level of our own messages.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// The file to append to; `None` is standard error.
    pub file: Option<PathBuf>,
    /// The size in bytes at which the file is rotated; 0 is no limit.
    pub max_size: u64,
    /// How many rotated files are kept.
    pub keep: u32,
}

/// The severity of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may be wrong.
    Warn,
    /// Normal operation.
    #[default]
    Info,
    /// Details for debugging.
    Debug,
    /// Everything.
    Trace,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text at a terminal, text with priorities for journald, JSON elsewhere.
    #[default]
    Auto,
    /// Text with a timestamp.
    Text,
    /// One JSON object per line.
    Json,
}

// === impl LogConfig ===

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: LogLevel::default(),
            format: LogFormat::default(),
            file: None,
            // A day of a busy daemon; at most four times that on disk.
            max_size: 10 << 20,
            keep: 3,
        }
    }
}

// === impl LogLevel ===

impl LogLevel {
    const ALL: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, level)| level)
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

// === impl LogFormat ===

impl LogFormat {
    const ALL: [(&'static str, Self); 3] = [("auto", Self::Auto), ("text", Self::Text), ("json", Self::Json)];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, format)| *format == self).map_or("auto", |(name, _)| name)
    }
}
