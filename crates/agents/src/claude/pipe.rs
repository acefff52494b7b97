//! The process, and what is said over its pipes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{convert::Converter, plans::Plans};
use crate::{
    agent::{AgentError, Fact, Gone},
    child::{Child, ChildError, ChildExit, OutputLine, ProcessSpec},
};

/// A running Claude Code.
#[derive(Debug)]
pub(super) struct Pipe {
    child: Child,
    pub(super) converter: Converter,
    /// What was told while somebody waited for an answer.
    told: Vec<Fact>,
    /// How long the lines were that told it.
    told_bytes: usize,
    requests: u64,
    /// Since when it says nothing more.
    silent: Option<Instant>,
}

/// How much may be told while somebody waits for an answer.
const MOST_TOLD: usize = 16 * 1024 * 1024;

/// For how long a program may live on that says nothing more.
const SILENCE: Duration = Duration::from_secs(2);

/// For how long it may take to end by itself.
pub(super) const FAREWELL: Duration = Duration::from_millis(700);

/// For how long answers are waited for, be it one or several. The program reads requests even while it works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    until: Instant,
}

// === impl Patience ===

impl Patience {
    /// From now on.
    pub(super) fn of(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit }
    }
}

// === impl Pipe ===

impl Pipe {
    pub(super) fn start(spec: &ProcessSpec) -> Result<Self, ChildError> {
        let child = Child::spawn(spec)?;
        let plans = Plans::of(spec);
        let converter = Converter::new(move |path| plans.read(path));
        Ok(Self { child, converter, told: Vec::new(), told_bytes: 0, requests: 0, silent: None })
    }

    pub(super) fn send(&self, message: &Value) -> Result<(), ChildError> {
        self.child.send(message.to_string().as_bytes())
    }

    /// Sends a request. Its answer is told as small talk.
    pub(super) fn tell(&mut self, subtype: &str, mut request: Value) -> Result<String, ChildError> {
        self.requests += 1;
        let id = format!("request-{}", self.requests);
        if let Some(request) = request.as_object_mut() {
            request.insert("subtype".to_owned(), json!(subtype));
        }
        self.send(&json!({"type": "control_request", "request_id": id, "request": request}))?;
        Ok(id)
    }

    /// Sends a request and waits for its answer. What the agent tells until then is kept for `next`.
    pub(super) async fn request(
        &mut self,
        name: &'static str,
        request: Value,
        patience: Patience,
    ) -> Result<Value, AgentError> {
        let id = self.tell(name, request)?;
        self.converter.expect(id);
        let answer = timeout_at(patience.until, async {
            loop {
                if let Some(answer) = self.converter.take_answer() {
                    return answer.map_err(|message| AgentError::Refused { request: name, message });
                }
                if self.told_bytes > MOST_TOLD {
                    let message = format!("it said more than {MOST_TOLD} bytes, and no answer");
                    return Err(AgentError::Refused { request: name, message });
                }
                let Some(line) = self.child.line().await else { return Err(ChildError::Closed.into()) };
                self.read(line);
            }
        });
        answer.await.unwrap_or(Err(AgentError::Timeout { request: name, limit: patience.limit }))
    }

    /// Waits for what happens next. May be dropped without loss.
    pub(super) async fn next(&mut self, facts: &mut Vec<Fact>) {
        while self.told.is_empty() {
            let Some(line) = self.child.line().await else {
                let exit = self.exit().await;
                facts.extend(self.converter.ended());
                facts.push(Fact::Gone(Gone::Exited(self.explained(exit))));
                return;
            };
            self.read(line);
            // What was read together is told together: to be told something costs the session more than a line does.
            while let Some(line) = self.child.ready_line() {
                self.read(line);
            }
        }
        self.told_bytes = 0;
        facts.append(&mut self.told);
    }

    /// How it ended. One that says nothing more is ending; if it is not, it is made to.
    async fn exit(&mut self) -> ChildExit {
        let since = *self.silent.get_or_insert_with(Instant::now);
        match timeout_at(since + SILENCE, self.child.exit()).await {
            Ok(exit) => exit,
            Err(_) => self.child.terminate(Duration::ZERO).await,
        }
    }

    /// A prompt was given. A turn of the agent's own that nobody has heard of yet becomes part of the prompt's.
    pub(super) fn prompted(&mut self, id: String) {
        self.told.retain(|fact| !matches!(fact, Fact::TurnStarted | Fact::TurnEnded { .. }));
        self.converter.prompted(id);
    }

    /// Ends it with everything that it started.
    pub(super) async fn close(mut self, patience: Duration, facts: &mut Vec<Fact>) {
        self.child.close_input();
        self.child.terminate(patience).await;
        // What it said last, of which there is no more than a pipe holds.
        while let Some(line) = self.child.line().await {
            self.read(line);
        }
        facts.append(&mut self.told);
        facts.extend(self.converter.ended());
    }

    fn read(&mut self, line: OutputLine) {
        let (OutputLine::Complete(bytes) | OutputLine::Unterminated(bytes) | OutputLine::Truncated(bytes)) = &line;
        self.told_bytes = self.told_bytes.saturating_add(bytes.len());
        let facts = match line {
            // What stands behind the last line's end may still be a whole message.
            OutputLine::Complete(line) | OutputLine::Unterminated(line) => self.converter.line(&line),
            OutputLine::Truncated(line) => self.converter.cut(&line, Child::MAX_LINE),
        };
        self.told.extend(facts);
        for reply in self.converter.take_replies() {
            // If it cannot be told, it is at its end, which it will tell.
            let _ = self.send(&reply);
        }
    }

    /// An exit with the reason, where the agent gave it on its standard output, as it does when it cannot resume.
    fn explained(&self, mut exit: ChildExit) -> ChildExit {
        if let Some(complaint) = self.converter.complaint().filter(|complaint| !exit.stderr.contains(*complaint)) {
            if !exit.stderr.is_empty() && !exit.stderr.ends_with('\n') {
                exit.stderr.push('\n');
            }
            exit.stderr.push_str(complaint);
        }
        exit
    }
}
