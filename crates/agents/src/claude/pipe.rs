//! The process, and what is said over its pipes.

use std::time::Duration;

use serde_json::{Value, json};

use super::convert::Converter;
use crate::{
    agent::{AgentError, Fact, Gone},
    child::{Child, ChildError, Exit, Line, Start},
};

/// A running Claude Code.
#[derive(Debug)]
pub(super) struct Pipe {
    child: Child,
    pub(super) converter: Converter,
    /// What was told while somebody waited for an answer.
    told: Vec<Fact>,
    requests: u64,
}

/// For how long an answer to a request is waited for. The program reads them even while it works.
const PATIENCE: Duration = Duration::from_secs(15);

/// For how long it may take to end by itself.
pub(super) const FAREWELL: Duration = Duration::from_millis(700);

/// A plan longer than this is not shown.
const LONGEST_PLAN: u64 = 1024 * 1024;

// === impl Pipe ===

impl Pipe {
    pub(super) fn start(start: &Start) -> Result<Self, ChildError> {
        let child = Child::start(start)?;
        Ok(Self { child, converter: Converter::new(read_plan), told: Vec::new(), requests: 0 })
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
    pub(super) async fn request(&mut self, name: &'static str, request: Value) -> Result<Value, AgentError> {
        let id = self.tell(name, request)?;
        self.converter.expect(id);
        let answer = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(answer) = self.converter.take_answer() {
                    return answer.map_err(|message| AgentError::Refused { request: name, message });
                }
                let Some(line) = self.child.line().await else { return Err(ChildError::Closed.into()) };
                self.read(line);
            }
        });
        answer.await.unwrap_or(Err(AgentError::Timeout { request: name, limit: PATIENCE }))
    }

    /// Waits for what happens next. May be dropped without loss.
    pub(super) async fn next(&mut self, facts: &mut Vec<Fact>) {
        while self.told.is_empty() {
            let Some(line) = self.child.line().await else {
                let exit = self.child.exit().await;
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
        facts.append(&mut self.told);
    }

    /// A prompt was given. A turn of the agent's own that nobody has heard of yet becomes part of the prompt's.
    pub(super) fn prompted(&mut self, id: String) {
        self.told.retain(|fact| !matches!(fact, Fact::TurnStarted | Fact::TurnEnded { .. }));
        self.converter.prompted(id);
    }

    /// Ends it with everything that it started.
    pub(super) async fn close(mut self, patience: Duration, facts: &mut Vec<Fact>) {
        self.child.close_input();
        self.child.end(patience).await;
        facts.append(&mut self.told);
    }

    fn read(&mut self, line: Line) {
        let facts = match line {
            // What stands behind the last line's end may still be a whole message.
            Line::Whole(line) | Line::Torn(line) => self.converter.line(&line),
            Line::Cut(line) => self.converter.cut(&line, Child::LONGEST),
        };
        self.told.extend(facts);
        for reply in self.converter.take_replies() {
            // If it cannot be told, it is at its end, which it will tell.
            let _ = self.send(&reply);
        }
    }

    /// An exit with the reason, where the agent gave it on its standard output, as it does when it cannot resume.
    fn explained(&self, mut exit: Exit) -> Exit {
        if let Some(complaint) = self.converter.complaint().filter(|complaint| !exit.stderr.contains(*complaint)) {
            if !exit.stderr.is_empty() && !exit.stderr.ends_with('\n') {
                exit.stderr.push('\n');
            }
            exit.stderr.push_str(complaint);
        }
        exit
    }
}

/// The plan in a file that the agent named.
fn read_plan(path: &str) -> Option<String> {
    let file = std::fs::metadata(path).ok().filter(|file| file.is_file() && file.len() <= LONGEST_PLAN);
    file.and_then(|_| std::fs::read_to_string(path).ok())
}
