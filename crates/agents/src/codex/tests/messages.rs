//! Messages that no recording contains: other versions, and malformed ones.

use serde_json::{Value, json};

use super::snapshots::rendered;
use crate::{
    agent::{AgentEvent, Prompt, UserAnswer},
    codex::{
        convert::{ThreadState, TurnPhase},
        rpc::{self, RpcMessage, RpcRequest},
    },
    schema::PermissionReply,
};

fn request(method: &str, id: Option<u64>, params: Value) -> RpcRequest {
    RpcRequest { id: id.map(Value::from), method: method.to_owned(), params }
}

/// A thread with a running turn.
fn running() -> ThreadState {
    let mut thread = ThreadState::new("t", "server");
    thread.prompt_sent(&Prompt { id: "p".to_owned(), text: "do it".to_owned() }, "do it");
    thread.turn_start_response(Ok(&json!({"turn": {"id": "u"}})), &mut Vec::new());
    thread
}

fn notify(thread: &mut ThreadState, method: &str, params: Value) -> Vec<Value> {
    let mut events = Vec::new();
    thread.handle_notification(&request(method, None, params), None, &mut events);
    events.iter().map(rendered).collect()
}

fn item(kind: &str, more: Value) -> Value {
    let mut item = json!({"type": kind, "id": "i"});
    item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"threadId": "t", "turnId": "u", "item": item})
}

fn ended(outcome: &str) -> Value {
    json!({"threadId": "t", "turn": {"id": "u", "status": outcome}})
}

//= promises.agents-server.lines-agent-dropped
#[test]
fn every_message_yields_an_event_or_an_error() {
    let methods = [
        "item/started",
        "item/completed",
        "turn/started",
        "turn/completed",
        "item/agentMessage/delta",
        "thread/tokenUsage/updated",
        "error",
        "serverRequest/resolved",
        "thread/started",
        "item/fileChange/requestApproval",
        "item/tool/requestUserInput",
        "applyPatchApproval",
    ];
    bolero::check!().with_type::<(Vec<u8>, u8, bool)>().for_each(|(bytes, method, requests)| {
        let _ = rpc::read(bytes);
        let _ = rpc::thread_named(bytes);
        // Any JSON in the bytes, or their text, serves as parameters.
        let text = || Value::String(String::from_utf8_lossy(bytes).into_owned());
        let value: Value = serde_json::from_slice(bytes).unwrap_or_else(|_| text());
        let shapes = [
            value.clone(),
            json!({"threadId": "t", "item": value, "turn": value, "tokenUsage": value, "error": value}),
            json!({"threadId": "t", "item": {"id": value, "type": value, "changes": value, "content": value}}),
            json!({"threadId": "t", "item": {"id": "i", "type": "fileChange", "changes": [value], "status": value}}),
            json!({"threadId": "t", "turn": {"id": "u", "status": value, "error": value}, "itemId": "i", "delta": value}),
            json!({"threadId": "t", "questions": [value], "requestId": value, "fileChanges": value}),
        ];
        let mut thread = running();
        for params in shapes {
            let method = methods[usize::from(*method) % methods.len()];
            let line = if *requests {
                json!({"id": 1, "method": method, "params": params})
            } else {
                json!({"method": method, "params": params})
            };
            let Ok(RpcMessage::Request(request)) = rpc::read(line.to_string().as_bytes()) else { panic!("{line}") };
            let mut events = Vec::new();
            match request.id {
                None => thread.handle_notification(&request, None, &mut events),
                Some(_) => drop(thread.handle_request(&request, None, &mut events)),
            }
            assert!(!events.is_empty(), "no event for {line}");
        }
    });
}

