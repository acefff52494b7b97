//! One line of the daemon's log for each request: who asked what of which sandbox, and what came of it.
//!
//! What changes something is logged at info, and so is what is refused; what only looks, and streams that begin, at debug.
//! Commands, environments, keys and contents of files are never logged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use carrel_control::Caller;
use carrel_store::{ExecId, SandboxId};
use tonic::codegen::http::Extensions;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// What methods begin with that change nothing.
const READS: [&str; 10] = ["Attach", "Check", "Get", "Inspect", "List", "Open", "Ping", "Read", "Subscribe", "Watch"];
/// How many characters of what a caller says are logged.
const LONGEST: usize = 200;

/// What a request is about, as its handler finds out. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSubject(Arc<Mutex<SubjectIds>>);

#[derive(Clone, Debug, Default)]
struct SubjectIds {
    sandbox: Option<String>,
    exec: Option<String>,
}

/// A request that is under way. It is logged when it has an answer, or when nobody waits for one any more.
pub(crate) struct RequestRecord {
    method: String,
    caller: Option<Caller>,
    subject: RequestSubject,
    began: Instant,
    answered: bool,
}

/// How a request ended.
enum Outcome<'s> {
    Accepted,
    Refused(&'s Status),
    /// The client left before there was an answer; what was accepted until then stays so.
    Abandoned,
}

// === impl RequestSubject ===

impl RequestSubject {
    /// That of a request, as the door put it there.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// It is about the sandbox that a caller calls so.
    pub(crate) fn sandbox(&self, caller: &Caller, id: &str) {
        let meant = SandboxId::meant(id, caller.namespace()).next().map(|id| id.as_str().to_owned());
        self.lock().sandbox = meant.or_else(|| shortened(id));
    }

    /// It is about the exec that a caller calls so.
    pub(crate) fn exec(&self, caller: &Caller, id: &str) {
        let meant = ExecId::meant(id, caller.namespace()).next().map(|id| id.as_str().to_owned());
        self.lock().exec = meant.or_else(|| shortened(id));
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

    /// It has an answer; none is no refusal.
    pub(crate) fn finish(mut self, refused: Option<&Status>) {
        self.answered = true;
        self.log(&refused.map_or(Outcome::Accepted, Outcome::Refused));
    }

    fn log(&self, outcome: &Outcome<'_>) {
        let SubjectIds { sandbox, exec } = self.subject.lock().clone();
        let (method, principal) = (self.method.as_str(), principal(self.caller.as_ref()));
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let reads = READS.iter().any(|read| method.starts_with(read)) || method == "ServerReflectionInfo";
        match outcome {
            Outcome::Accepted if reads => {
                tracing::debug!(method, principal, sandbox, exec, outcome = "ok", ms, "request");
            }
            Outcome::Abandoned if reads => {
                tracing::debug!(method, principal, sandbox, exec, outcome = "abandoned", ms, "request");
            }
            Outcome::Accepted => tracing::info!(method, principal, sandbox, exec, outcome = "ok", ms, "request"),
            Outcome::Abandoned => {
                tracing::info!(method, principal, sandbox, exec, outcome = "abandoned", ms, "request");
            }
            Outcome::Refused(status) => {
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
            self.log(&Outcome::Abandoned);
        }
    }
}

/// Who asks, in words.
fn principal(caller: Option<&Caller>) -> String {
    match caller {
        None => "unknown".to_owned(),
        Some(&Caller::KEY) => "key".to_owned(),
        Some(Caller { user: 0, .. }) => "root".to_owned(),
        Some(Caller { user, .. }) => format!("uid {user}"),
    }
}

/// What there is of a text, up to what is logged of it.
fn shortened(text: &str) -> Option<String> {
    Some(text.chars().take(LONGEST).collect()).filter(|text: &String| !text.is_empty())
}

/// As the specification of gRPC writes it.
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
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged of one request, without the time that it took.
    fn logged(method: &str, caller: Option<Caller>, ids: (&str, &str), end: impl FnOnce(RequestRecord)) -> String {
        let lines = Lines::default();
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
    fn what_changes_something_is_one_line_with_who_what_and_how() {
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
    fn what_only_looks_is_for_those_who_look_closely_unless_it_is_refused() {
        for method in ["GetSandbox", "ListSandboxes", "Ping", "SubscribeSandboxEvents", "WatchSandboxes", "AttachExec"]
        {
            let said = logged(method, Some(ROOT), ("demo", ""), |record| record.finish(None));
            assert!(said.starts_with("DEBUG request"), "{said}");
        }
        let unknown = refused(Refusal::new(Kind::NotFound, "SANDBOX_NOT_FOUND", "there is no sandbox"));
        let said = logged("GetSandbox", Some(USER), ("a b", ""), |record| record.finish(Some(&unknown)));
        let expected = "INFO request method=GetSandbox principal=uid 1000 sandbox=a b outcome=NOT_FOUND";
        assert_eq!(said, format!("{expected} reason=SANDBOX_NOT_FOUND"));
        let said = logged("StopSandbox", None, ("", ""), |record| record.finish(Some(&Status::unauthenticated("x"))));
        assert_eq!(said, "INFO request method=StopSandbox principal=unknown outcome=UNAUTHENTICATED");
    }

    #[test]
    fn of_what_a_caller_says_only_so_much_is_logged() {
        let long = "x".repeat(100_000);
        let said = logged(&long, Some(ROOT), (&long, &long), |record| record.finish(None));
        assert!(said.len() < 4 * LONGEST, "{}", said.len());
    }
}
