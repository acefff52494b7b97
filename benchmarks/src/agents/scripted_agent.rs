//! A program that acts as an agent and emits many messages, in the protocol of Claude Code or of ACP.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The option that turns this program into an agent; the protocol follows.
pub(crate) const OPTION: &str = "--play";

/// The protocols.
pub(super) const CLAUDE: &str = "claude";
pub(super) const ACP: &str = "acp";

/// The size of a write.
const BLOCK: usize = 64 * 1024;

/// Installs a program that speaks a protocol.
pub(super) fn install(path: &Path, protocol: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("the path has no directory")?)?;
    let program = std::env::current_exe()?;
    fs::write(path, format!("#!/bin/sh\nexec '{}' {OPTION} {protocol} \"$@\"\n", program.display()))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Speaks a protocol until its input ends. A prompt is the number of messages to emit.
pub(crate) fn run(protocol: &str) -> Result<()> {
    if std::env::args().any(|argument| argument == "--version") {
        println!("0.0.0");
        return Ok(());
    }
    let answer: fn(&Value, &mut dyn Write) -> io::Result<()> = match protocol {
        CLAUDE => claude,
        ACP => acp,
        _ => bail!("there is no protocol {protocol}"),
    };
    let mut out = BufWriter::with_capacity(BLOCK, io::stdout());
    for line in io::stdin().lines() {
        answer(&serde_json::from_str(&line?)?, &mut out)?;
        out.flush()?;
    }
    Ok(())
}

fn claude(message: &Value, out: &mut dyn Write) -> io::Result<()> {
    if message["type"] == "control_request" {
        let response = json!({"subtype": "success", "request_id": message["request_id"], "response": {}});
        return writeln!(out, "{}", json!({"type": "control_response", "response": response}));
    }
    let (session, prompt) = ("b1946ac9-2492-4d1c-8a56-0d7a3c1e5f20", &message["uuid"]);
    let init = json!({"type": "system", "subtype": "init", "session_id": session, "model": "player", "tools": [], "uuid": prompt});
    writeln!(out, "{init}")?;
    for number in 1..=requested_count(&message["message"]["content"][0]["text"]) {
        writeln!(
            out,
            r#"{{"type":"assistant","message":{{"model":"player","id":"msg_{number:08}","type":"message","role":"assistant","content":[{{"type":"text","text":"{}"}}],"stop_reason":null,"usage":{{"input_tokens":1,"output_tokens":1}}}},"parent_tool_use_id":null,"session_id":"{session}","uuid":"00000000-0000-4000-8000-{number:012}"}}"#,
            text(number)
        )?;
    }
    let result = json!({
        "type": "result", "subtype": "success", "is_error": false, "num_turns": 1, "result": "", "session_id": session,
        "usage": {"input_tokens": 1, "output_tokens": 1}, "total_cost_usd": 0,
    });
    writeln!(out, "{result}")
}

fn acp(message: &Value, out: &mut dyn Write) -> io::Result<()> {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({"protocolVersion": 1, "agentCapabilities": {}}),
        Some("session/new") => json!({"sessionId": "played"}),
        Some("session/prompt") => {
            for number in 1..=requested_count(&message["params"]["prompt"][0]["text"]) {
                writeln!(
                    out,
                    r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"played","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{}"}}}}}}}}"#,
                    text(number)
                )?;
            }
            json!({"stopReason": "end_turn"})
        }
        _ => return Ok(()),
    };
    writeln!(out, "{}", json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
}

/// The text of a message, as from our built-in agent.
fn text(number: impl Display) -> String {
    format!("burst {number}")
}

fn requested_count(prompt: &Value) -> u64 {
    prompt.as_str().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(answer: fn(&Value, &mut dyn Write) -> io::Result<()>, message: &Value) -> Vec<Value> {
        let mut out = Vec::new();
        answer(message, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn both_protocols_emit_the_requested_number_of_messages_and_then_a_result() {
        let output = lines(claude, &json!({"type": "user", "message": {"content": [{"text": "3"}]}}));
        assert_eq!(output.len(), 5);
        assert_eq!(output[3]["message"]["content"][0]["text"], "burst 3");
        assert_eq!(output[4]["type"], "result");
        let output = lines(acp, &json!({"id": 7, "method": "session/prompt", "params": {"prompt": [{"text": "3"}]}}));
        assert_eq!(output.len(), 4);
        assert_eq!(output[2]["params"]["update"]["content"]["text"], "burst 3");
        assert_eq!((&output[3]["id"], &output[3]["result"]["stopReason"]), (&json!(7), &json!("end_turn")));
    }
}
