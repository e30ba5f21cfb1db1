//! Documents for `command/exec`: from a list, with one thing changed, and at random from the schema.

use serde_json::{Map, Value, json};

/// A member that the schema does not know.
pub(super) const UNKNOWN: &str = "unknown member";

/// Every member, every arm of every choice, at least once.
pub(super) fn seeds() -> Vec<Value> {
    let access = [
        json!({"type": "fullAccess"}),
        json!({"type": "restricted"}),
        json!({"type": "restricted", "includePlatformDefaults": false, "readableRoots": ["/usr", "/a b"]}),
    ];
    let paths = [
        json!({"type": "path", "path": "/x"}),
        json!({"type": "glob_pattern", "pattern": "*.key"}),
        json!({"type": "special", "value": {"kind": "root"}}),
        json!({"type": "special", "value": {"kind": "minimal"}}),
        json!({"type": "special", "value": {"kind": "current_working_directory"}}),
        json!({"type": "special", "value": {"kind": "project_roots"}}),
        json!({"type": "special", "value": {"kind": "project_roots", "subpath": "a"}}),
        json!({"type": "special", "value": {"kind": "project_roots", "subpath": null}}),
        json!({"type": "special", "value": {"kind": "tmpdir"}}),
        json!({"type": "special", "value": {"kind": "slash_tmp"}}),
        json!({"type": "special", "value": {"kind": "unknown", "path": "x", "subpath": "y"}}),
    ];
    let mut seeds = vec![
        json!({"command": []}),
        json!({
            "command": [], "cwd": "/", "disableOutputCap": false, "disableTimeout": false, "env": {"A": "b", "C": null},
            "outputBytesCap": 1, "processId": "p", "size": {"rows": 1, "cols": 1}, "streamStdin": true,
            "streamStdoutStderr": true, "timeoutMs": 1, "tty": true
        }),
        json!({"command": [], "sandboxPolicy": {"type": "dangerFullAccess"}}),
        json!({"command": [], "sandboxPolicy": {"type": "externalSandbox"}}),
        json!({"command": [], "sandboxPolicy": {"type": "externalSandbox", "networkAccess": "enabled"}}),
        json!({"command": [], "permissionProfile": {}}),
        json!({"command": [], "permissionProfile": {"network": {}, "fileSystem": null}}),
        json!({"command": [], "permissionProfile": {"network": {"enabled": true}, "fileSystem": {"entries": []}}}),
    ];
    for access in access {
        seeds.push(json!({"command": [], "sandboxPolicy": {"type": "readOnly", "access": access, "networkAccess": true}}));
        seeds.push(json!({"command": [], "sandboxPolicy": {
            "type": "workspaceWrite", "readOnlyAccess": access, "networkAccess": true, "excludeSlashTmp": true,
            "excludeTmpdirEnvVar": true, "writableRoots": ["/w"]
        }}));
    }
    for (path, mode) in paths.iter().zip(["read", "write", "none"].into_iter().cycle()) {
        let entries = json!([{"access": mode, "path": path}]);
        seeds.push(json!({"command": [], "permissionProfile": {"fileSystem": {"entries": entries, "globScanMaxDepth": 1}}}));
    }
    seeds
}

/// One of every type, and the borders of numbers.
fn others() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(1.0),
        json!(1.5),
        json!(65535),
        json!(65536),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(""),
        json!("text"),
        json!("/"),
        json!([]),
        json!([null]),
        json!(["a"]),
        json!({}),
        json!({"a": 1}),
    ]
}

