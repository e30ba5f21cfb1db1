//! Strict parsing of a request line. Error responses carry the request's id if the line has one.

use crate::wire::{Request, Response};
use serde::Deserialize;
use serde_json::Value;

/// The request, or the error response.
pub(crate) fn request(line: &[u8]) -> Result<Request, Box<Response>> {
    // serde's derived Deserialize also accepts an array of the field values in order.
    let is_array = line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        return Err(Box::new(Response::error("", "invalid JSON: a request is an object, not an array")));
    }
    let mut from = serde_json::Deserializer::from_slice(line);
    let parsed = Request::deserialize(&mut from).and_then(|request| from.end().map(|()| request));
    parsed.map_err(|error| Box::new(Response::error(&id_of(line), format!("invalid JSON: {error}"))))
}

/// The `id` of a line that is a JSON object but not a valid request. Otherwise empty.
fn id_of(line: &[u8]) -> String {
    match serde_json::from_slice(line) {
        Ok(Value::Object(mut object)) => match object.remove("id") {
            Some(Value::String(id)) => id,
            _ => String::new(),
        },
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (String, String) {
        let answer = request(line.as_bytes()).unwrap_err();
        (answer.id, answer.message.unwrap_or_default())
    }

    #[test]
    fn omitted_fields_get_the_contracts_defaults() {
        let request = request(br#"{"pipeline":[["true"]]}"#).unwrap();
        assert!(request.privileged && !request.forward_agent);
        assert_eq!((request.session.as_str(), request.time.as_str()), ("unknown", ""));
        assert_eq!(request.id.len(), 36, "a fresh id");
    }

    #[test]
    fn an_error_carries_the_id_if_the_line_has_one() {
        assert_eq!(refused(r#"{"id":"a","pipeline":7}"#).0, "a");
        assert_eq!(refused(r#"{"id":"a","reason":null}"#).0, "a");
        assert_eq!(refused(r#"{"id":"a","action":"sing"}"#).0, "a");
        assert!(refused(r#"{"id":"a","action":"sing"}"#).1.starts_with("invalid JSON: unknown variant"));
        assert_eq!(refused(r#"{"id":"a"#).0, "");
        assert_eq!(refused(r#"{"id":7}"#).0, "");
    }

    #[test]
    fn duplicate_keys_arrays_and_trailing_characters_are_refused() {
        assert!(
            refused(r#"{"id":"a","pipeline":[["true"]],"pipeline":[["id"]]}"#).1.contains("duplicate field")
        );
        assert!(refused(r#"["a","h","s","t",[["true"]]]"#).1.starts_with("invalid JSON:"));
        assert!(refused(r#"{"id":"a"} {"id":"b"}"#).1.starts_with("invalid JSON:"));
    }
}
