//! Schemas of arguments and results, without what some clients stumble over: null, formats, line breaks.

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

pub(crate) fn of<T: JsonSchema + Any>() -> Arc<JsonObject> {
    let mut schema = schema_for_type::<T>().as_ref().clone();
    simplify(&mut schema);
    // About the type, which is no business of a client.
    schema.remove("title");
    schema.remove("description");
    if !schema.contains_key("properties") {
        schema.insert("properties".to_owned(), json!({}));
    }
    Arc::new(schema)
}

fn simplify(schema: &mut JsonObject) {
    // Not of JSON Schema, and validators warn about it.
    if schema.get("format").is_some_and(Value::is_string) {
        schema.remove("format");
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_mut_slice() {
            let only = only.take();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.retain(|one| one["type"] != "null");
        if let [Value::Object(only)] = any.as_mut_slice() {
            let only = std::mem::take(only);
            schema.remove("anyOf");
            schema.extend(only);
        }
    }
    for below in schema.values_mut() {
        match below {
            Value::Object(object) => simplify(object),
            Value::Array(all) => all.iter_mut().filter_map(Value::as_object_mut).for_each(simplify),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_missing_is_not_said_to_be_null() {
        let mut schema = json!({
            "description": "two\nlines", "default": null, "type": ["string", "null"],
            "properties": {
                "format": {"type": "integer", "format": "uint", "default": 1},
                "file": {"anyOf": [{"$ref": "#/$defs/File"}, {"type": "null"}]},
            },
        });
        simplify(schema.as_object_mut().unwrap());
        let expected = json!({
            "description": "two lines", "type": "string",
            "properties": {"format": {"type": "integer", "default": 1}, "file": {"$ref": "#/$defs/File"}},
        });
        assert_eq!(schema, expected);
    }
}
