//! The models that Claude Code says it can use.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};

use super::{
    launch,
    pipe::{FAREWELL, Patience, Pipe},
};
use crate::agent::{AgentError, Model, Models, Place};

/// The agent's name for its own choice.
pub(super) const DEFAULT: &str = "default";

/// For how long an answer is waited for: the program has to start first.
const PATIENCE: Duration = Duration::from_secs(15);

/// For how long an answer holds.
const HOLDS: Duration = Duration::from_secs(60 * 60);

/// Answers by program, since a question takes a process.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Vec<Answer>>);

#[derive(Debug)]
struct Answer {
    program: PathBuf,
    /// When the program was last changed.
    changed: Option<SystemTime>,
    at: Instant,
    models: Models,
}

// === impl Known ===

impl Known {
    /// The models of a program. Whoever asks meanwhile waits for the same answer.
    pub(super) async fn get(&self, place: &Place) -> Result<Models, AgentError> {
        let mut answers = self.0.lock().await;
        let changed = tokio::fs::metadata(&place.program).await.and_then(|file| file.modified()).ok();
        answers.retain(|answer| answer.at.elapsed() < HOLDS);
        let known = answers.iter().find(|answer| answer.program == place.program && answer.changed == changed);
        if let Some(known) = known {
            return Ok(known.models.clone());
        }
        let models = ask(place).await?;
        answers.retain(|answer| answer.program != place.program);
        let at = Instant::now();
        answers.push(Answer { program: place.program.clone(), changed, at, models: models.clone() });
        Ok(models)
    }
}

async fn ask(place: &Place) -> Result<Models, AgentError> {
    let mut pipe = Pipe::start(&launch::inquiry(place))?;
    let answer = pipe.request("initialize", serde_json::json!({}), Patience::of(PATIENCE)).await;
    pipe.close(FAREWELL, &mut Vec::new()).await;
    Ok(read(&answer?))
}

/// The models in what the agent says of itself.
pub(super) fn read(initialized: &Value) -> Models {
    let listed = initialized.get("models").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let models: Vec<_> = listed.iter().filter_map(model).collect();
    let default_model = models.iter().find(|model| model.id == DEFAULT).map(|model| model.id.clone());
    Models { models, default_model }
}

fn model(model: &Value) -> Option<Model> {
    let text = |key: &str| model.get(key).and_then(Value::as_str).map(str::to_owned);
    let levels = model.get("supportedEffortLevels").and_then(Value::as_array);
    let variants = levels.map(|levels| levels.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>());
    Some(Model {
        id: text("value")?,
        name: text("displayName"),
        variants: variants.filter(|variants| !variants.is_empty()),
        default_variant: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_have_their_efforts_as_variants() {
        let models = read(&json!({"models": [
            {"value": "default", "displayName": "Default", "supportedEffortLevels": ["low", "high"]},
            {"value": "small", "displayName": "Small"},
            {"displayName": "nameless"},
        ]}));
        assert_eq!(models.default_model.as_deref(), Some("default"));
        assert_eq!(models.models.len(), 2);
        assert_eq!(models.models[0].variants, Some(vec!["low".to_owned(), "high".to_owned()]));
        assert_eq!(models.models[1], Model { id: "small".into(), name: Some("Small".into()), ..Model::default() });
    }

    #[test]
    fn no_answer_is_no_models() {
        for nothing in [json!({}), json!(null), json!({"models": {}}), json!({"models": [1]})] {
            assert_eq!(read(&nothing), Models::default());
        }
    }
}
