//! Writes one line to the daemon's log for each request: caller, method, sandbox and outcome.
//!
//! Changes and refusals are logged at info; reads and started streams at debug. Commands, environments, keys and
//! contents of files are never logged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use carrel_control::Caller;
use carrel_store::{ExecId, SandboxId};
use tonic::codegen::http::Extensions;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The prefixes of methods that change nothing.
const READ_PREFIXES: [&str; 10] =
    ["Attach", "Check", "Get", "Inspect", "List", "Open", "Ping", "Read", "Subscribe", "Watch"];
/// How many characters of a caller's text are logged.
const MAX_CHARS: usize = 200;

/// The sandbox and the exec of a request, which its handler sets. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSubject(Arc<Mutex<SubjectIds>>);

#[derive(Clone, Debug, Default)]
struct SubjectIds {
    sandbox: Option<String>,
    exec: Option<String>,
}

/// A request in progress. It is logged when it is answered, or when its client disconnects.
pub(crate) struct RequestRecord {
    method: String,
    caller: Option<Caller>,
    subject: RequestSubject,
    began: Instant,
    answered: bool,
}

/// The outcome of a request in the log.
enum LoggedOutcome<'s> {
    Accepted,
    Refused(&'s Status),
    /// The client disconnected before the answer; what was accepted is done anyway.
    Abandoned,
}

// === impl RequestSubject ===

impl RequestSubject {
    /// The subject of a request, from its extensions.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Sets the sandbox.
    pub(crate) fn sandbox(&self, caller: &Caller, id: &str) {
        let qualified = SandboxId::candidates(id, caller.namespace()).next().map(|id| id.as_str().to_owned());
        self.lock().sandbox = qualified.or_else(|| shortened(id));
    }