/// All places in a document, as pointers.
fn places(document: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match document {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), found))
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| places(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

fn without(document: &Value, place: &str) -> Option<Value> {
    let (parent, name) = place.rsplit_once('/')?;
    let mut changed = document.clone();
    changed.pointer_mut(parent)?.as_object_mut()?.remove(name)?;
    Some(changed)
}

fn replaced(document: &Value, place: &str, value: &Value) -> Value {
    let mut changed = document.clone();
    *changed.pointer_mut(place).expect("a place in it") = value.clone();
    changed
}

/// Each document, then each with one value replaced or one member taken out; none twice.
pub(super) fn mutations(documents: &[Value]) -> Vec<Value> {
    let mut made: Vec<Value> = documents.to_vec();
    for document in documents {
        let mut found = Vec::new();
        places(document, "", &mut found);
        for place in found.iter().filter(|place| !place.is_empty()) {
            made.extend(others().iter().map(|value| replaced(document, place, value)));
            made.extend(without(document, place));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    made.retain(|document| seen.insert(document.to_string()));
    made
}

/// Draws documents from the schema; the same seed draws the same ones.
pub(super) struct Generator<'a> {
    schema: &'a Value,
    state: u64,
}

impl<'a> Generator<'a> {
    pub(super) fn new(schema: &'a Value, seed: u64) -> Generator<'a> {
        Generator { schema, state: seed }
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) as usize) % end.max(1)
    }

    fn pick<'v, T>(&mut self, from: &'v [T]) -> &'v T {
        &from[self.below(from.len())]
    }

    pub(super) fn document(&mut self) -> Value {
        let mut document = self.draw(self.schema);
        document["command"] = json!([]);
        document
    }

    pub(super) fn changed_document(&mut self) -> Value {
        let document = self.document();
        let mut found = Vec::new();
        places(&document, "", &mut found);
        found.retain(|place| !place.is_empty());
        let place = self.pick(&found).clone();
        let others = others();
        match self.below(5) {
            0 => without(&document, &place).unwrap_or(document),
            _ => replaced(&document, &place, self.pick(&others)),
        }
    }

    fn draw(&mut self, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.trim_start_matches("#/definitions/");
            if name == "AbsolutePathBuf" {
                return json!(self.pick(&["/", "/usr", "/a b/é", "/x/../y", "//z", "/no/such"]));
            }
            let schema = &self.schema["definitions"][name];
            return self.draw(schema);
        }
        for choice in ["oneOf", "anyOf", "allOf"] {
            if let Some(arms) = schema[choice].as_array() {
                let arm = self.pick(arms);
                return self.draw(arm);
            }
        }
        if let Some(values) = schema["enum"].as_array() {
            return self.pick(values).clone();
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            kind => kind.as_str().into_iter().collect(),
        };
        match *self.pick(&kinds) {
            "null" => Value::Null,
            "boolean" => json!(self.below(2) == 1),
            "integer" => self.integer(schema),
            "string" => {
                json!(self.pick(&["", "p", "a b", "é\u{1f600}", "\0", "*.{a,b}", "/x", "~", "..", "\"\\\n"]))
            }
            "array" => (0..self.below(4)).map(|_| self.draw(&schema["items"])).collect(),
            _ => self.object(schema),
        }
    }

    fn integer(&mut self, schema: &Value) -> Value {
        match schema["format"].as_str() {
            Some("uint16") => json!(self.pick(&[0, 1, 24, 65535])),
            Some("int64") => json!(self.pick(&[0, 1, -1, 1000, i64::MAX, i64::MIN])),
            _ => json!(self.pick(&[1, 2, 1_048_576, u64::MAX])),
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        let mut members = Map::new();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.below(3) == 0 {
                members.insert(name.clone(), self.draw(property));
            }
        }
        if schema["additionalProperties"].is_object() {
            for _ in 0..self.below(3) {
                let name = self.pick(&["A", "PATH", "", "x=y", "é"]).to_string();
                members.insert(name, self.draw(&schema["additionalProperties"]));
            }
        } else if self.below(8) == 0 {
            // Unknown members are no fault anywhere.
            members.insert(UNKNOWN.into(), json!([1, {"x": null}]));
        }
        Value::Object(members)
    }
}