#[test]
fn a_tool_without_a_start_is_called_before_its_result() {
    let mut thread = running();
    let params = item("mcpToolCall", json!({"server": "s", "tool": "x", "arguments": {"a": 1}, "result": "r"}));
    let events = notify(&mut thread, "item/completed", params);
    assert_eq!(events[0]["event"]["message"]["parts"][0]["name"], "s.x");
    assert_eq!(events[0]["event"]["message"]["parts"][0]["input"], json!({"a": 1}));
    assert_eq!(events[1]["event"]["itemCompleted"]["status"], "completed");
    assert_eq!(events[2]["event"]["message"]["parts"][0]["type"], "tool_result");
}

#[test]
fn a_command_that_outlives_its_turn_is_completed_once() {
    let mut thread = running();
    let command = |status| item("commandExecution", json!({"command": "sleep", "status": status}));
    assert_eq!(notify(&mut thread, "item/started", command("inProgress")).len(), 2);
    let end = notify(&mut thread, "turn/completed", ended("completed"));
    assert_eq!(end[0]["event"]["itemCompleted"]["status"], "interrupted");
    assert_eq!(end[1]["event"]["message"]["parts"][0]["is_error"], true);
    assert_eq!(end[2]["turnEnded"]["outcome"], "completed");
    // It was completed before; further messages are notices.
    let delta = json!({"threadId": "t", "itemId": "i", "delta": "x"});
    for (method, params) in [("item/commandExecution/outputDelta", delta), ("item/completed", command("completed"))] {
        let late = notify(&mut thread, method, params);
        assert_eq!(late.len(), 1);
        assert_eq!(late[0]["event"]["notice"]["label"], method);
    }
}

#[test]
fn open_items_are_interrupted_when_the_thread_closes() {
    let mut thread = running();
    notify(&mut thread, "item/started", item("agentMessage", json!({"text": ""})));
    notify(&mut thread, "item/agentMessage/delta", json!({"threadId": "t", "itemId": "i", "delta": "Hello"}));
    let mut events = Vec::new();
    thread.close_all(&mut events);
    let events: Vec<Value> = events.iter().map(rendered).collect();
    assert_eq!(events[0]["event"]["itemCompleted"]["status"], "interrupted");
    assert_eq!(events[1]["event"]["message"]["parts"][0]["text"], "Hello");
    let mut again = Vec::new();
    thread.close_all(&mut again);
    assert!(again.is_empty());
}

//= agents.universal-schema.cannot-parsed-preserved
//= agents.modes-capabilities.files-images-parts
//= agents.universal-schema.parts-text-tool-call
#[test]
fn images_are_parts() {
    let parts = |kind: &str, more: Value| {
        let events = notify(&mut running(), "item/completed", item(kind, more));
        let messages: Vec<_> = events.iter().filter_map(|event| event["event"].get("message")).cloned().collect();
        messages.last().unwrap()["parts"].as_array().unwrap().clone()
    };
    let path = json!({"type": "image", "source": {"type": "path", "path": "/p.png"}});
    for (kind, more) in
        [("imageView", json!({"path": "/p.png"})), ("imageGeneration", json!({"status": "", "savedPath": "/p.png"}))]
    {
        let found = parts(kind, more);
        assert_eq!((found.len(), &found[0]["type"], &found[1]), (2, &json!("tool_result"), &path), "{kind}");
    }
    let url = json!({"type": "image", "source": {"type": "url", "url": "data:x"}});
    let content = json!([{"type": "inputText", "text": "a"}, {"type": "inputImage", "imageUrl": "data:x"}]);
    let found = parts("dynamicToolCall", json!({"tool": "t", "contentItems": content}));
    assert_eq!((found.len(), &found[0]["output"]["contentItems"], &found[1]), (2, &content, &url));
    let content = json!([{"type": "text", "text": "a"}, {"type": "image", "data": "AA==", "mimeType": "image/png"}]);
    let found = parts("mcpToolCall", json!({"server": "s", "tool": "t", "result": {"content": content}}));
    let data = json!({"type": "data", "data": "AA==", "encoding": "base64"});
    let expected = json!({"type": "image", "source": data, "mime_type": "image/png"});
    assert_eq!((found.len(), &found[0]["output"]["content"], &found[1]), (2, &content, &expected));

    let content = json!([
        {"type": "text", "text": "a"}, {"type": "image", "url": "data:x"}, {"type": "localImage", "path": "/p.png"},
        {"type": "image", "fileId": "f"}, {"type": "audio", "url": "data:y"},
    ]);
    let found = parts("userMessage", json!({"content": content}));
    let unknown = |at: usize| json!({"type": "unknown", "raw": content[at]});
    assert_eq!(found, [json!({"type": "text", "text": "a"}), url, path, unknown(3), unknown(4)]);
}