    /// Sets the exec.
    pub(crate) fn exec(&self, caller: &Caller, id: &str) {
        let qualified = ExecId::candidates(id, caller.namespace()).next().map(|id| id.as_str().to_owned());
        self.lock().exec = qualified.or_else(|| shortened(id));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SubjectIds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RequestRecord ===

impl RequestRecord {
    /// A request to a path such as `/agbox.v1.SandboxService/StopSandbox`.
    pub(crate) fn new(path: &str, caller: Option<Caller>, subject: RequestSubject) -> Self {
        let method = path.rsplit('/').next().unwrap_or_default();
        Self { method: shortened(method).unwrap_or_default(), caller, subject, began: Instant::now(), answered: false }
    }

    /// Logs the answer: a refusal, or `None`.
    pub(crate) fn finish(mut self, refused: Option<&Status>) {
        self.answered = true;
        self.log(&refused.map_or(LoggedOutcome::Accepted, LoggedOutcome::Refused));
    }

    fn log(&self, outcome: &LoggedOutcome<'_>) {
        let SubjectIds { sandbox, exec } = self.subject.lock().clone();
        let (method, principal) = (self.method.as_str(), principal(self.caller.as_ref()));
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let reads = READ_PREFIXES.iter().any(|read| method.starts_with(read)) || method == "ServerReflectionInfo";
        match outcome {
            LoggedOutcome::Accepted if reads => {
                tracing::debug!(method, principal, sandbox, exec, outcome = "ok", ms, "request");
            }
            LoggedOutcome::Abandoned if reads => {
                tracing::debug!(method, principal, sandbox, exec, outcome = "abandoned", ms, "request");
            }
            LoggedOutcome::Accepted => tracing::info!(method, principal, sandbox, exec, outcome = "ok", ms, "request"),
            LoggedOutcome::Abandoned => {
                tracing::info!(method, principal, sandbox, exec, outcome = "abandoned", ms, "request");
            }
            LoggedOutcome::Refused(status) => {
                let (outcome, reason) = (code_name(status.code()), status.get_details_error_info());
                let reason = reason.map(|info| info.reason);
                tracing::info!(method, principal, sandbox, exec, outcome, reason, ms, "request");
            }
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if !self.answered {
            self.log(&LoggedOutcome::Abandoned);
        }
    }
}

/// The caller, as the log shows it.
fn principal(caller: Option<&Caller>) -> String {
    match caller {
        None => "unknown".to_owned(),
        Some(&Caller::KEY) => "key".to_owned(),
        Some(Caller { user: 0, .. }) => "root".to_owned(),
        Some(Caller { user, .. }) => format!("uid {user}"),
    }
}

/// Truncates a text; `None` if it is empty.
fn shortened(text: &str) -> Option<String> {
    Some(text.chars().take(MAX_CHARS).collect()).filter(|text: &String| !text.is_empty())
}

/// The name of a code in the gRPC specification.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use carrel_control::{Code as Kind, Refusal};

    use super::*;
    use crate::status::refused;

    const ROOT: Caller = Caller { user: 0, group: 0, trusted: true };
    const USER: Caller = Caller { user: 1000, group: 1000, trusted: false };

    #[derive(Clone, Default)]
    struct RequestLogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for RequestLogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log line of a request, without its duration.
    fn logged(method: &str, caller: Option<Caller>, ids: (&str, &str), end: impl FnOnce(RequestRecord)) -> String {
        let lines = RequestLogBuffer::default();
        let write = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || write.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let subject = RequestSubject::default();
            if let Some(caller) = &caller {
                subject.sandbox(caller, ids.0);
                subject.exec(caller, ids.1);
            }
            end(RequestRecord::new(&format!("/agbox.v1.SandboxService/{method}"), caller, subject));
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.split(" ms=").next().unwrap().trim().replace('"', "")
    }

    #[test]
    fn a_change_is_logged_in_one_line() {
        let ok = |record: RequestRecord| record.finish(None);
        assert_eq!(
            logged("StopSandbox", Some(ROOT), ("demo", ""), ok),
            "INFO request method=StopSandbox principal=root sandbox=demo outcome=ok"
        );
        assert_eq!(
            logged("CreateExec", Some(USER), ("demo", "run1"), ok),
            "INFO request method=CreateExec principal=uid 1000 sandbox=u1000~demo exec=u1000~run1 outcome=ok"
        );
        assert_eq!(
            logged("DeleteSandbox", Some(Caller::KEY), ("demo", ""), drop),
            "INFO request method=DeleteSandbox principal=key sandbox=key~demo outcome=abandoned"
        );
    }

    #[test]
    fn a_read_is_logged_at_debug_unless_it_is_refused() {
        for method in ["GetSandbox", "ListSandboxes", "Ping", "SubscribeSandboxEvents", "WatchSandboxes", "AttachExec"]
        {
            let line = logged(method, Some(ROOT), ("demo", ""), |record| record.finish(None));
            assert!(line.starts_with("DEBUG request"), "{line}");
        }
        let unknown = refused(Refusal::new(Kind::NotFound, "SANDBOX_NOT_FOUND", "there is no sandbox"));
        let line = logged("GetSandbox", Some(USER), ("a b", ""), |record| record.finish(Some(&unknown)));
        let expected = "INFO request method=GetSandbox principal=uid 1000 sandbox=a b outcome=NOT_FOUND";
        assert_eq!(line, format!("{expected} reason=SANDBOX_NOT_FOUND"));
        let line = logged("StopSandbox", None, ("", ""), |record| record.finish(Some(&Status::unauthenticated("x"))));
        assert_eq!(line, "INFO request method=StopSandbox principal=unknown outcome=UNAUTHENTICATED");
    }

    #[test]
    fn text_of_callers_is_truncated() {
        let long = "x".repeat(100_000);
        let line = logged(&long, Some(ROOT), (&long, &long), |record| record.finish(None));
        assert!(line.len() < 4 * MAX_CHARS, "{}", line.len());
    }
}
