//! Command lines of Claude Code.

use std::ffi::OsString;

use crate::{
    agent::{AgentMode, AgentProgram, ConversationOptions, PermissionMode},
    child::ProcessSpec,
};

/// Variables that are removed from the environment: the server's token, and those that mark a nested Claude Code.
const REMOVED_VARIABLES: [&str; 3] = ["SANDBOX_AGENT_TOKEN", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT"];

/// JSON lines in both directions, with permission requests on the same pipes.
const STREAM_ARGUMENTS: [&str; 5] = [
    "--print",
    "--input-format=stream-json",
    "--output-format=stream-json",
    "--verbose",
    "--permission-prompt-tool=stdio",
];

/// Partial messages, and messages of subagents.
const DETAIL_ARGUMENTS: [&str; 2] = ["--include-partial-messages", "--forward-subagent-text"];

pub(super) fn conversation_spec(options: &ConversationOptions, id: &str, is_root: bool) -> ProcessSpec {
    let mode = mode(options.agent_mode, options.permission_mode);
    let mut arguments: Vec<OsString> = STREAM_ARGUMENTS.iter().chain(&DETAIL_ARGUMENTS).map(Into::into).collect();
    arguments.push(format!("--permission-mode={mode}").into());
    arguments.push(if options.resumable { format!("--resume={id}") } else { format!("--session-id={id}") }.into());
    // The flag does not accept the name of the default model.
    if let Some(model) = options.model.as_deref().filter(|model| *model != super::models::DEFAULT) {
        arguments.push(format!("--model={model}").into());
    }
    arguments.extend(options.variant.as_ref().map(|variant| format!("--effort={variant}").into()));
    let bypass = mode == BYPASS;
    if bypass {
        arguments.push("--dangerously-skip-permissions".into());
    }
    let mut spec = spec(&options.program, arguments);
    if bypass && is_root {
        // Claude Code lets root bypass permissions only in a sandbox.
        spec.environment.push(("IS_SANDBOX".into(), Some("1".into())));
    }
    spec
}

/// A process that only answers requests about itself.
pub(super) fn query_spec(program: &AgentProgram) -> ProcessSpec {
    spec(program, STREAM_ARGUMENTS.iter().map(Into::into).collect())
}

fn spec(program: &AgentProgram, arguments: Vec<OsString>) -> ProcessSpec {
    let removed = REMOVED_VARIABLES.iter().map(|name| (name.into(), None));
    let given = program.environment.iter().map(|(name, value)| (name.into(), Some(value.into())));
    ProcessSpec {
        program: program.path.clone(),
        arguments,
        directory: program.directory.clone(),
        environment: removed.chain(given).collect(),
    }
}

/// Claude Code's name for the bypass mode.
pub(super) const BYPASS: &str = "bypassPermissions";

/// Claude Code's name for a permission mode. Plan mode takes precedence.
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

    fn arguments(options: &ConversationOptions) -> Vec<String> {
        let spec = conversation_spec(options, "0000", true);
        spec.arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    //= agents.execution-models.several-turns-resume
    #[test]
    fn only_a_resumable_conversation_is_resumed() {
        assert!(arguments(&ConversationOptions::default()).contains(&"--session-id=0000".to_owned()));
        let resumed = arguments(&ConversationOptions { resumable: true, ..ConversationOptions::default() });
        assert!(resumed.contains(&"--resume=0000".to_owned()));
        assert!(!resumed.iter().any(|argument| argument.starts_with("--session-id")));
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn a_model_is_given_by_name_and_never_parsed_as_an_option() {
        let options = ConversationOptions {
            model: Some("--dangerously-skip-permissions".into()),
            ..ConversationOptions::default()
        };
        assert!(!arguments(&options).contains(&"--dangerously-skip-permissions".to_owned()));
        let options = ConversationOptions { model: Some("opus".into()), ..ConversationOptions::default() };
        assert!(arguments(&options).contains(&"--model=opus".to_owned()));
        let options = ConversationOptions {
            model: Some("default".into()),
            variant: Some("high".into()),
            ..ConversationOptions::default()
        };
        let arguments = arguments(&options);
        assert!(arguments.contains(&"--effort=high".to_owned()));
        assert!(!arguments.iter().any(|argument| argument.starts_with("--model")));
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn plan_mode_never_bypasses_permissions() {
        for permission_mode in PermissionMode::ALL {
            let options =
                ConversationOptions { agent_mode: AgentMode::Plan, permission_mode, ..ConversationOptions::default() };
            let arguments = arguments(&options);
            assert!(arguments.contains(&"--permission-mode=plan".to_owned()), "{arguments:?}");
            assert!(!arguments.contains(&"--dangerously-skip-permissions".to_owned()));
        }
    }

    //= agents.execution-models.model-permission-mode-plan
    #[test]
    fn root_may_bypass_because_the_sandbox_variable_is_set() {
        let options = ConversationOptions { permission_mode: PermissionMode::Bypass, ..ConversationOptions::default() };
        let has_variable = |is_root| {
            let environment = conversation_spec(&options, "0000", is_root).environment;
            environment.contains(&("IS_SANDBOX".into(), Some("1".into())))
        };
        assert!(has_variable(true));
        assert!(!has_variable(false));
        assert!(arguments(&options).contains(&"--dangerously-skip-permissions".to_owned()));
    }

    #[test]
    fn the_agent_does_not_inherit_the_servers_token() {
        let environment = conversation_spec(&ConversationOptions::default(), "0000", false).environment;
        for name in REMOVED_VARIABLES {
            assert!(environment.contains(&(name.into(), None)), "{name}");
        }
    }
}