#[test]
fn items_of_an_unknown_type_are_kept() {
    let mut thread = running();
    let events = notify(&mut thread, "item/completed", item("dream", json!({"of": "sheep"})));
    assert_eq!(events[0]["event"]["itemCompleted"]["kind"], "other");
    assert_eq!(events[1]["event"]["message"]["parts"][0]["raw"]["of"], "sheep");
}

#[test]
fn messages_of_a_subthread_do_not_end_the_turn() {
    let mut thread = running();
    let events =
        notify(&mut thread, "turn/completed", json!({"threadId": "other", "turn": {"id": "u", "status": "failed"}}));
    assert_eq!(events[0]["event"]["notice"]["label"], "turn/completed");
    assert_eq!(thread.turn(), &TurnPhase::Running("u".to_owned()));
}

#[test]
fn a_turn_without_a_prompt_is_reported() {
    let mut thread = running();
    notify(&mut thread, "turn/completed", ended("completed"));
    let events = notify(&mut thread, "turn/started", json!({"threadId": "t", "turn": {"id": "v"}}));
    assert_eq!(events[0], json!("turnStarted"));
    assert_eq!(events[1]["event"]["started"]["message"], "turn/started");
    // A repeated end of the previous turn does not end this one.
    assert_eq!(notify(&mut thread, "turn/completed", ended("completed")).len(), 1);
    assert_eq!(thread.turn(), &TurnPhase::Running("v".to_owned()));
}

#[test]
fn a_rejected_turn_fails_with_the_error_message() {
    let mut thread = ThreadState::new("t", "server");
    thread.prompt_sent(&Prompt { id: "p".to_owned(), text: String::new() }, "");
    let mut events = Vec::new();
    thread.turn_start_response(Err("no such model".to_owned()), &mut events);
    let events: Vec<Value> = events.iter().map(rendered).collect();
    assert_eq!(events[0]["event"]["error"]["kind"], "jsonrpc.error");
    assert_eq!(events[1]["turnEnded"], json!({"outcome": "failed", "message": "no such model", "usage": null}));
    assert_eq!(thread.turn(), &TurnPhase::None);
}

#[test]
fn a_truncated_message_is_not_lost() {
    let mut thread = running();
    notify(&mut thread, "item/started", item("agentMessage", json!({"text": ""})));
    for delta in ["Hello", " wor"] {
        notify(&mut thread, "item/agentMessage/delta", json!({"threadId": "t", "itemId": "i", "delta": delta}));
    }
    let end = notify(&mut thread, "turn/completed", ended("interrupted"));
    assert_eq!(end[0]["event"]["itemCompleted"]["text"], "Hello wor");
    assert_eq!(end[1]["event"]["message"]["parts"][0]["text"], "Hello wor");
    assert_eq!(end[1]["event"]["message"]["metadata"]["status"], "interrupted");
}

fn elicitation(fields: Value) -> Value {
    let schema = json!({"type": "object", "properties": fields});
    json!({"threadId": "t", "serverName": "x", "mode": "form", "message": "May it?", "requestedSchema": schema})
}

