//! Lists the models of Claude Code.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};

use super::{
    launch,
    process::{CLOSE_GRACE, ClaudeProcess, RequestDeadline},
};
use crate::agent::{AgentError, AgentProgram, Model, Models};

/// Claude Code's name for its default model.
pub(super) const DEFAULT: &str = "default";

/// Timeout of the query, which includes starting the program.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

const CACHE_TTL: Duration = Duration::from_secs(60 * 60);

/// Models by program, cached since each query starts a process.
#[derive(Debug, Default)]
pub(super) struct ModelCache(Mutex<Vec<CachedModels>>);

#[derive(Debug)]
struct CachedModels {
    program: PathBuf,
    /// Modification time of the program.
    modified: Option<SystemTime>,
    fetched_at: Instant,
    models: Models,
}

// === impl ModelCache ===

impl ModelCache {
    /// The models of a program. Concurrent callers share one query.
    pub(super) async fn get(&self, program: &AgentProgram) -> Result<Models, AgentError> {
        let mut answers = self.0.lock().await;
        let modified = tokio::fs::metadata(&program.path).await.and_then(|file| file.modified()).ok();
        answers.retain(|answer| answer.fetched_at.elapsed() < CACHE_TTL);
        let known = answers.iter().find(|answer| answer.program == program.path && answer.modified == modified);
        if let Some(known) = known {
            return Ok(known.models.clone());
        }
        let models = query(program).await?;
        answers.retain(|answer| answer.program != program.path);
        let fetched_at = Instant::now();
        answers.push(CachedModels { program: program.path.clone(), modified, fetched_at, models: models.clone() });
        Ok(models)
    }
}

async fn query(program: &AgentProgram) -> Result<Models, AgentError> {
    let mut process = ClaudeProcess::spawn(&launch::query_spec(program))?;
    let answer = process.request("initialize", serde_json::json!({}), RequestDeadline::after(REQUEST_TIMEOUT)).await;
    process.close(CLOSE_GRACE, &mut Vec::new()).await;
    Ok(read(&answer?))
}

/// The models in an `initialize` response.
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
    fn effort_levels_become_variants() {
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
    fn a_response_without_models_is_an_empty_list() {
        for nothing in [json!({}), json!(null), json!({"models": {}}), json!({"models": [1]})] {
            assert_eq!(read(&nothing), Models::default());
        }
    }
}
