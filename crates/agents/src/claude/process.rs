//! A Claude Code process.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{convert::ClaudeConverter, plans::PlanDirectory};
use crate::{
    agent::{AgentError, AgentEvent, AgentExit},
    child::{Child, ChildError, ChildExit, OutputLine, ProcessSpec},
};

#[derive(Debug)]
pub(super) struct ClaudeProcess {
    child: Child,
    pub(super) converter: ClaudeConverter,
    /// Events that arrived while a request was pending.
    pending_events: Vec<AgentEvent>,
    /// Total length of their lines.
    pending_bytes: usize,
    requests: u64,
    /// When its output ended.
    output_ended: Option<Instant>,
}

/// How much may be buffered while a request is pending.
const MAX_PENDING: usize = 16 * 1024 * 1024;

/// How long a program may keep running after its output ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Grace period of a termination.
pub(super) const CLOSE_GRACE: Duration = Duration::from_millis(700);

/// Deadline of one or several requests. The program reads requests even during a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestDeadline {
    limit: Duration,
    at: Instant,
}

// === impl RequestDeadline ===

impl RequestDeadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { limit, at: Instant::now() + limit }
    }
}

// === impl ClaudeProcess ===

impl ClaudeProcess {
    pub(super) fn spawn(spec: &ProcessSpec) -> Result<Self, ChildError> {
        let child = Child::spawn(spec)?;
        let plans = PlanDirectory::of(spec);
        let converter = ClaudeConverter::new(move |path| plans.read(path));
        Ok(Self { child, converter, pending_events: Vec::new(), pending_bytes: 0, requests: 0, output_ended: None })
    }

    pub(super) fn send(&self, message: &Value) -> Result<(), ChildError> {
        self.child.send(message.to_string().as_bytes())
    }

    /// Sends a request. Its response is logged as a notice.
    pub(super) fn send_request(&mut self, subtype: &str, mut request: Value) -> Result<String, ChildError> {
        self.requests += 1;
        let id = format!("request-{}", self.requests);
        if let Some(request) = request.as_object_mut() {
            request.insert("subtype".to_owned(), json!(subtype));
        }
        self.send(&json!({"type": "control_request", "request_id": id, "request": request}))?;
        Ok(id)
    }

    /// Sends a request and waits for its response. Events that arrive meanwhile are kept for `next`.
    pub(super) async fn request(
        &mut self,
        name: &'static str,
        request: Value,
        timeout: RequestDeadline,
    ) -> Result<Value, AgentError> {
        let id = self.send_request(name, request)?;
        self.converter.expect_response(id);
        let answer = timeout_at(timeout.at, async {
            loop {
                if let Some(answer) = self.converter.take_response() {
                    return answer.map_err(|message| AgentError::Refused { request: name, message });
                }
                if self.pending_bytes > MAX_PENDING {
                    let message = format!("more than {MAX_PENDING} bytes without an answer");
                    return Err(AgentError::Refused { request: name, message });
                }
                let Some(line) = self.child.line().await else { return Err(ChildError::Closed.into()) };
                self.read(line);
            }
        });
        answer.await.unwrap_or(Err(AgentError::Timeout { request: name, limit: timeout.limit }))
    }

    /// Waits for the next events. Cancel-safe.
    pub(super) async fn next(&mut self, events: &mut Vec<AgentEvent>) {
        while self.pending_events.is_empty() {
            let Some(line) = self.child.line().await else {
                let exit = self.exit().await;
                events.extend(self.converter.close_all());
                events.push(AgentEvent::Exited(AgentExit::Exited(self.with_startup_error(exit))));
                return;
            };
            self.read(line);
            // Lines that were read together are delivered together, since each delivery costs more than a line.
            while let Some(line) = self.child.ready_line() {
                self.read(line);
            }
        }
        self.pending_bytes = 0;
        events.append(&mut self.pending_events);
    }

    /// Waits for its exit after its output ended, and kills it after a timeout.
    async fn exit(&mut self) -> ChildExit {
        let since = *self.output_ended.get_or_insert_with(Instant::now);
        match timeout_at(since + EXIT_TIMEOUT, self.child.exit()).await {
            Ok(exit) => exit,
            Err(_) => self.child.terminate(Duration::ZERO).await,
        }
    }

    /// Records a sent prompt. A turn of the agent's own that was not delivered yet is merged into the prompt's.
    pub(super) fn prompt_sent(&mut self, id: String) {
        self.pending_events.retain(|event| !matches!(event, AgentEvent::TurnStarted | AgentEvent::TurnEnded { .. }));
        self.converter.prompt_sent(id);
    }

    /// Terminates it with every process that it started.
    pub(super) async fn close(mut self, grace: Duration, events: &mut Vec<AgentEvent>) {
        self.child.close_input();
        self.child.terminate(grace).await;
        // The remaining output, which is at most what a pipe holds.
        while let Some(line) = self.child.line().await {
            self.read(line);
        }
        events.append(&mut self.pending_events);
        events.extend(self.converter.close_all());
    }

    fn read(&mut self, line: OutputLine) {
        let (OutputLine::Complete(bytes) | OutputLine::Unterminated(bytes) | OutputLine::Truncated(bytes)) = &line;
        self.pending_bytes = self.pending_bytes.saturating_add(bytes.len());
        let events = match line {
            // An unterminated line may be a complete message.
            OutputLine::Complete(line) | OutputLine::Unterminated(line) => self.converter.convert_line(&line),
            OutputLine::Truncated(line) => self.converter.convert_truncated(&line, Child::MAX_LINE),
        };
        self.pending_events.extend(events);
        for reply in self.converter.take_replies() {
            // If it fails, the program is exiting, which is reported separately.
            let _ = self.send(&reply);
        }
    }

    /// Adds the error that the agent printed to standard output, such as when it cannot resume.
    fn with_startup_error(&self, mut exit: ChildExit) -> ChildExit {
        if let Some(startup_error) =
            self.converter.startup_error().filter(|startup_error| !exit.stderr.contains(*startup_error))
        {
            if !exit.stderr.is_empty() && !exit.stderr.ends_with('\n') {
                exit.stderr.push('\n');
            }
            exit.stderr.push_str(startup_error);
        }
        exit
    }
}
