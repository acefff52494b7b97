//! Selects the messages that are logged.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use crate::config::LogLevel;

/// The prefix of our own targets.
const OWN: &str = "carrel";

/// The configured level for our own messages, and `warn` for libraries: at a finer level those log every frame of every
/// connection. Directives such as `h2=debug` override both.
pub(super) fn targets(level: LogLevel, directives: Option<&str>) -> Targets {
    let own = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let targets = Targets::new().with_default(own.min(LevelFilter::WARN)).with_target(OWN, own);
    // Invalid directives are ignored.
    let Some(given) = directives.and_then(|text| text.parse::<Targets>().ok()) else { return targets };
    let default = given.default_level().filter(|level| *level != LevelFilter::OFF);
    let targets = targets.with_targets(given);
    match default {
        Some(level) => targets.with_default(level).with_target(OWN, level),
        None => targets,
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_log_only_warnings_at_every_level() {
        for level in [LogLevel::Info, LogLevel::Debug, LogLevel::Trace] {
            let targets = targets(level, None);
            for library in ["h2::proto", "hyper::client", "tonic::transport", "tower::buffer", "rustls::conn"] {
                assert!(!targets.would_enable(library, &Level::INFO), "{library} at {level:?}");
                assert!(targets.would_enable(library, &Level::WARN), "{library} at {level:?}");
            }
        }
        assert!(targets(LogLevel::Trace, None).would_enable("carrel_api::door", &Level::TRACE));
        assert!(!targets(LogLevel::Error, None).would_enable("h2", &Level::WARN));
    }

    #[test]
    fn directives_override_the_configuration() {
        let given = targets(LogLevel::Info, Some("h2=trace,carrel_local=debug"));
        assert!(given.would_enable("h2::frame", &Level::TRACE) && given.would_enable("carrel_local", &Level::DEBUG));
        assert!(!given.would_enable("hyper", &Level::INFO) && !given.would_enable("carrel_api", &Level::DEBUG));
        assert!(targets(LogLevel::Info, Some("debug")).would_enable("carrel_api", &Level::DEBUG));
        assert_eq!(targets(LogLevel::Info, Some("h2=loud")), targets(LogLevel::Info, None));
    }
}
