//! An agent that is built in: every kind of event on command, at once, without a process or a network.

mod script;

use std::{collections::VecDeque, ops::Range, time::Duration};

use async_trait::async_trait;

use crate::{
    agent::{
        Agent, AgentError, AgentId, AgentMode, Answer, Conversation, Fact, Gone, Model, Models, Opening,
        PermissionMode, Place, Prompt,
    },
    child::ChildExit,
    schema::{EventData, TurnOutcome},
};

/// The agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mock;

/// How many events of a burst are told at once.
const BATCH: u64 = 512;

struct MockConversation {
    session_id: String,
    steps: VecDeque<Step>,
    /// What was asked and not answered.
    asked: Vec<String>,
    running: bool,
    /// When the pause that is the next step ends.
    until: Option<tokio::time::Instant>,
}

/// What comes next.
enum Step {
    Tell(Box<Fact>),
    Burst(Range<u64>),
    Pause(Duration),
    /// Until everything that was asked is answered.
    Answers,
    Die(i32),
    Finish,
}

#[async_trait]
impl Agent for Mock {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    async fn models(&self, _: &Place) -> Result<Models, AgentError> {
        let model = |id: &str, name: &str, variants: &[&str]| Model {
            id: id.into(),
            name: Some(name.into()),
            variants: (!variants.is_empty()).then(|| variants.iter().map(|&variant| variant.into()).collect()),
            default_variant: variants.first().map(|&variant| variant.into()),
        };
        Ok(Models {
            models: vec![model("mock", "Mock", &["fast", "slow"]), model("mock-plain", "Mock without variants", &[])],
            default_model: Some("mock".into()),
        })
    }

    async fn open(&self, opening: Opening) -> Result<Box<dyn Conversation>, AgentError> {
        Ok(Box::new(MockConversation {
            session_id: opening.session_id,
            steps: VecDeque::new(),
            asked: Vec::new(),
            running: false,
            until: None,
        }))
    }
}

#[async_trait]
impl Conversation for MockConversation {
    fn native_id(&self) -> Option<String> {
        Some(format!("mock-{}", self.session_id))
    }

    async fn next(&mut self, facts: &mut Vec<Fact>) {
        loop {
            match self.steps.front_mut() {
                Some(Step::Burst(numbers)) => {
                    // Readers run on the same thread: between two batches they have their turn.
                    tokio::task::yield_now().await;
                    let batch = numbers.start..numbers.end.min(numbers.start + BATCH);
                    numbers.start = batch.end;
                    facts.extend(batch.map(|number| Fact::event(EventData::assistant(format!("burst {number}")))));
                    if numbers.is_empty() {
                        self.steps.pop_front();
                    }
                }
                Some(Step::Pause(time)) => {
                    let until = *self.until.get_or_insert_with(|| tokio::time::Instant::now() + *time);
                    tokio::time::sleep_until(until).await;
                    self.until = None;
                    self.steps.pop_front();
                }
                Some(Step::Answers) if self.asked.is_empty() => drop(self.steps.pop_front()),
                Some(Step::Tell(_)) => self.tell(facts),
                Some(Step::Die(code)) => {
                    let exit = ChildExit {
                        code: Some(*code),
                        signal: None,
                        stderr: format!("mock: exit code {code} was asked for"),
                    };
                    self.steps.clear();
                    facts.push(Fact::Gone(Gone::Exited(exit)));
                }
                Some(Step::Finish) => self.finish(facts),
                Some(Step::Answers) | None => std::future::pending().await,
            }
            if !facts.is_empty() {
                return;
            }
        }
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.running = true;
        self.steps = script::play(&prompt.text).into();
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        if std::mem::take(&mut self.running) {
            self.until = None;
            self.steps = self.asked.drain(..).map(|id| script::step(Fact::Withdrawn(id))).collect();
            self.steps.push_back(script::step(script::ended(TurnOutcome::Interrupted)));
        }
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: Answer) -> Result<(), AgentError> {
        self.asked.retain(|asked| asked != id);
        self.steps.push_front(script::step(Fact::event(EventData::assistant(script::heard(id, &answer)))));
        Ok(())
    }

    async fn set_permission_mode(&mut self, _: AgentMode, _: PermissionMode) -> Result<(), AgentError> {
        Ok(())
    }

    async fn set_model(&mut self, _: Option<&str>, _: Option<&str>) -> Result<(), AgentError> {
        Ok(())
    }

    async fn close(self: Box<Self>, _: Duration, _: &mut Vec<Fact>) {}
}

// === impl MockConversation ===

impl MockConversation {
    /// Tells the facts up to the next step of another kind.
    fn tell(&mut self, facts: &mut Vec<Fact>) {
        while let Some(Step::Tell(_)) = self.steps.front() {
            let Some(Step::Tell(fact)) = self.steps.pop_front() else { return };
            match &*fact {
                Fact::PermissionAsked(request, _) => self.asked.push(request.id.clone()),
                Fact::QuestionAsked(request, _) => self.asked.push(request.id.clone()),
                Fact::TurnEnded { .. } => self.running = false,
                _ => {}
            }
            facts.push(*fact);
        }
        // Both are told together, or the next prompt would come between them.
        if let Some(Step::Finish) = self.steps.front() {
            self.finish(facts);
        }
    }

    fn finish(&mut self, facts: &mut Vec<Fact>) {
        self.steps.clear();
        facts.push(Fact::Gone(Gone::Finished));
    }
}