//= agents.execution-models.approvals-requests-server
#[test]
fn every_kind_of_request_gets_its_own_form_of_response() {
    let reply = |reply| UserAnswer::Permission(reply, Some("why".to_owned()));
    let permissions = json!({"network": {"enabled": true}});
    let cases = [
        (
            request("item/commandExecution/requestApproval", Some(1), json!({"threadId": "t", "command": "ls"})),
            [json!({"decision": "accept"}), json!({"decision": "acceptForSession"}), json!({"decision": "decline"})],
            vec!["ls"],
        ),
        (
            request("execCommandApproval", Some(2), json!({"conversationId": "t", "command": ["ls", "-l"]})),
            [
                json!({"decision": "approved"}),
                json!({"decision": "approved_for_session"}),
                json!({"decision": {"denied": {"rejection": "why"}}}),
            ],
            vec!["ls -l"],
        ),
        (
            request("applyPatchApproval", Some(3), json!({"conversationId": "t", "fileChanges": {"/a": {}, "/b": {}}})),
            [
                json!({"decision": "approved"}),
                json!({"decision": "approved_for_session"}),
                json!({"decision": {"denied": {"rejection": "why"}}}),
            ],
            vec!["/a", "/b"],
        ),
        (
            request("item/permissions/requestApproval", Some(4), json!({"threadId": "t", "permissions": permissions})),
            [
                json!({"permissions": permissions, "scope": "turn"}),
                json!({"permissions": permissions, "scope": "session"}),
                json!({"permissions": {}, "scope": "turn"}),
            ],
            vec![],
        ),
        (
            request("mcpServer/elicitation/request", Some(5), elicitation(json!({}))),
            [
                json!({"action": "accept", "content": {}}),
                json!({"action": "accept", "content": {}, "_meta": {"persist": "session"}}),
                json!({"action": "decline"}),
            ],
            vec!["May it?"],
        ),
    ];
    for (params_of, [once, always, reject], patterns) in cases {
        let mut thread = running();
        let mut events = Vec::new();
        thread.handle_request(&params_of, None, &mut events).unwrap();
        let [AgentEvent::PermissionAsked(request, _)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(request.patterns, patterns);
        let ask = thread.take_request(&request.id).unwrap();
        assert_eq!(ask.answer(&reply(PermissionReply::Once)), Some(once));
        assert_eq!(ask.answer(&reply(PermissionReply::Always)), Some(always));
        assert_eq!(ask.answer(&reply(PermissionReply::Reject)), Some(reject));
        assert_eq!(ask.answer(&UserAnswer::QuestionRejected), None);
    }
}

#[test]
fn an_unsupported_request_is_rejected_and_logged() {
    let cases = [
        ("item/tool/call", json!({"threadId": "t"})),
        ("mcpServer/elicitation/request", elicitation(json!({"name": {"type": "string"}}))),
    ];
    for (method, params) in cases {
        let mut thread = running();
        let mut events = Vec::new();
        let rejection = thread.handle_request(&request(method, Some(1), params), None, &mut events).unwrap_err();
        assert_eq!(rejection.code, -32_601);
        assert_eq!(rendered(&events[0])["event"]["raw"]["method"], method);
    }
}

#[test]
fn requests_are_withdrawn_once_with_their_turn() {
    let mut thread = running();
    let mut events = Vec::new();
    let params = |turn| json!({"threadId": "t", "turnId": turn, "command": "ls"});
    let ask = |id, turn| request("item/commandExecution/requestApproval", Some(id), params(turn));
    thread.handle_request(&ask(1, "u"), None, &mut events).unwrap();
    thread.handle_request(&ask(2, "of another thread"), None, &mut events).unwrap();
    let end = notify(&mut thread, "turn/completed", ended("interrupted"));
    assert_eq!(end[0], json!({"withdrawn": "server-1"}));
    assert_eq!(end.len(), 2);
    let resolved = |id| json!({"threadId": "t", "requestId": id});
    let again = notify(&mut thread, "serverRequest/resolved", resolved(1));
    assert_eq!(again[0]["event"]["notice"]["label"], "serverRequest/resolved");
    assert_eq!(notify(&mut thread, "serverRequest/resolved", resolved(2)), [json!({"withdrawn": "server-2"})]);
}
