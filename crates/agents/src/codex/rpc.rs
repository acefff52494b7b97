//! JSON-RPC messages of the app-server, one per line and without a version field.

use serde_json::{Map, Value, json};

use crate::json_line;

/// JSON-RPC code for an unsupported method.
pub(super) const METHOD_NOT_FOUND: i64 = -32_601;

/// A message of the app-server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RpcMessage {
    /// Response to a request of ours.
    Response { id: u64, result: Result<Value, RpcError> },
    /// A request or notification.
    Request(RpcRequest),
}

/// A request, or a notification if it has no id.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RpcRequest {
    /// Counts from 0 in each app-server.
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
}

/// Parses a line.
pub(super) fn read(line: &[u8]) -> Result<RpcMessage, String> {
    let mut fields: Map<String, Value> = json_line::parse(line)?;
    let id = fields.remove("id").filter(|id| !id.is_null());
    match (fields.remove("method"), id) {
        (Some(Value::String(method)), id) => {
            Ok(RpcMessage::Request(RpcRequest { id, method, params: fields.remove("params").unwrap_or_default() }))
        }
        (Some(_), _) => Err("its method is not a string".to_owned()),
        (None, id) => {
            let id = id.as_ref().and_then(Value::as_u64).ok_or("it has no method, and answers nothing")?;
            let result = match (fields.remove("error"), fields.remove("result")) {
                (Some(error), _) if !error.is_null() => Err(RpcError::of(&error)),
                (_, Some(result)) => Ok(result),
                (_, None) => return Err("it has neither a method nor a result".to_owned()),
            };
            Ok(RpcMessage::Response { id, result })
        }
    }
}

/// Encodes a request.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"id": id, "method": method, "params": params})
}

/// Encodes a notification.
pub(super) fn notification(method: &str) -> Value {
    json!({"method": method})
}

/// Encodes a response.
pub(super) fn answer(id: &Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => json!({"id": id, "result": result}),
        Err(RpcError { code, message }) => json!({"id": id, "error": {"code": code, "message": message}}),
    }
}

/// The thread that a truncated line names.
pub(super) fn thread_named(beginning: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"threadId\":";
    let at = beginning.windows(KEY.len()).position(|bytes| bytes == KEY)?;
    let behind = beginning.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b"\"")?;
    let end = behind.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(behind.get(..end)?).ok()
}

// === impl RpcRequest ===

impl RpcRequest {
    /// The thread that it belongs to.
    pub(super) fn thread(&self) -> Option<&str> {
        let id = |key: &str| self.params.get(key).and_then(Value::as_str);
        id("threadId").or_else(|| id("conversationId")).or_else(|| self.params.pointer("/thread/id")?.as_str())
    }

    /// The parent of a new thread.
    pub(super) fn parent(&self) -> Option<&str> {
        self.params.pointer("/thread/parentThreadId")?.as_str()
    }
}

// === impl RpcError ===

impl RpcError {
    fn of(error: &Value) -> Self {
        let message = match error.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => error.to_string(),
        };
        Self { code: error.get("code").and_then(Value::as_i64).unwrap_or_default(), message }
    }

    /// The method is not supported.
    pub(super) fn method_not_found(method: &str) -> Self {
        Self { code: METHOD_NOT_FOUND, message: format!("{method} is not supported") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_notifications_and_requests_are_distinguished() {
        assert_eq!(read(br#"{"id":3,"result":{}}"#), Ok(RpcMessage::Response { id: 3, result: Ok(json!({})) }));
        let rejection = RpcError { code: -32_600, message: "no".to_owned() };
        assert_eq!(
            read(br#"{"error":{"code":-32600,"message":"no"},"id":3}"#),
            Ok(RpcMessage::Response { id: 3, result: Err(rejection) })
        );
        let Ok(RpcMessage::Request(request)) = read(br#"{"method":"turn/started","params":{"threadId":"t"}}"#) else {
            panic!()
        };
        assert_eq!((request.id.as_ref(), request.thread()), (None, Some("t")));
        let Ok(RpcMessage::Request(request)) = read(br#"{"method":"x","id":0,"params":{"conversationId":"t"}}"#) else {
            panic!()
        };
        assert_eq!((request.id.as_ref(), request.thread()), (Some(&json!(0)), Some("t")));
    }

    #[test]
    fn a_request_with_a_lone_surrogate_is_parsed() {
        let Ok(RpcMessage::Request(request)) = read(br#"{"method":"x","id":0,"params":{"command":"\ud83d"}}"#) else {
            panic!()
        };
        assert_eq!(request.params["command"], "\u{fffd}");
    }

    #[test]
    fn a_truncated_line_names_its_thread() {
        assert_eq!(thread_named(br#"{"method":"x","params":{"threadId": "t","delta":"aaaa"#), Some("t"));
        for nobodys in [&b"not json"[..], br#"{"threadId":"#, br#"{"threadId":7}"#, br#"{"threadId":"t"#] {
            assert_eq!(thread_named(nobodys), None);
        }
    }

    #[test]
    fn a_malformed_message_is_rejected_with_a_reason() {
        for line in
            [&b"{}"[..], b"[]", b"nonsense", b"{\"id\":1}", b"{\"id\":\"a\",\"result\":1}", b"{\"method\":1}", b"\xff"]
        {
            assert!(read(line).is_err_and(|why| !why.is_empty()), "{}", String::from_utf8_lossy(line));
        }
    }
}
