//! Results, which end turns.

use serde_json::{Value, json};

use super::{
    ClaudeConverter,
    native::{ClaudeMessage, flag, list, text},
    turn::ClaudeTurn,
};
use crate::{
    agent::AgentEvent,
    schema::{EventData, TokenUsage, TurnOutcome},
};

impl ClaudeConverter {
    pub(super) fn result(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        let usage = self.usage(native.value);
        let outcome = self.outcome(native.value);
        let ends = self.turn.is_ended_by(native.value);
        if ends {
            events.extend(self.items.interrupt().into_iter().map(|data| native.event(data)));
        }
        let words = words(native.value);
        match outcome {
            TurnOutcome::Completed if !words.trim().is_empty() && !self.last_message.matches(&words) => {
                events.push(native.event(EventData::assistant(words.as_str())));
            }
            TurnOutcome::Failed => events.push(native.event(failure(native.value, &words))),
            TurnOutcome::Completed | TurnOutcome::Interrupted => {}
        }
        let message = (outcome == TurnOutcome::Failed).then_some(words);
        self.failure.clone_from(&message);
        events.push(native.event(EventData::Usage(usage.clone())));
        if ends {
            self.turn_ended();
            events.push(AgentEvent::TurnEnded { outcome, message, usage: Some(usage), raw: native.raw() });
        }
    }

    /// The prompt was cancelled before the agent started it.
    pub(super) fn prompt_cancelled(&mut self, native: ClaudeMessage<'_>, events: &mut Vec<AgentEvent>) {
        self.turn_ended();
        events.push(AgentEvent::TurnEnded {
            outcome: TurnOutcome::Interrupted,
            message: None,
            usage: None,
            raw: native.raw(),
        });
    }

    fn turn_ended(&mut self) {
        self.turn = ClaudeTurn::Idle;
        self.last_message = Default::default();
        self.streams.clear();
    }

    fn outcome(&self, result: &Value) -> TurnOutcome {
        let is_error = flag(result, "is_error");
        let aborted = text(result, "terminal_reason").is_some_and(|reason| reason.starts_with("aborted"));
        // Older versions do not report an interrupt.
        let stopped = self.turn.is_interrupted() && text(result, "subtype") == Some("error_during_execution");
        match (is_error, aborted || stopped) {
            (_, true) => TurnOutcome::Interrupted,
            (true, false) => TurnOutcome::Failed,
            (false, false) => TurnOutcome::Completed,
        }
    }

    fn usage(&mut self, result: &Value) -> TokenUsage {
        let usage = result.get("usage").unwrap_or(&Value::Null);
        let count = |key: &str| usage.get(key).and_then(Value::as_u64);
        // The model's count of input tokens excludes cached ones.
        let read = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
        let read = read.into_iter().filter_map(count).reduce(u64::saturating_add);
        TokenUsage {
            input_tokens: read,
            output_tokens: count("output_tokens"),
            cached_input_tokens: count("cache_read_input_tokens"),
            cost_usd: self.cost(result),
            context_window: self.context_window(result),
            details: usage.is_object().then(|| usage.clone()),
        }
    }

    /// Cost of the turn. The reported total covers the whole conversation, including earlier processes.
    fn cost(&mut self, result: &Value) -> Option<f64> {
        let total = result.get("total_cost_usd").and_then(Value::as_f64)?;
        let before = std::mem::replace(&mut self.cost, total);
        let models = result.get("model_usage_since_last_result").and_then(Value::as_object);
        Some(match models {
            Some(models) => {
                models.values().filter_map(|usage| usage.get("costUSD")?.as_f64()).fold(0.0, |sum, cost| sum + cost)
            }
            None => total - before,
        })
    }

    fn context_window(&self, result: &Value) -> Option<u64> {
        let models = result.get("modelUsage")?.as_object()?;
        let used = self.model.as_ref().and_then(|model| models.get(model)).or_else(|| models.values().next())?;
        used.get("contextWindow")?.as_u64()
    }
}

/// Text of a result: the last message, or the error.
fn words(result: &Value) -> String {
    if let Some(words) = text(result, "result") {
        return words.to_owned();
    }
    let errors: Vec<_> = list(result, "errors").iter().filter_map(Value::as_str).collect();
    match errors.as_slice() {
        [] if flag(result, "is_error") => text(result, "subtype").unwrap_or("the turn failed").to_owned(),
        errors => errors.join("\n"),
    }
}

fn failure(result: &Value, words: &str) -> EventData {
    let reason = text(result, "terminal_reason").filter(|reason| *reason != "completed");
    let kind = reason.or(text(result, "subtype")).filter(|kind| *kind != "success").unwrap_or("error");
    let mut details = json!({});
    for (key, name) in [
        ("subtype", "subtype"),
        ("terminal_reason", "terminalReason"),
        ("api_error_status", "apiErrorStatus"),
        ("api_error_type", "apiErrorType"),
        ("errors", "errors"),
    ] {
        if let (Some(value), Some(details)) =
            (result.get(key).filter(|value| !value.is_null()), details.as_object_mut())
        {
            details.insert(name.to_owned(), value.clone());
        }
    }
    EventData::error(kind, words, Some(details))
}
