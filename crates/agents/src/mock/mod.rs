//! The built-in agent: emits every kind of event on command, without a process or a network.

mod script;

use std::{collections::VecDeque, ops::Range, time::Duration};

use async_trait::async_trait;

use crate::{
    agent::{
        AgentDriver, AgentError, AgentEvent, AgentExit, AgentId, AgentMode, AgentProgram, Conversation,
        ConversationOptions, Model, Models, PermissionMode, Prompt, UserAnswer,
    },
    child::ChildExit,
    schema::{EventData, TurnOutcome},
};

/// The built-in agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct MockAgent;

const BURST_BATCH: u64 = 512;

struct MockConversation {
    session_id: String,
    steps: VecDeque<MockStep>,
    /// Ids of pending requests.
    pending: Vec<String>,
    running: bool,
    /// When the current pause ends.
    until: Option<tokio::time::Instant>,
}

/// A step of a turn.
enum MockStep {
    Emit(Box<AgentEvent>),
    Burst(Range<u64>),
    Pause(Duration),
    /// Wait until all requests are answered.
    AwaitAnswers,
    Crash(i32),
    Finish,
}

#[async_trait]
impl AgentDriver for MockAgent {
    fn id(&self) -> AgentId {
        AgentId::Mock
    }

    fn permission_modes(&self) -> &'static [PermissionMode] {
        &PermissionMode::ALL
    }

    async fn models(&self, _: &AgentProgram) -> Result<Models, AgentError> {
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

    async fn open(&self, options: ConversationOptions) -> Result<Box<dyn Conversation>, AgentError> {
        Ok(Box::new(MockConversation {
            session_id: options.session_id,
            steps: VecDeque::new(),
            pending: Vec::new(),
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

    async fn next(&mut self, events: &mut Vec<AgentEvent>) {
        loop {
            match self.steps.front_mut() {
                Some(MockStep::Burst(numbers)) => {
                    // Readers run on the same thread and need time between batches.
                    tokio::task::yield_now().await;
                    let batch = numbers.start..numbers.end.min(numbers.start + BURST_BATCH);
                    numbers.start = batch.end;
                    events
                        .extend(batch.map(|number| AgentEvent::event(EventData::assistant(format!("burst {number}")))));
                    if numbers.is_empty() {
                        self.steps.pop_front();
                    }
                }
                Some(MockStep::Pause(time)) => {
                    let until = *self.until.get_or_insert_with(|| tokio::time::Instant::now() + *time);
                    tokio::time::sleep_until(until).await;
                    self.until = None;
                    self.steps.pop_front();
                }
                Some(MockStep::AwaitAnswers) if self.pending.is_empty() => drop(self.steps.pop_front()),
                Some(MockStep::Emit(_)) => self.emit(events),
                Some(MockStep::Crash(code)) => {
                    let exit = ChildExit {
                        code: Some(*code),
                        signal: None,
                        stderr: format!("mock: requested exit code {code}"),
                    };
                    self.steps.clear();
                    events.push(AgentEvent::Exited(AgentExit::Exited(exit)));
                }
                Some(MockStep::Finish) => self.finish(events),
                Some(MockStep::AwaitAnswers) | None => std::future::pending().await,
            }
            if !events.is_empty() {
                return;
            }
        }
    }

    async fn prompt(&mut self, prompt: &Prompt) -> Result<(), AgentError> {
        self.running = true;
        self.steps = script::steps_for(&prompt.text).into();
        Ok(())
    }

    async fn interrupt(&mut self) -> Result<(), AgentError> {
        if std::mem::take(&mut self.running) {
            self.until = None;
            self.steps = self.pending.drain(..).map(|id| script::step(AgentEvent::Withdrawn(id))).collect();
            self.steps.push_back(script::step(script::ended(TurnOutcome::Interrupted)));
        }
        Ok(())
    }

    async fn answer(&mut self, id: &str, answer: UserAnswer) -> Result<(), AgentError> {
        self.pending.retain(|pending| pending != id);
        self.steps
            .push_front(script::step(AgentEvent::event(EventData::assistant(script::describe_answer(id, &answer)))));
        Ok(())
    }

    async fn set_permission_mode(&mut self, _: AgentMode, _: PermissionMode) -> Result<(), AgentError> {
        Ok(())
    }

    async fn set_model(&mut self, _: Option<&str>, _: Option<&str>) -> Result<(), AgentError> {
        Ok(())
    }

    async fn close(self: Box<Self>, _: Duration, _: &mut Vec<AgentEvent>) {}
}

// === impl MockConversation ===

impl MockConversation {
    /// Emits events up to the next step of another kind.
    fn emit(&mut self, events: &mut Vec<AgentEvent>) {
        while let Some(MockStep::Emit(_)) = self.steps.front() {
            let Some(MockStep::Emit(event)) = self.steps.pop_front() else { return };
            match &*event {
                AgentEvent::PermissionAsked(request, _) => self.pending.push(request.id.clone()),
                AgentEvent::QuestionAsked(request, _) => self.pending.push(request.id.clone()),
                AgentEvent::TurnEnded { .. } => self.running = false,
                _ => {}
            }
            events.push(*event);
        }
        // Both are emitted together, so that no prompt comes between them.
        if let Some(MockStep::Finish) = self.steps.front() {
            self.finish(events);
        }
    }

    fn finish(&mut self, events: &mut Vec<AgentEvent>) {
        self.steps.clear();
        events.push(AgentEvent::Exited(AgentExit::Finished));
    }
}
