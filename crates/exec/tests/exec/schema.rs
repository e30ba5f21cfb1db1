//! The schema of the contract drives these: what it allows is never a parse error, what it forbids always is one.
//!
//! Every document asks for an empty command, which is refused right after parsing: nothing is started.

mod generate;

use crate::table::server;
use generate::{Generator, UNKNOWN, mutations, seeds};
use outpost_testkit::AppServer;
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("data/params.schema.json");

/// Requests in flight: the original answers `Server overloaded` to more than its queues hold.
const BATCH: usize = 60;

/// A place in a document and what is there.
type Place<'a> = (&'a str, &'a Value);

/// Whether any value in a document matches, except values that the server ignores.
fn any(document: &Value, matches: &dyn Fn(Place<'_>) -> bool) -> bool {
    fn walk(name: &str, value: &Value, matches: &dyn Fn(Place<'_>) -> bool) -> bool {
        matches((name, value))
            || match value {
                Value::Object(members) => members
                    .iter()
                    .filter(|(name, _)| *name != UNKNOWN)
                    .any(|(name, value)| walk(name, value, matches)),
                Value::Array(items) => items.iter().any(|item| walk(name, item, matches)),
                _ => false,
            }
    }
    walk("", document, matches)
}

fn is_number_beyond(place: Place<'_>, names: &[&str], max: f64) -> bool {
    names.contains(&place.0) && place.1.as_f64().is_some_and(|number| number > max)
}

type Exception = (&'static str, fn(&Value) -> bool);

/// Where the original is stricter than its own schema: refused although it is valid.
const STRICTER: [Exception; 5] = [
    ("an integer that is written as a fraction", |document| any(document, &|(_, value)| value.is_f64())),
    ("rows and cols have 16 bits", |document| {
        any(document, &|place| is_number_beyond(place, &["rows", "cols"], 65535.0))
    }),
    ("timeoutMs has 64 bits with a sign", |document| {
        any(document, &|(name, value)| name == "timeoutMs" && value.is_u64() && !value.is_i64())
    }),
    ("a root that is not absolute", |document| {
        any(document, &|(name, value)| {
            ["writableRoots", "readableRoots"].contains(&name)
                && value.as_str().is_some_and(|path| !path.starts_with('/'))
        })
    }),
    ("an entry whose path is not absolute", |document| {
        any(document, &|(_, value)| {
            value["type"] == "path" && value["path"].as_str().is_some_and(|path| !path.starts_with('/'))
        })
    }),
];

/// Where it is laxer: taken, or refused for another reason, although it is invalid. We may do either.
const LAXER: [Exception; 2] = [
    ("an array in place of an object is read by position", |document| {
        let objects =
            ["", "size", "sandboxPolicy", "access", "readOnlyAccess", "permissionProfile", "fileSystem"];
        let more = ["network", "path", "value", "entries"];
        document.is_array()
            || any(document, &|(name, value)| {
                (objects.contains(&name) || more.contains(&name))
                    && (value.is_array() && name != "entries"
                        || value.as_array().is_some_and(|items| items.iter().any(Value::is_array)))
            })
    }),
    ("a tag may be the number of its variant", |document| {
        any(document, &|(name, value)| ["type", "kind"].contains(&name) && value.is_u64())
    }),
];

/// Sends all documents and compares the replies with the schema's verdict.
fn check(server: &mut AppServer, documents: &[Value]) -> (usize, usize) {
    let validator = jsonschema::draft7::new(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
    let (mut wrong, mut valid) = (String::new(), 0);
    for batch in documents.chunks(BATCH) {
        let ids: Vec<u64> = batch.iter().map(|document| server.request("command/exec", document)).collect();
        for (id, document) in ids.into_iter().zip(batch) {
            let reply: Value = serde_json::from_str(&server.reply(id)).unwrap();
            let error = &reply["error"];
            let text = error["message"].as_str().unwrap_or_default();
            let refused = error["code"] == -32600 && text.starts_with("Invalid request: ");
            let is_valid = validator.is_valid(document);
            valid += usize::from(is_valid);
            let expected = match is_valid {
                true => STRICTER.iter().any(|(_, applies)| applies(document)),
                false if LAXER.iter().any(|(_, applies)| applies(document)) => refused,
                false => true,
            };
            if refused != expected {
                wrong += &format!("\nvalid: {is_valid}  {document}\n    {reply}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    (valid, documents.len() - valid)
}

/// The contract is the original's own file; what it allows in the simplest case runs.
#[test]
fn the_schema_can_be_used() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::draft7::new(&schema).unwrap();
    assert!(
        validator.is_valid(&json!({"command": ["true"]})) && !validator.is_valid(&json!({"command": "true"}))
    );
}

#[test]
fn every_member_with_a_value_of_every_type() {
    let documents = mutations(&seeds());
    let (valid, invalid) = check(&mut server(), &documents);
    assert!(valid > 200 && invalid > 1000, "{valid} and {invalid}");
}

#[test]
fn random_documents_that_the_schema_allows() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let mut generator = Generator::new(&schema, 20_261_116);
    let documents: Vec<Value> = (0..600).map(|_| generator.document()).collect();
    let (valid, invalid) = check(&mut server(), &documents);
    assert!(invalid == 0 && valid == 600, "the generator makes {invalid} documents that are not allowed");
}

#[test]
fn random_documents_with_one_thing_changed() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let mut generator = Generator::new(&schema, 4);
    let documents: Vec<Value> = (0..1500).map(|_| generator.changed_document()).collect();
    check(&mut server(), &documents);
}
