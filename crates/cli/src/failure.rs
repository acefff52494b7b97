//! Errors for people and programs: what happened, and a hint.

use std::fmt;
use std::path::Path;

use carrel_agent_client::PathError;
use carrel_changes::EscapedLine;
use carrel_fetch::FetchError;
use carrel_image::ImageError;
use carrel_layers::ImageStoreError;
use carrel_shim_client::messages::FailureCode;
use carrel_shim_client::{OwnerError, ProgramsError};
use serde_json::json;

/// The exit code of a failure of Carrel, as opposed to one of the command.
pub(crate) const EXIT_CARREL_FAILED: u8 = 125;

/// An error to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A stable name for programs.
    pub(crate) code: &'static str,
    /// The reason code of the daemon, if it refused the request.
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
    /// Further lines of the message.
    pub(crate) notes: Vec<String>,
    /// A command, or an instruction.
    pub(crate) hint: Option<String>,
    /// The exit code.
    pub(crate) exit: u8,
}

/// The failures of a command with several targets: each is reported, the last one by the caller.
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

    /// Returns 0, or the last failure with the exit code.
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

    /// A failure with a message of several lines.
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

    /// Replaces `NAME` in the hint with the sandbox that the command names.
    #[must_use]
    pub(crate) fn with_sandbox_name(mut self, sandbox: Option<&str>) -> Self {
        // It is pasted into a shell.
        let plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        if let (Some(name), Some(hint)) = (sandbox.filter(plain), &mut self.hint) {
            *hint = hint.replace(" NAME", &format!(" {name}"));
        }
        self
    }

    /// Prints it to standard error: as lines, or as one JSON object.
    pub(crate) fn report(&self, json: bool) {
        // Nothing can be reported if standard error is closed.
        let _written = std::io::Write::write_all(&mut std::io::stderr(), self.text(json).as_bytes());
    }

    /// The failure as one JSON object on one line.
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

    fn text(&self, json: bool) -> String {
        if json {
            return self.object();
        }
        // They may contain file names and text of a sandbox.
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

/// The panic hook: reports a bug in one line, without a backtrace.
pub(crate) fn bug(panic: &std::panic::PanicHookInfo<'_>) {
    let payload = panic.payload();
    let message =
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    bug_at(message, panic.location().map(ToString::to_string)).report(false);
}

fn bug_at(message: Option<&str>, location: Option<String>) -> Failure {
    let mut words = "this is a bug in carrel".to_owned();
    for part in message.into_iter().chain(location.as_deref()) {
        words.push_str(": ");
        words.push_str(part);
    }
    Failure::new("bug", words).hint("report it with the command that you ran")
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

/// The hint for a failure of the shim, if the shim gives none.
pub(crate) fn remedy(code: FailureCode) -> Option<&'static str> {
    match code {
        FailureCode::NameTaken => Some("choose another --name, or stop the sandbox that has it"),
        FailureCode::HostUnfit => Some("carrel doctor"),
        FailureCode::LimitUnenforceable => {
            Some("`carrel doctor` shows what the host lacks; --allow-unenforced-limits runs without that limit")
        }
        FailureCode::Supervised => Some("stop its supervisor first; `carrel inspect NAME` shows that process"),
        FailureCode::JobConflict => Some("give another --job, or the same command"),
        FailureCode::JobPruned => Some("give another --job: this one has run already"),
        FailureCode::JobUnknown => Some("`carrel ps NAME` lists the jobs of a sandbox"),
        FailureCode::InputTaken => {
            Some("`carrel attach --take-over` takes over the input, --read-only attaches without it")
        }
        FailureCode::TooMany => Some("`carrel ps NAME` lists its jobs; retry when one has exited"),
        FailureCode::JournalFailed => Some("check whether the disk of CARREL_HOME is full"),
        FailureCode::DiskDamaged => Some("check whether the disk of the host fails: dmesg | tail"),
        FailureCode::Unsupported => {
            Some("install carrel and carrel-shim of the same version, and recreate the sandbox")
        }
        // The shim has its own hints for these.
        FailureCode::InvalidRequest | FailureCode::LaunchFailed => None,
        FailureCode::JobEnded | FailureCode::InputClosed | FailureCode::InputGap => None,
        FailureCode::AgentFailed | FailureCode::WrongState | FailureCode::Unknown => None,
    }
}

impl From<ProgramsError> for Failure {
    fn from(error: ProgramsError) -> Self {
        Self::new("helper_missing", error).hint("keep it beside carrel, or set CARREL_LIBEXEC to its directory")
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
            // A local file of that name was probably meant.
            FetchError::Pull { name, .. } if Path::new(name).exists() => {
                let message = words.split_once("\nhint: ").map_or(words.as_str(), |(message, _)| message);
                return Self::new(code, message).hint(format!("for the local file, write ./{name}"));
            }
            FetchError::Image(ImageError::Missing { .. } | ImageError::NotDirectoryOrFile(_))
            | FetchError::Store(ImageStoreError::Missing { .. } | ImageStoreError::NotDirectoryOrFile(_)) => {
                Some("give the path of a root file system, or of its tar")
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
    use carrel_shim_client::messages::ShimFailure;

    use super::*;

    #[test]
    fn a_name_of_a_local_file_gets_a_hint_to_write_it_as_a_path() {
        use carrel_registry::RegistryError;
        let failed = |name: &str| {
            let missing = RegistryError::NotFound { registry: "docker.io".to_owned(), what: format!("{name}:latest") };
            let error = Box::new(FetchError::Registry(missing));
            Failure::from(FetchError::Pull { name: name.to_owned(), error }).text(false)
        };
        let message = |name: &str| format!("error: image {name}: {name}:latest not found in docker.io\nhint: ");
        // Tests run in the directory of this file.
        let existing = "Cargo.toml";
        assert_eq!(failed(existing), format!("{}for the local file, write ./{existing}\n", message(existing)));
        assert_eq!(failed("missing"), format!("{}check the image's name and tag\n", message("missing")));
    }

    //= carrel.command.errors-hint-json-completions
    //= promises.command.error
    #[test]
    fn a_failure_is_a_line_and_a_hint() {
        let failed = ShimFailure {
            code: FailureCode::NameTaken,
            message: "a sandbox named \"web\" is running".to_owned(),
            hint: None,
        };
        let failure = Failure::from(OwnerError::Failed(failed));
        assert_eq!(
            failure.text(false),
            "error: a sandbox named \"web\" is running\nhint: choose another --name, or stop the sandbox that has it\n"
        );
        assert_eq!(failure.exit, 125);
    }

    #[test]
    fn a_refusal_of_the_daemon_has_its_reason_code() {
        let failure = Failure { reason: Some("LIMIT_REACHED".to_owned()), ..Failure::new("refused", "no room") };
        assert_eq!(failure.text(false), "error: no room (LIMIT_REACHED)\n");
        let object = "{\"error\":{\"code\":\"refused\",\"message\":\"no room\",\"reason\":\"LIMIT_REACHED\"}}\n";
        assert_eq!(failure.text(true), object);
    }

    //= promises.command.error
    #[test]
    fn a_hint_of_the_shim_is_the_only_hint() {
        for code in [FailureCode::InvalidRequest, FailureCode::LaunchFailed] {
            for hint in [None, Some("its own".to_owned())] {
                let failed = ShimFailure { code, message: "no".to_owned(), hint: hint.clone() };
                assert_eq!(Failure::from(OwnerError::Failed(failed)).hint, hint);
            }
        }
    }

    //= promises.command.error
    #[test]
    fn a_failure_prints_no_control_characters_and_no_forged_lines() {
        let failure = Failure::new("x", "a\u{1b}[2J\nhint: rm -rf /").hint("b\u{9b}1m");
        assert_eq!(failure.text(false), "error: a\\x1b[2J\\x0ahint: rm -rf /\nhint: b\\u{9b}1m\n");
        assert_eq!(Failure::lines("x", "one\n  two\r\n  three").text(false), "error: one\n  two\\x0d\n  three\n");
        assert!(Failure::lines("x", "one\n  two").text(true).contains("\"one\\n  two\""));
    }

    #[test]
    fn a_hint_names_the_sandbox_of_the_command() {
        let hint =
            |name| Failure::new("x", "y").hint("`carrel ps NAME` lists its jobs").with_sandbox_name(name).hint.unwrap();
        assert_eq!(hint(Some("web-1")), "`carrel ps web-1` lists its jobs");
        assert_eq!(hint(Some("$(rm)")), "`carrel ps NAME` lists its jobs");
        assert_eq!(hint(None), "`carrel ps NAME` lists its jobs");
    }

    #[test]
    fn a_bug_is_one_line_and_a_hint() {
        assert_eq!(
            bug_at(Some("index out of bounds"), Some("src/main.rs:1:2".to_owned())).text(false),
            "error: this is a bug in carrel: index out of bounds: src/main.rs:1:2\nhint: report it with the command that you ran\n"
        );
        assert_eq!(bug_at(None, None).message, "this is a bug in carrel");
    }

    //= promises.command.error
    #[test]
    fn a_panic_is_reported_without_a_backtrace() {
        const ENVIRONMENT: &str = "CARREL_TEST_PANICS";
        if std::env::var_os(ENVIRONMENT).is_some() {
            std::panic::set_hook(Box::new(bug));
            panic!("it broke");
        }
        // In a separate process, because a hook is global.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["failure::tests::a_panic_is_reported_without_a_backtrace", "--exact", "--nocapture"]);
        let output = child.env(ENVIRONMENT, "1").env("RUST_BACKTRACE", "full").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("error: this is a bug in carrel: it broke: "), "{stderr}");
        assert!(
            stderr.ends_with("\nhint: report it with the command that you ran\n") && stderr.lines().count() == 2,
            "{stderr}"
        );
    }

    //= promises.command.error
    #[test]
    fn as_json_a_failure_is_one_object_on_one_line() {
        let failure = Failure::new("invalid_name", "no\nname");
        assert_eq!(failure.text(true), "{\"error\":{\"code\":\"invalid_name\",\"message\":\"no\\nname\"}}\n");
        let hinted = failure.hint("try \"another\"").text(true);
        assert!(hinted.ends_with(",\"hint\":\"try \\\"another\\\"\"}}\n"), "{hinted}");
        assert_eq!(hinted.lines().count(), 1);
    }

    #[test]
    fn a_missing_helper_names_the_directory() {
        let error = ProgramsError { program: "carrel-shim", directory: "/opt".into() };
        assert_eq!(
            Failure::from(error).text(false),
            "error: carrel-shim not found in /opt\nhint: keep it beside carrel, or set CARREL_LIBEXEC to its directory\n"
        );
    }
}
