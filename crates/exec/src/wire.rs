//! Messages on the wire: requests classified by shape, replies in the original's order of members.

mod params;
mod sandbox;

pub(crate) use params::{
    CommandExecParams, CommandExecResizeParams, CommandExecTerminalSize, CommandExecTerminateParams,
    CommandExecWriteParams, InitializeParams,
};
pub(crate) use sandbox::{
    AbsolutePath, FileSystemAccessMode, FileSystemPath, FileSystemSpecialPath, NetworkAccess,
    PermissionProfile, PermissionProfileFileSystemPermissions, ReadOnlyAccess, SandboxPolicy, normalized,
};

pub(crate) use outpost_wire::jsonrpc::Failure;
use outpost_wire::jsonrpc::PARSE;
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) const OVERLOADED: i32 = -32001;

/// Longest part of an id in the log.
const LOGGED_CHARS_MAX: usize = 100;

/// "id: string or i64 (negative fine), echoed with its type."
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Id {
    Number(i64),
    Text(String),
    /// Reply to a message without a usable id.
    Null,
}

impl Id {
    /// Form for the log: escaped and bounded, since the client chooses it.
    pub(crate) fn logged(&self) -> String {
        match self {
            Id::Number(number) => number.to_string(),
            Id::Text(text) => text.escape_default().take(LOGGED_CHARS_MAX).collect(),
            Id::Null => "none".into(),
        }
    }

    fn from_value(value: &Value) -> Option<Id> {
        match value {
            Value::String(text) => Some(Id::Text(text.clone())),
            Value::Number(number) => number.as_i64().map(Id::Number),
            _ => None,
        }
    }
}

/// A message from the client.
#[derive(Debug)]
pub(crate) enum Incoming {
    Request {
        id: Id,
        method: String,
        params: Option<Value>,
    },
    /// "a request without id: nothing runs".
    Notification,
    /// Reply to a request; the server sends none.
    Reply,
    /// Malformed message. The original drops it; we reply with an error.
    Bad(Id, Failure),
}

impl Incoming {
    /// "matched structurally in the order request (id+method), notification (method), response (id+result), error".
    pub(crate) fn parse(line: &[u8]) -> Incoming {
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => {
                return Incoming::Bad(Id::Null, Failure::new(PARSE, format!("Parse error: {error}")));
            }
        };
        let Value::Object(message) = value else {
            let what = if value.is_array() { "a batch; send one message a line" } else { "not an object" };
            let refused = Failure::invalid_request(format!("Invalid request: the message is {what}"));
            return Incoming::Bad(Id::Null, refused);
        };
        Incoming::from_object(message)
    }

    fn from_object(mut message: Map<String, Value>) -> Incoming {
        let id = message.get("id").map(Id::from_value);
        let method = match message.remove("method") {
            Some(Value::String(method)) => Some(method),
            Some(_) => {
                let refused = Failure::invalid_request("Invalid request: method must be a string");
                return Incoming::Bad(id.flatten().unwrap_or(Id::Null), refused);
            }
            None => None,
        };
        match (id, method) {
            (Some(Some(id)), Some(method)) => {
                Incoming::Request { id, method, params: message.remove("params") }
            }
            (Some(None), Some(_)) => {
                let refused = "Invalid request: id must be a string or an integer of 64 bits";
                Incoming::Bad(Id::Null, Failure::invalid_request(refused))
            }
            (None, Some(_)) => Incoming::Notification,
            (Some(Some(_)), None) if message.contains_key("result") || message.contains_key("error") => {
                Incoming::Reply
            }
            (id, None) => {
                let refused = Failure::invalid_request("Invalid request: missing field `method`");
                Incoming::Bad(id.flatten().unwrap_or(Id::Null), refused)
            }
        }
    }
}

#[derive(Serialize)]
struct Success<'a, T> {
    id: &'a Id,
    result: &'a T,
}

/// "error first".
#[derive(Serialize)]
struct Refusal<'a> {
    error: &'a Failure,
    id: &'a Id,
}

/// Appends a reply line.
pub(crate) fn append_reply<T: Serialize>(out: &mut Vec<u8>, id: &Id, outcome: &Result<T, Failure>) {
    // Serialisation to memory does not fail for these types.
    let _infallible = match outcome {
        Ok(result) => serde_json::to_writer(&mut *out, &Success { id, result }),
        Err(error) => serde_json::to_writer(&mut *out, &Refusal { error, id }),
    };
    out.push(b'\n');
}

/// Result of `write`, `resize` and `terminate`.
#[derive(Serialize)]
pub(crate) struct Empty {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> String {
        match Incoming::parse(line.as_bytes()) {
            Incoming::Bad(id, failure) => {
                let mut out = Vec::new();
                append_reply::<Empty>(&mut out, &id, &Err(failure));
                String::from_utf8(out).unwrap()
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_the_original_drops_in_silence_is_answered() {
        for (line, begin) in [
            ("{", r#"{"error":{"code":-32700,"message":"Parse error: "#),
            ("[]", r#"{"error":{"code":-32600,"message":"Invalid request: the message is a batch"#),
            ("7", r#"{"error":{"code":-32600,"message":"Invalid request: the message is not an object"#),
            (r#"{"id":null,"method":"m"}"#, r#"{"error":{"code":-32600,"message":"Invalid request: id must"#),
            (r#"{"id":1.5,"method":"m"}"#, r#"{"error":{"code":-32600,"message":"Invalid request: id must"#),
            (
                r#"{"id":99999999999999999999,"method":"m"}"#,
                r#"{"error":{"code":-32600,"message":"Invalid request: id must"#,
            ),
        ] {
            let got = reply(line);
            assert!(got.starts_with(begin) && got.ends_with("\"id\":null}\n"), "{line}: {got}");
        }
        assert!(reply(r#"{"id":7,"method":7}"#).ends_with("\"id\":7}\n"));
    }

    #[test]
    fn messages_are_classified_by_their_shape() {
        let request = Incoming::parse(br#"{"id":-3,"method":"m","params":{},"jsonrpc":"1.0","x":1}"#);
        assert!(matches!(request, Incoming::Request { id: Id::Number(-3), .. }), "{request:?}");
        assert!(matches!(Incoming::parse(br#"{"method":"m"}"#), Incoming::Notification));
        assert!(matches!(Incoming::parse(br#"{"id":1,"result":{}}"#), Incoming::Reply));
        assert!(matches!(Incoming::parse(br#"{"id":1,"error":{}}"#), Incoming::Reply));
    }
}
