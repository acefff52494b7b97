//! What goes wrong, in the words that a person reads: what happened, and what to do about it.

use std::fmt;
use std::path::Path;

use carrel_agent_client::PathError;
use carrel_changes::EscapedLine;
use carrel_fetch::FetchError;
use carrel_image::ImageError;
use carrel_layers::StoreError;
use carrel_shim_client::messages::FailureCode;
use carrel_shim_client::{OwnerError, ProgramsError};
use serde_json::json;

/// The exit code of our own failures: a command's own codes are its own.
pub(crate) const EXIT_CARREL_FAILED: u8 = 125;

/// A failure of ours, or one that a person has to be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A stable name for programs.
    pub(crate) code: &'static str,
    /// The word that whoever refused goes by, if it was not us.
    pub(crate) reason: Option<String>,
    /// What happened.
    pub(crate) message: String,
    /// What more there is to say of it, a line each.
    pub(crate) notes: Vec<String>,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// What this program exits with.
    pub(crate) exit: u8,
}

/// What became of several things that were asked for at once: each failure is told, the last one by whoever called.
#[derive(Debug)]
pub(crate) struct Failures {
    json: bool,
    last: Option<Failure>,
}

// === impl Failures ===

impl Failures {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, last: None }
    }

    pub(crate) fn add(&mut self, failure: Failure) {
        if let Some(earlier) = self.last.replace(failure) {
            earlier.report(self.json);
        }
    }

    /// What to exit with: 0, or that code if there were any.
    pub(crate) fn finish(self, exit: u8) -> Result<u8, Failure> {
        self.last.map_or(Ok(0), |failure| Err(failure.exit(exit)))
    }
}

// === impl Failure ===

impl Failure {
    pub(crate) fn new(code: &'static str, message: impl fmt::Display) -> Self {
        Self {
            code,
            reason: None,
            message: message.to_string(),
            notes: Vec::new(),
            hint: None,
            exit: EXIT_CARREL_FAILED,
        }
    }

    /// A failure that is told in several lines.
    pub(crate) fn lines(code: &'static str, message: impl fmt::Display) -> Self {
        let text = message.to_string();
        let mut lines = text.split('\n');
        let first = Self::new(code, lines.next().unwrap_or_default());
        Self { notes: lines.map(str::to_owned).collect(), ..first }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// The same, with the sandbox that a command is about where its hint says `NAME`.
    #[must_use]
    pub(crate) fn naming(mut self, sandbox: Option<&str>) -> Self {
        // It is pasted into a shell.
        let plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        if let (Some(name), Some(hint)) = (sandbox.filter(plain), &mut self.hint) {
            *hint = hint.replace(" NAME", &format!(" {name}"));
        }
        self
    }

    /// Says it on standard error: in lines for a person, in one JSON object for a program.
    pub(crate) fn report(&self, json: bool) {
        // Nobody is left to tell when standard error is gone.
        let _said = std::io::Write::write_all(&mut std::io::stderr(), self.words(json).as_bytes());
    }

    /// As one object on one line.
    pub(crate) fn object(&self) -> String {
        let whole = std::iter::once(&self.message).chain(&self.notes).map(String::as_str).collect::<Vec<_>>();
        let mut error = json!({"code": self.code, "message": whole.join("\n")});
        for (key, value) in [("reason", &self.reason), ("hint", &self.hint)] {
            if let (Some(value), Some(error)) = (value, error.as_object_mut()) {
                error.insert(key.to_owned(), value.as_str().into());
            }
        }
        crate::json::line(&json!({"error": error}))
    }

    fn words(&self, json: bool) -> String {
        if json {
            return self.object();
        }
        // Names of files and what a sandbox said may be in them.
        let mut text = match &self.reason {
            Some(reason) => format!("error: {} ({})\n", EscapedLine(&self.message), EscapedLine(reason)),
            None => format!("error: {}\n", EscapedLine(&self.message)),
        };
        for note in &self.notes {
            text.push_str(&format!("{}\n", EscapedLine(note)));
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {}\n", EscapedLine(hint)));
        }
        text
    }
}

/// Says that something went wrong that must not: in a line, without what only helps those who know the code.
pub(crate) fn bug(panic: &std::panic::PanicHookInfo<'_>) {
    let payload = panic.payload();
    let said = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    bug_at(said, panic.location().map(ToString::to_string)).report(false);
}

fn bug_at(said: Option<&str>, place: Option<String>) -> Failure {
    let mut words = "this is a bug in carrel".to_owned();
    for part in said.into_iter().chain(place.as_deref()) {
        words.push_str(": ");
        words.push_str(part);
    }
    Failure::new("bug", words).hint("report it with what you did")
}

impl From<OwnerError> for Failure {
    fn from(error: OwnerError) -> Self {
        match &error {
            OwnerError::Failed(failed) => {
                let mut failure = Self::new(failed.code.as_str(), &failed.message);
                failure.hint = failed.hint.clone().or_else(|| remedy(failed.code).map(str::to_owned));
                failure
            }
            OwnerError::Start { .. } => Self::new("helper_missing", error).hint("carrel doctor"),
            OwnerError::Gone(_) => Self::new("supervisor_gone", error).hint("carrel doctor"),
            OwnerError::Ended(_) => Self::new("sandbox_ended", error),
            OwnerError::Unreadable(_) | OwnerError::Broken(_) => Self::new("supervisor_unreadable", error)
                .hint("install carrel and carrel-shim of the same version, side by side"),
            OwnerError::Encode(_) | OwnerError::Io(_) => Self::new("supervisor_lost", error),
        }
    }
}

/// What helps, where the supervisor gives no hint of its own.
pub(crate) fn remedy(code: FailureCode) -> Option<&'static str> {
    match code {
        FailureCode::NameTaken => Some("choose another --name, or end the one that has it"),
        FailureCode::HostUnfit => Some("carrel doctor"),
        FailureCode::LimitUnenforceable => {
            Some("carrel doctor says what the host lacks; --allow-unenforced-limits runs without that limit")
        }
        FailureCode::Supervised => Some("end what supervises it first; `carrel inspect NAME` names that process"),
        FailureCode::JobConflict => Some("give another --job, or the same command"),
        FailureCode::JobPruned => Some("give another --job: this one has run, and is not run again"),
        FailureCode::JobUnknown => Some("`carrel ps NAME` lists the jobs of a sandbox"),
        FailureCode::InputTaken => Some("`carrel attach --take-over` takes it, --read-only does without"),
        FailureCode::TooMany => Some("`carrel ps NAME` lists its jobs; retry when one has ended"),
        FailureCode::JournalFailed => Some("look whether the disk that CARREL_HOME is on is full"),
        FailureCode::Unsupported => {
            Some("install carrel and carrel-shim of the same version, and begin the sandbox anew")
        }
        // What is wrong with a request or a launch only the supervisor knows, and it gives its own.
        FailureCode::InvalidRequest | FailureCode::LaunchFailed => None,
        FailureCode::JobEnded | FailureCode::InputClosed | FailureCode::InputGap => None,
        FailureCode::AgentFailed | FailureCode::WrongState | FailureCode::Unknown => None,
    }
}

