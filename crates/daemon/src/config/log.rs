//! What is logged, how, and where.

use std::path::PathBuf;

/// What is logged, how, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The least severe that is logged of this program's own messages.
    pub level: LogLevel,
    /// What a line looks like.
    pub format: LogFormat,
    /// The file that lines are appended to; none is standard error.
    pub file: Option<PathBuf>,
    /// How many bytes that file may have before it is rotated; 0 is no limit.
    pub max_size: u64,
    /// How many rotated files are kept beside it.
    pub keep: u32,
}

/// How severe a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// What is broken.
    Error,
    /// What may be.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// Why it happens.
    Debug,
    /// Everything.
    Trace,
}

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text at a terminal, text with priorities for journald, JSON elsewhere.
    #[default]
    Auto,
    /// Text with a timestamp.
    Text,
    /// One JSON object for each line.
    Json,
}

// === impl LogConfig ===

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: LogLevel::default(),
            format: LogFormat::default(),
            file: None,
            // A day of a busy daemon, and four times that on disk at most.
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

    /// What it is called.
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

    /// What it is called.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, format)| *format == self).map_or("auto", |(name, _)| name)
    }
}
