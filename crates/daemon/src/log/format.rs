//! The format of a log line.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Json, Writer};
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The style of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    /// Text with a timestamp.
    Text = 0,
    /// One JSON object.
    Json = 1,
    /// Text for journald, which adds the time and reads the priority from `<N>`.
    Journal = 2,
}

/// A format that can change at run time. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LineFormat {
    style: Arc<AtomicU8>,
    text: Format<Full, SystemTime>,
    json: Format<Json, SystemTime>,
    journal: Format<Full, ()>,
}

// === impl LineFormat ===

impl LineFormat {
    pub(super) fn new(style: LineStyle) -> Self {
        let json = Format::default().json().flatten_event(true).with_current_span(false).with_span_list(false);
        Self {
            style: Arc::new(AtomicU8::new(style as u8)),
            text: Format::default().with_ansi(false),
            json,
            journal: Format::default().with_ansi(false).with_level(false).without_time(),
        }
    }

    pub(super) fn set(&self, style: LineStyle) {
        self.style.store(style as u8, Ordering::Relaxed);
    }

    pub(super) fn style(&self) -> LineStyle {
        match self.style.load(Ordering::Relaxed) {
            0 => LineStyle::Text,
            2 => LineStyle::Journal,
            _ => LineStyle::Json,
        }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        match self.style() {
            LineStyle::Json => return self.json.format_event(context, writer, event),
            LineStyle::Text => self.text.format_event(context, Writer::new(&mut line), event)?,
            LineStyle::Journal => {
                write!(line, "<{}>", priority(*event.metadata().level()))?;
                self.journal.format_event(context, Writer::new(&mut line), event)?;
            }
        }
        write_line(&mut writer, line.trim_end_matches('\n'))
    }
}

/// The syslog priority of a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes a message on one line, even if a caller put line breaks into it.
fn write_line(writer: &mut impl fmt::Write, message: &str) -> fmt::Result {
    for character in message.chars() {
        match character {
            control if control.is_control() => write!(writer, "{}", control.escape_default())?,
            plain => writer.write_char(plain)?,
        }
    }
    writer.write_char('\n')
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'w> MakeWriter<'w> for CapturedLog {
        type Writer = Self;

        fn make_writer(&'w self) -> Self {
            self.clone()
        }
    }

    fn logged(style: LineStyle) -> String {
        let (lines, format) = (CapturedLog::default(), LineFormat::new(LineStyle::Text));
        format.set(style);
        let subscriber = tracing_subscriber::fmt().event_format(format).with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(sandbox = %"a\n<0>b\u{1b}[2J", ms = 3, "refused");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_message_is_one_line_in_every_style() {
        let journal = logged(LineStyle::Journal);
        assert!(journal.starts_with("<4>carrel_daemon::log::format::tests: refused sandbox=a"), "{journal}");
        assert!(logged(LineStyle::Text).contains("WARN carrel_daemon::log::format::tests: refused sandbox=a"));
        let object: serde_json::Value = serde_json::from_str(&logged(LineStyle::Json)).unwrap();
        assert_eq!((&object["level"], &object["sandbox"]), (&"WARN".into(), &"a\n<0>b\u{1b}[2J".into()));
        for style in [LineStyle::Text, LineStyle::Json, LineStyle::Journal] {
            let line = logged(style);
            assert_eq!((line.lines().count(), line.contains('\u{1b}')), (1, false), "{line:?}");
        }
    }

    #[test]
    fn levels_map_to_priorities_of_journald() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
    }
}