impl From<ProgramsError> for Failure {
    fn from(error: ProgramsError) -> Self {
        Self::new("helper_missing", error).hint("keep it beside carrel, or set CARREL_LIBEXEC to where it is")
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        match &error {
            PathError::BadName(_) => Self::new("invalid_name", error),
            PathError::TooLong { .. } => Self::new("home_too_long", error).hint("set CARREL_HOME to a shorter path"),
        }
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        let (code, words) = (
            if matches!(error, FetchError::Name(_)) { "invalid_image" } else { "image_unavailable" },
            error.to_string(),
        );
        let hint = match &error {
            // Who means a file is told how to write that, rather than what else may be wrong.
            FetchError::Pull { name, .. } if Path::new(name).exists() => {
                let message = words.split_once("\nhint: ").map_or(words.as_str(), |(message, _)| message);
                return Self::new(code, message).hint(format!("for the file of that name write ./{name}"));
            }
            FetchError::Image(ImageError::Missing { .. } | ImageError::NotDirectoryOrFile(_))
            | FetchError::Store(StoreError::Missing { .. } | StoreError::NotDirectoryOrFile(_)) => {
                Some("a path is that of a directory that is a root file system, or of the tar of one")
            }
            _ => None,
        };
        match (words.split_once("\nhint: "), hint) {
            (Some((message, hint)), _) => Self::new(code, message).hint(hint),
            (None, Some(hint)) => Self::new(code, words).hint(hint),
            (None, None) => Self::new(code, words),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::Failed;

    use super::*;

    #[test]
    fn who_means_a_file_is_told_how_to_write_it() {
        use carrel_registry::RegistryError;
        let failed = |name: &str| {
            let missing = RegistryError::NotFound { registry: "docker.io".to_owned(), what: format!("{name}:latest") };
            let error = Box::new(FetchError::Registry(missing));
            Failure::from(FetchError::Pull { name: name.to_owned(), error }).words(false)
        };
        let said = |name: &str| format!("error: image {name}: {name}:latest not found in docker.io\nhint: ");
        // Tests are run where this is.
        let there = "Cargo.toml";
        assert_eq!(failed(there), format!("{}for the file of that name write ./{there}\n", said(there)));
        assert_eq!(failed("missing"), format!("{}check the image's name and tag\n", said("missing")));
    }

    //= carrel.command.errors-hint-json-completions
    //= promises.command.error
    #[test]
    fn a_failure_is_a_line_and_a_hint() {
        let failed = Failed {
            code: FailureCode::NameTaken,
            message: "a sandbox named \"web\" is running".to_owned(),
            hint: None,
        };
        let failure = Failure::from(OwnerError::Failed(failed));
        assert_eq!(
            failure.words(false),
            "error: a sandbox named \"web\" is running\nhint: choose another --name, or end the one that has it\n"
        );
        assert_eq!(failure.exit, 125);
    }

    #[test]
    fn what_somebody_else_refused_is_told_with_their_word_for_it() {
        let failure = Failure { reason: Some("LIMIT_REACHED".to_owned()), ..Failure::new("refused", "no room") };
        assert_eq!(failure.words(false), "error: no room (LIMIT_REACHED)\n");
        let object = "{\"error\":{\"code\":\"refused\",\"message\":\"no room\",\"reason\":\"LIMIT_REACHED\"}}\n";
        assert_eq!(failure.words(true), object);
    }

    //= promises.command.error
    #[test]
    fn what_a_supervisor_hints_at_is_all_that_is_hinted_at() {
        for code in [FailureCode::InvalidRequest, FailureCode::LaunchFailed] {
            for hint in [None, Some("its own".to_owned())] {
                let failed = Failed { code, message: "no".to_owned(), hint: hint.clone() };
                assert_eq!(Failure::from(OwnerError::Failed(failed)).hint, hint);
            }
        }
    }

    //= promises.command.error
    #[test]
    fn no_name_in_a_failure_steers_a_terminal_or_looks_like_a_line_of_ours() {
        let failure = Failure::new("x", "a\u{1b}[2J\nhint: rm -rf /").hint("b\u{9b}1m");
        assert_eq!(failure.words(false), "error: a\\x1b[2J\\x0ahint: rm -rf /\nhint: b\\u{9b}1m\n");
        assert_eq!(Failure::lines("x", "one\n  two\r\n  three").words(false), "error: one\n  two\\x0d\n  three\n");
        assert!(Failure::lines("x", "one\n  two").words(true).contains("\"one\\n  two\""));
    }

    #[test]
    fn a_hint_names_the_sandbox_that_the_command_is_about() {
        let hint = |name| Failure::new("x", "y").hint("`carrel ps NAME` lists its jobs").naming(name).hint.unwrap();
        assert_eq!(hint(Some("web-1")), "`carrel ps web-1` lists its jobs");
        assert_eq!(hint(Some("$(rm)")), "`carrel ps NAME` lists its jobs");
        assert_eq!(hint(None), "`carrel ps NAME` lists its jobs");
    }

    #[test]
    fn a_mistake_of_ours_is_one_line_and_a_hint() {
        assert_eq!(
            bug_at(Some("index out of bounds"), Some("src/main.rs:1:2".to_owned())).words(false),
            "error: this is a bug in carrel: index out of bounds: src/main.rs:1:2\nhint: report it with what you did\n"
        );
        assert_eq!(bug_at(None, None).message, "this is a bug in carrel");
    }

    //= promises.command.error
    #[test]
    fn a_panic_is_told_without_a_backtrace() {
        const MARK: &str = "CARREL_TEST_PANICS";
        if std::env::var_os(MARK).is_some() {
            std::panic::set_hook(Box::new(bug));
            panic!("it broke");
        }
        // A process of its own: a hook is for all threads.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["failure::tests::a_panic_is_told_without_a_backtrace", "--exact", "--nocapture"]);
        let output = child.env(MARK, "1").env("RUST_BACKTRACE", "full").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: this is a bug in carrel: it broke: "), "{said}");
        assert!(said.ends_with("\nhint: report it with what you did\n") && said.lines().count() == 2, "{said}");
    }

    //= promises.command.error
    #[test]
    fn for_programs_a_failure_is_one_object_on_one_line() {
        let failure = Failure::new("invalid_name", "no\nname");
        assert_eq!(failure.words(true), "{\"error\":{\"code\":\"invalid_name\",\"message\":\"no\\nname\"}}\n");
        let hinted = failure.hint("try \"another\"").words(true);
        assert!(hinted.ends_with(",\"hint\":\"try \\\"another\\\"\"}}\n"), "{hinted}");
        assert_eq!(hinted.lines().count(), 1);
    }

    #[test]
    fn a_missing_helper_says_where_it_was_looked_for() {
        let error = ProgramsError { program: "carrel-shim", directory: "/opt".into() };
        assert_eq!(
            Failure::from(error).words(false),
            "error: carrel-shim is not in /opt\nhint: keep it beside carrel, or set CARREL_LIBEXEC to where it is\n"
        );
    }
}
