//! The lines of the app-server: JSON-RPC without its version, one message a line.

use serde_json::{Map, Value, json};

use crate::words;

/// What the app-server is told when it asks for something that nobody here can do.
pub(super) const NO_SUCH_METHOD: i64 = -32_601;

/// A line of the app-server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// To a request of ours.
    Answer {
        /// Which.
        id: u64,
        /// What.
        result: Result<Value, Refusal>,
    },
    /// What it says, or asks.
    Said(Said),
}

/// What the app-server says, or asks if there is an id under which it waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    /// In its own numbers, which begin anew with every app-server.
    pub(super) id: Option<Value>,
    /// About what.
    pub(super) method: String,
    /// It.
    pub(super) params: Value,
}

/// An answer that says no.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Refusal {
    /// Its number.
    pub(super) code: i64,
    /// Its words.
    pub(super) message: String,
}

/// Reads a line; or says why it cannot.
pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let mut fields: Map<String, Value> = words::read(line)?;
    let id = fields.remove("id").filter(|id| !id.is_null());
    match (fields.remove("method"), id) {
        (Some(Value::String(method)), id) => {
            Ok(Line::Said(Said { id, method, params: fields.remove("params").unwrap_or_default() }))
        }
        (Some(_), _) => Err("its method is no string".to_owned()),
        (None, id) => {
            let id = id.as_ref().and_then(Value::as_u64).ok_or("it has no method, and answers nothing")?;
            let result = match (fields.remove("error"), fields.remove("result")) {
                (Some(error), _) if !error.is_null() => Err(Refusal::of(&error)),
                (_, Some(result)) => Ok(result),
                (_, None) => return Err("it has neither a method nor a result".to_owned()),
            };
            Ok(Line::Answer { id, result })
        }
    }
}

/// A request of ours.
pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"id": id, "method": method, "params": params})
}

/// Something that is told and needs no answer.
pub(super) fn notification(method: &str) -> Value {
    json!({"method": method})
}

/// An answer to what the app-server asked.
pub(super) fn answer(id: &Value, result: Result<Value, Refusal>) -> Value {
    match result {
        Ok(result) => json!({"id": id, "result": result}),
        Err(Refusal { code, message }) => json!({"id": id, "error": {"code": code, "message": message}}),
    }
}

/// The thread that the beginning of a line names, where the line cannot be read.
pub(super) fn thread_named(beginning: &[u8]) -> Option<&str> {
    const KEY: &[u8] = b"\"threadId\":";
    let at = beginning.windows(KEY.len()).position(|bytes| bytes == KEY)?;
    let behind = beginning.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b"\"")?;
    let end = behind.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(behind.get(..end)?).ok()
}

// === impl Said ===

impl Said {
    /// The thread that it is about.
    pub(super) fn thread(&self) -> Option<&str> {
        let id = |key: &str| self.params.get(key).and_then(Value::as_str);
        id("threadId").or_else(|| id("conversationId")).or_else(|| self.params.pointer("/thread/id")?.as_str())
    }

    /// The thread that began the thread which it is about.
    pub(super) fn parent(&self) -> Option<&str> {
        self.params.pointer("/thread/parentThreadId")?.as_str()
    }
}

// === impl Refusal ===

impl Refusal {
    fn of(error: &Value) -> Self {
        let message = match error.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => error.to_string(),
        };
        Self { code: error.get("code").and_then(Value::as_i64).unwrap_or_default(), message }
    }

    /// Nobody here can do that.
    pub(super) fn no_such_method(method: &str) -> Self {
        Self { code: NO_SUCH_METHOD, message: format!("{method} is not supported") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_notifications_and_requests_are_told_apart() {
        assert_eq!(read(br#"{"id":3,"result":{}}"#), Ok(Line::Answer { id: 3, result: Ok(json!({})) }));
        let refusal = Refusal { code: -32_600, message: "no".to_owned() };
        assert_eq!(
            read(br#"{"error":{"code":-32600,"message":"no"},"id":3}"#),
            Ok(Line::Answer { id: 3, result: Err(refusal) })
        );
        let Ok(Line::Said(said)) = read(br#"{"method":"turn/started","params":{"threadId":"t"}}"#) else { panic!() };
        assert_eq!((said.id.as_ref(), said.thread()), (None, Some("t")));
        let Ok(Line::Said(said)) = read(br#"{"method":"x","id":0,"params":{"conversationId":"t"}}"#) else { panic!() };
        assert_eq!((said.id.as_ref(), said.thread()), (Some(&json!(0)), Some("t")));
    }

    #[test]
    fn a_request_with_half_a_character_is_read() {
        let Ok(Line::Said(said)) = read(br#"{"method":"x","id":0,"params":{"command":"\ud83d"}}"#) else { panic!() };
        assert_eq!(said.params["command"], "\u{fffd}");
    }

    #[test]
    fn a_thread_is_known_by_the_beginning_of_a_line() {
        assert_eq!(thread_named(br#"{"method":"x","params":{"threadId": "t","delta":"aaaa"#), Some("t"));
        for nobodys in [&b"not json"[..], br#"{"threadId":"#, br#"{"threadId":7}"#, br#"{"threadId":"t"#] {
            assert_eq!(thread_named(nobodys), None);
        }
    }

    #[test]
    fn what_is_neither_is_refused_with_a_reason() {
        for line in
            [&b"{}"[..], b"[]", b"nonsense", b"{\"id\":1}", b"{\"id\":\"a\",\"result\":1}", b"{\"method\":1}", b"\xff"]
        {
            assert!(read(line).is_err_and(|why| !why.is_empty()), "{}", String::from_utf8_lossy(line));
        }
    }
}
