//! How the program is started.

use std::ffi::OsString;

use crate::{
    agent::{AgentMode, Opening, PermissionMode, Place},
    child::ProcessSpec,
};

/// What the program must not find in its environment: the server's token, and what makes it believe that it was started
/// by another of its kind.
const TAKEN_OUT: [&str; 3] = ["SANDBOX_AGENT_TOKEN", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT"];

/// Messages both ways, and questions on the same pipes.
const SPOKEN: [&str; 5] = [
    "--print",
    "--input-format=stream-json",
    "--output-format=stream-json",
    "--verbose",
    "--permission-prompt-tool=stdio",
];

/// Messages as they grow, and those of subagents.
const TOLD: [&str; 2] = ["--include-partial-messages", "--forward-subagent-text"];

/// The program for a conversation of this id.
pub(super) fn conversation(opening: &Opening, id: &str, is_root: bool) -> ProcessSpec {
    let mode = mode(opening.agent_mode, opening.permission_mode);
    let mut arguments: Vec<OsString> = SPOKEN.iter().chain(&TOLD).map(Into::into).collect();
    arguments.push(format!("--permission-mode={mode}").into());
    arguments.push(if opening.begun { format!("--resume={id}") } else { format!("--session-id={id}") }.into());
    // Its name for its own choice is none for the flag.
    if let Some(model) = opening.model.as_deref().filter(|model| *model != super::models::DEFAULT) {
        arguments.push(format!("--model={model}").into());
    }
    arguments.extend(opening.variant.as_ref().map(|variant| format!("--effort={variant}").into()));
    let bypass = mode == BYPASS;
    if bypass {
        arguments.push("--dangerously-skip-permissions".into());
    }
    let mut spec = with(&opening.place, arguments);
    if bypass && is_root {
        // Root may not bypass permissions, except in a sandbox.
        spec.environment.push(("IS_SANDBOX".into(), Some("1".into())));
    }
    spec
}

/// The program for a question about itself.
pub(super) fn inquiry(place: &Place) -> ProcessSpec {
    with(place, SPOKEN.iter().map(Into::into).collect())
}

fn with(place: &Place, arguments: Vec<OsString>) -> ProcessSpec {
    let taken_out = TAKEN_OUT.iter().map(|name| (name.into(), None));
    let given = place.environment.iter().map(|(name, value)| (name.into(), Some(value.into())));
    ProcessSpec {
        program: place.program.clone(),
        arguments,
        directory: place.directory.clone(),
        environment: taken_out.chain(given).collect(),
    }
}

/// The agent's name for never asking.
pub(super) const BYPASS: &str = "bypassPermissions";

/// The agent's name for what it may do unasked. To plan is to change nothing.
pub(super) const fn mode(agent: AgentMode, mode: PermissionMode) -> &'static str {
    match (agent, mode) {
        (AgentMode::Plan, _) | (_, PermissionMode::Plan) => "plan",
        (_, PermissionMode::Default) => "default",
        (_, PermissionMode::AcceptEdits) => "acceptEdits",
        (_, PermissionMode::Bypass) => BYPASS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(opening: &Opening) -> Vec<String> {
        let spec = conversation(opening, "0000", true);
        spec.arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    //= agents.execution-models.several-turns-resume
    #[test]
    fn only_a_conversation_that_was_begun_is_resumed() {
        assert!(arguments(&Opening::default()).contains(&"--session-id=0000".to_owned()));
        let begun = arguments(&Opening { begun: true, ..Opening::default() });
        assert!(begun.contains(&"--resume=0000".to_owned()));
        assert!(!begun.iter().any(|argument| argument.starts_with("--session-id")));
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn a_model_cannot_pass_for_an_option() {
        let opening = Opening { model: Some("--dangerously-skip-permissions".into()), ..Opening::default() };
        assert!(!arguments(&opening).contains(&"--dangerously-skip-permissions".to_owned()));
        let opening = Opening { model: Some("default".into()), variant: Some("high".into()), ..Opening::default() };
        let arguments = arguments(&opening);
        assert!(arguments.contains(&"--effort=high".to_owned()));
        assert!(!arguments.iter().any(|argument| argument.starts_with("--model")));
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn a_plan_is_never_carried_out_unasked() {
        for permission_mode in PermissionMode::ALL {
            let opening = Opening { agent_mode: AgentMode::Plan, permission_mode, ..Opening::default() };
            let arguments = arguments(&opening);
            assert!(arguments.contains(&"--permission-mode=plan".to_owned()), "{arguments:?}");
            assert!(!arguments.contains(&"--dangerously-skip-permissions".to_owned()));
        }
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn root_may_bypass_because_it_is_told_of_a_sandbox() {
        let opening = Opening { permission_mode: PermissionMode::Bypass, ..Opening::default() };
        let told = |is_root| {
            let environment = conversation(&opening, "0000", is_root).environment;
            environment.contains(&("IS_SANDBOX".into(), Some("1".into())))
        };
        assert!(told(true));
        assert!(!told(false));
        assert!(arguments(&opening).contains(&"--dangerously-skip-permissions".to_owned()));
    }

    #[test]
    fn the_servers_token_is_not_for_the_agent() {
        let environment = conversation(&Opening::default(), "0000", false).environment;
        for name in TAKEN_OUT {
            assert!(environment.contains(&(name.into(), None)), "{name}");
        }
    }
}
