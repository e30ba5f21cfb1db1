//! JSON schemas of tool arguments and results, without keywords that some clients reject: null, format, line breaks.

use rmcp::handler::server::tool::schema_for_type;
use rmcp::model::JsonObject;
use rmcp::schemars::JsonSchema;
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

pub(crate) fn of<T: JsonSchema + Any>() -> Arc<JsonObject> {
    let mut schema = schema_for_type::<T>().as_ref().clone();
    simplify(&mut schema);
    // They describe the Rust type.
    schema.remove("title");
    schema.remove("description");
    if !schema.contains_key("properties") {
        schema.insert("properties".to_owned(), json!({}));
    }
    Arc::new(schema)
}

fn simplify(schema: &mut JsonObject) {
    // schemars writes formats such as `uint`, which JSON Schema does not define. Validators warn about them.
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
    fn optional_properties_are_not_nullable() {
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
