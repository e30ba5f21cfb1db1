//! Requests and responses of the contract: JSON-RPC without the version member.

pub(crate) use outpost_wire::jsonrpc::Failure;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The code of all errors of methods.
const APPLICATION_ERROR: i32 = -32000;

/// One request. The contract echoes "any JSON-RPC id type", so the id is kept as raw text.
#[derive(Debug, Deserialize)]
pub(crate) struct Request<'a> {
    #[serde(default)]
    pub(crate) method: Option<String>,
    #[serde(default)]
    pub(crate) params: Option<Value>,
    #[serde(borrow, default)]
    pub(crate) id: Option<&'a RawValue>,
}

/// A method's error.
pub(crate) fn application(message: impl Into<String>) -> Failure {
    Failure::new(APPLICATION_ERROR, message)
}

pub(crate) fn no_session(id: &str) -> Failure {
    application(format!("Session not found: {id}"))
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Failure {
        application(error.to_string())
    }
}

/// The params of a request.
pub(crate) struct Params<'a> {
    members: Option<&'a Map<String, Value>>,
}

impl<'a> Params<'a> {
    pub(crate) fn of(params: Option<&'a Value>) -> Params<'a> {
        Params { members: params.and_then(Value::as_object) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.members?.get(name)
    }

    /// Whether the member is present, with any value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    /// A required string. `names` lists all required members of the method, for the error text.
    pub(crate) fn required(&self, name: &str, names: &[&str]) -> Result<&'a str, Failure> {
        match (self.members, self.text(name)) {
            (_, Some(text)) => Ok(text),
            (None, None) => Err(Failure::invalid_params("Missing params")),
            (Some(_), None) => Err(missing(names)),
        }
    }
}

pub(crate) fn missing(names: &[&str]) -> Failure {
    let plural = if names.len() == 1 { "" } else { "s" };
    Failure::invalid_params(format!("Missing required param{plural}: {}", names.join(", ")))
}

/// The JSON text of a response.
pub(crate) fn answer(
    outcome: Result<Value, Failure>,
    id: Option<&RawValue>,
    extra: &[(&str, Value)],
) -> Vec<u8> {
    let mut answer = Map::new();
    match outcome {
        Ok(result) => answer.insert("result".into(), result),
        Err(failure) => answer.insert("error".into(), json!(failure)),
    };
    answer.extend(extra.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let mut text = Value::Object(answer).to_string().into_bytes();
    append_id(&mut text, id);
    text
}

/// Adds the request's id to the end of an object, as raw text. An absent or null id is not echoed.
pub(crate) fn append_id(text: &mut Vec<u8>, id: Option<&RawValue>) {
    let Some(id) = id.filter(|id| id.get() != "null") else { return };
    text.pop();
    text.extend_from_slice(b",\"id\":");
    text.extend_from_slice(id.get().as_bytes());
    text.push(b'}');
}

/// Whether JSON-RPC allows the id: a string, a number, or null.
pub(crate) fn is_id(id: &RawValue) -> bool {
    id.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
        || id.get() == "null"
}
