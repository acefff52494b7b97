//! What `always` grants: the agent's suggestions, for the session only. Nothing is written to the workspace or to
//! settings files.

use serde_json::{Value, json};

/// Permission updates for Claude Code.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PermissionGrants(Vec<Value>);

// === impl PermissionGrants ===

impl PermissionGrants {
    /// The grants of an `always` answer to this request.
    pub(super) fn of(request: &Value) -> Self {
        let suggested = request.get("permission_suggestions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let granted: Vec<_> = suggested.iter().filter(|suggestion| is_grant(suggestion)).collect();
        // With a rule, the mode need not change, which would allow far more.
        let has_rules = granted.iter().any(|grant| grant["type"] == "addRules");
        let granted = granted.into_iter().filter(|grant| !has_rules || grant["type"] != "setMode");
        let mut grants: Vec<_> = granted.cloned().collect();
        if grants.is_empty() {
            grants.extend(rule_for(request));
        }
        for grant in grants.iter_mut().filter_map(Value::as_object_mut) {
            grant.insert("destination".to_owned(), json!("session"));
        }
        Self(grants)
    }

    /// As Claude Code's permission updates.
    pub(super) fn updates(&self) -> &[Value] {
        &self.0
    }

    /// As readable text.
    pub(super) fn describe(&self) -> Vec<String> {
        self.0.iter().flat_map(describe).collect()
    }
}

/// Whether a suggestion grants something that is allowed for a session.
fn is_grant(suggestion: &Value) -> bool {
    match suggestion["type"].as_str() {
        Some("addRules") => suggestion["behavior"] == "allow",
        Some("addDirectories") => true,
        Some("setMode") => suggestion["mode"] == "acceptEdits",
        _ => false,
    }
}

/// A rule for this command, or else for the tool, if the agent suggests none.
fn rule_for(request: &Value) -> Option<Value> {
    if request["suppress_always_allow_rule"] == true {
        return None;
    }
    let tool = request["tool_name"].as_str()?;
    let rule = match request["input"]["command"].as_str() {
        // In a rule, a star is a wildcard.
        Some(command) if command.contains('*') => return None,
        Some(command) => json!({"toolName": tool, "ruleContent": command}),
        None => json!({"toolName": tool}),
    };
    Some(json!({"type": "addRules", "rules": [rule], "behavior": "allow"}))
}

fn describe(grant: &Value) -> Vec<String> {
    let list = |key: &str| grant[key].as_array().map_or(&[][..], Vec::as_slice);
    match grant["type"].as_str() {
        Some("addRules") => list("rules")
            .iter()
            .filter_map(|rule| {
                let tool = rule["toolName"].as_str()?;
                Some(rule["ruleContent"].as_str().map_or_else(|| tool.to_owned(), |what| format!("{tool}({what})")))
            })
            .collect(),
        Some("addDirectories") => {
            list("directories").iter().filter_map(Value::as_str).map(|path| format!("files below {path}")).collect()
        }
        _ => vec!["all edits of files".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggested(suggestions: Value) -> Value {
        json!({"tool_name": "Bash", "input": {"command": "touch a"}, "permission_suggestions": suggestions})
    }

    //= promises.agents-server.rules-always-writes-workspace
    #[test]
    fn grants_are_never_written_to_settings_files() {
        for destination in ["userSettings", "projectSettings", "localSettings", "cliArg", "session"] {
            let rule = json!({"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}],
                "behavior": "allow", "destination": destination});
            let directory = json!({"type": "addDirectories", "directories": ["/a"], "destination": destination});
            let mode = json!({"type": "setMode", "mode": "acceptEdits", "destination": destination});
            for suggestions in
                [json!([rule]), json!([directory]), json!([mode]), json!([rule, directory, mode]), json!([])]
            {
                let grants = PermissionGrants::of(&suggested(suggestions));
                assert!(!grants.updates().is_empty());
                assert!(grants.updates().iter().all(|grant| grant["destination"] == "session"), "{grants:?}");
            }
        }
    }

    #[test]
    fn a_suggested_rule_leaves_the_mode_unchanged() {
        let rule =
            json!({"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}], "behavior": "allow"});
        let mode = json!({"type": "setMode", "mode": "acceptEdits"});
        assert_eq!(PermissionGrants::of(&suggested(json!([rule, mode]))).describe(), ["Bash(touch *)"]);
        assert_eq!(PermissionGrants::of(&suggested(json!([mode]))).describe(), ["all edits of files"]);
    }

    #[test]
    fn suggestions_that_revoke_or_allow_everything_are_not_granted() {
        for suggestion in [
            json!({"type": "setMode", "mode": "bypassPermissions"}),
            json!({"type": "removeRules", "rules": [{"toolName": "Bash"}], "behavior": "deny"}),
            json!({"type": "addRules", "rules": [{"toolName": "Read"}], "behavior": "deny"}),
            json!("all"),
        ] {
            assert_eq!(PermissionGrants::of(&suggested(json!([suggestion]))).describe(), ["Bash(touch a)"]);
        }
    }

    #[test]
    fn a_command_with_a_star_becomes_no_rule() {
        let request = json!({"tool_name": "Bash", "input": {"command": "rm *"}});
        assert_eq!(PermissionGrants::of(&request), PermissionGrants::default());
        assert_eq!(
            PermissionGrants::of(&json!({"tool_name": "WebSearch", "input": {"query": "a*"}})).describe(),
            ["WebSearch"]
        );
    }
}
