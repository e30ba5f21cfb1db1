//! "wrong/missing params: -32600 `Invalid request: …`": the texts, which come before every other check.

use crate::table::{danger, server, with};
use outpost_testkit::AppServer;
use serde_json::{Value, json};

/// A method, the text of its params, and what stands behind `Invalid request: `.
fn check_texts(server: &mut AppServer, rows: &[(&str, String, &str)]) {
    let mut wrong = String::new();
    for (method, params, text) in rows {
        let params = if params.is_empty() { String::new() } else { format!(",\"params\":{params}") };
        server.send(format!("{{\"id\":1,\"method\":\"{method}\"{params}}}\n"));
        let expected = crate::table::error("1", -32600, &format!("Invalid request: {text}"));
        let got = server.reply_to("1");
        if got != expected {
            wrong += &format!("\n{method} {params}\n  expected {expected}\n  got      {got}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// One property over params that are right.
fn check_properties(rows: Vec<(&str, Value, &str)>) {
    let rows: Vec<(&str, String, &str)> = rows
        .into_iter()
        .map(|(name, value, text)| {
            ("command/exec", with(danger(&["/bin/true"]), json!({name: value})).to_string(), text)
        })
        .collect();
    check_texts(&mut server(), &rows);
}

#[test]
fn params_as_a_whole() {
    let rows: Vec<(&str, String, &str)> = [
        ("command/exec", "", "missing field `params`"),
        ("command/exec", "null", "missing field `params`"),
        ("command/exec", "{}", "missing field `command`"),
        ("command/exec", "5", "invalid type: integer `5`, expected struct CommandExecParams"),
        ("command/exec", "-5", "invalid type: integer `-5`, expected struct CommandExecParams"),
        ("command/exec", "1.5", "invalid type: floating point `1.5`, expected struct CommandExecParams"),
        ("command/exec", "true", "invalid type: boolean `true`, expected struct CommandExecParams"),
        ("command/exec", r#""x""#, r#"invalid type: string "x", expected struct CommandExecParams"#),
        ("command/exec/write", "", "missing field `params`"),
        ("command/exec/write", "{}", "missing field `processId`"),
        ("command/exec/write", r#"{"processId":null}"#, "invalid type: null, expected a string"),
        (
            "command/exec/write",
            r#"{"processId":"x","closeStdin":null}"#,
            "invalid type: null, expected a boolean",
        ),
        (
            "command/exec/write",
            r#"{"processId":"x","deltaBase64":5}"#,
            "invalid type: integer `5`, expected a string",
        ),
        ("command/exec/resize", "", "missing field `params`"),
        ("command/exec/resize", r#"{"size":{"rows":1,"cols":1}}"#, "missing field `processId`"),
        ("command/exec/resize", r#"{"processId":"x"}"#, "missing field `size`"),
        ("command/exec/resize", r#"{"processId":"x","size":{"rows":1}}"#, "missing field `cols`"),
        ("command/exec/resize", r#"{"processId":"x","size":{"cols":1}}"#, "missing field `rows`"),
        (
            "command/exec/resize",
            r#"{"processId":"x","size":null}"#,
            "invalid type: null, expected struct CommandExecTerminalSize",
        ),
        (
            "command/exec/resize",
            r#"{"processId":"x","size":{"rows":-1,"cols":1}}"#,
            "invalid value: integer `-1`, expected u16",
        ),
        (
            "command/exec/resize",
            r#"{"processId":"x","size":{"rows":1,"cols":65536}}"#,
            "invalid value: integer `65536`, expected u16",
        ),
        ("command/exec/terminate", "", "missing field `params`"),
        ("command/exec/terminate", "{}", "missing field `processId`"),
        ("command/exec/terminate", r#"{"processId":null}"#, "invalid type: null, expected a string"),
        ("command/exec/terminate", r#"{"processId":5}"#, "invalid type: integer `5`, expected a string"),
        // The first in the order they were sent; a member that is missing comes last.
        ("command/exec", r#"{"tty":5,"command":5}"#, "invalid type: integer `5`, expected a boolean"),
        ("command/exec", r#"{"command":5,"tty":5}"#, "invalid type: integer `5`, expected a sequence"),
        (
            "command/exec",
            r#"{"zzz":1,"env":5,"tty":5,"command":["true"]}"#,
            "invalid type: integer `5`, expected a map",
        ),
        ("command/exec", r#"{"tty":5}"#, "invalid type: integer `5`, expected a boolean"),
        // The last of two.
        (
            "command/exec",
            r#"{"command":["true"],"command":5}"#,
            "invalid type: integer `5`, expected a sequence",
        ),
    ]
    .map(|(method, params, text)| (method, params.to_owned(), text))
    .into();
    check_texts(&mut server(), &rows);
}

#[test]
fn plain_members() {
    check_properties(vec![
        ("command", json!("ls"), r#"invalid type: string "ls", expected a sequence"#),
        ("command", json!(null), "invalid type: null, expected a sequence"),
        ("command", json!({}), "invalid type: map, expected a sequence"),
        ("command", json!(["a", 1]), "invalid type: integer `1`, expected a string"),
        ("command", json!([null]), "invalid type: null, expected a string"),
        ("env", json!({"A": 1}), "invalid type: integer `1`, expected a string"),
        ("env", json!({"A": true}), "invalid type: boolean `true`, expected a string"),
        ("env", json!([]), "invalid type: sequence, expected a map"),
        ("env", json!("x"), r#"invalid type: string "x", expected a map"#),
        ("outputBytesCap", json!(-1), "invalid value: integer `-1`, expected usize"),
        ("outputBytesCap", json!(1.5), "invalid type: floating point `1.5`, expected usize"),
        ("outputBytesCap", json!("1"), r#"invalid type: string "1", expected usize"#),
        ("outputBytesCap", json!(true), "invalid type: boolean `true`, expected usize"),
        ("timeoutMs", json!(1.0), "invalid type: floating point `1.0`, expected i64"),
        (
            "timeoutMs",
            json!(9_223_372_036_854_775_808_u64),
            "invalid value: integer `9223372036854775808`, expected i64",
        ),
        ("timeoutMs", json!("1"), r#"invalid type: string "1", expected i64"#),
        ("tty", json!(null), "invalid type: null, expected a boolean"),
        ("tty", json!(1), "invalid type: integer `1`, expected a boolean"),
        ("streamStdin", json!("x"), r#"invalid type: string "x", expected a boolean"#),
        ("streamStdoutStderr", json!(null), "invalid type: null, expected a boolean"),
        ("disableTimeout", json!(null), "invalid type: null, expected a boolean"),
        ("disableOutputCap", json!(0), "invalid type: integer `0`, expected a boolean"),
        ("size", json!({"rows": 70000, "cols": 1}), "invalid value: integer `70000`, expected u16"),
        ("size", json!({}), "missing field `rows`"),
        ("size", json!({"rows": 1}), "missing field `cols`"),
        ("size", json!(5), "invalid type: integer `5`, expected struct CommandExecTerminalSize"),
        ("size", json!({"rows": null, "cols": 1}), "invalid type: null, expected u16"),
        ("size", json!({"rows": 1.5, "cols": 1}), "invalid type: floating point `1.5`, expected u16"),
        ("processId", json!(5), "invalid type: integer `5`, expected a string"),
        ("cwd", json!(5), "invalid type: integer `5`, expected path string"),
        ("cwd", json!([]), "invalid type: sequence, expected path string"),
    ]);
}

#[test]
fn policies() {
    let read = |access: Value| json!({"type": "readOnly", "access": access});
    let roots = |roots: Value| json!({"type": "workspaceWrite", "writableRoots": roots});
    let no_base = "AbsolutePathBuf deserialized without a base path";
    let rows = vec![
        (
            json!({"type": "nope"}),
            "unknown variant `nope`, expected one of `dangerFullAccess`, `readOnly`, `externalSandbox`, `workspaceWrite`",
        ),
        (json!({}), "missing field `type`"),
        (
            json!("readOnly"),
            r#"invalid type: string "readOnly", expected internally tagged enum SandboxPolicy"#,
        ),
        (json!(false), "invalid type: boolean `false`, expected internally tagged enum SandboxPolicy"),
        (read(json!({"type": "nope"})), "unknown variant `nope`, expected `restricted` or `fullAccess`"),
        (read(json!({})), "missing field `type`"),
        (read(json!(null)), "invalid type: null, expected internally tagged enum ReadOnlyAccess"),
        (json!({"type": "readOnly", "networkAccess": null}), "invalid type: null, expected a boolean"),
        (
            json!({"type": "readOnly", "networkAccess": "enabled"}),
            r#"invalid type: string "enabled", expected a boolean"#,
        ),
        (read(json!({"type": "restricted", "readableRoots": ["rel"]})), no_base),
        (read(json!({"type": "restricted", "readableRoots": ["~/x"]})), no_base),
        (
            read(json!({"type": "restricted", "readableRoots": null})),
            "invalid type: null, expected a sequence",
        ),
        (
            read(json!({"type": "restricted", "includePlatformDefaults": null})),
            "invalid type: null, expected a boolean",
        ),
        (
            json!({"type": "externalSandbox", "networkAccess": "nope"}),
            "unknown variant `nope`, expected `restricted` or `enabled`",
        ),
        (
            json!({"type": "externalSandbox", "networkAccess": true}),
            "invalid type: boolean `true`, expected string or map",
        ),
        (
            json!({"type": "externalSandbox", "networkAccess": null}),
            "invalid type: null, expected string or map",
        ),
        (roots(json!(["rel"])), no_base),
        (roots(json!(["~"])), no_base),
        (roots(json!([""])), no_base),
        (roots(json!([5])), "invalid type: integer `5`, expected path string"),
        (roots(json!("/")), r#"invalid type: string "/", expected a sequence"#),
        (
            json!({"type": "workspaceWrite", "excludeSlashTmp": 1}),
            "invalid type: integer `1`, expected a boolean",
        ),
    ];
    check_properties(rows.into_iter().map(|(value, text)| ("sandboxPolicy", value, text)).collect());
}

#[test]
fn profiles() {
    let entry = |entry: Value| json!({"fileSystem": {"entries": [entry]}});
    let path = |path: Value| json!({"fileSystem": {"entries": [{"access": "read", "path": path}]}});
    let special = |value: Value| path(json!({"type": "special", "value": value}));
    let rows = vec![
        (json!("x"), r#"invalid type: string "x", expected struct PermissionProfile"#),
        (json!({"fileSystem": {}}), "missing field `entries`"),
        (
            json!({"fileSystem": {"entries": [], "globScanMaxDepth": 0}}),
            "invalid value: integer `0`, expected a nonzero usize",
        ),
        (
            json!({"fileSystem": {"entries": [], "globScanMaxDepth": -1}}),
            "invalid value: integer `-1`, expected a nonzero usize",
        ),
        (json!({"network": {"enabled": 1}}), "invalid type: integer `1`, expected a boolean"),
        (
            json!({"network": 5}),
            "invalid type: integer `5`, expected struct PermissionProfileNetworkPermissions",
        ),
        (entry(json!({})), "missing field `path`"),
        (entry(json!({"path": {"type": "path", "path": "/"}})), "missing field `access`"),
        (
            entry(json!({"access": "exec", "path": {"type": "path", "path": "/"}})),
            "unknown variant `exec`, expected one of `read`, `write`, `none`",
        ),
        (
            path(json!({"type": "nope"})),
            "unknown variant `nope`, expected one of `path`, `glob_pattern`, `special`",
        ),
        (path(json!({"type": "path"})), "missing field `path`"),
        (path(json!({"type": "path", "path": "rel"})), "AbsolutePathBuf deserialized without a base path"),
        (path(json!({"type": "glob_pattern"})), "missing field `pattern`"),
        (path(json!({"type": "glob_pattern", "pattern": 5})), "invalid type: integer `5`, expected a string"),
        (
            special(json!({"kind": "nope"})),
            "unknown variant `nope`, expected one of `root`, `minimal`, `current_working_directory`, \
             `project_roots`, `tmpdir`, `slash_tmp`, `unknown`",
        ),
        (special(json!({})), "missing field `kind`"),
        (
            special(json!("root")),
            r#"invalid type: string "root", expected internally tagged enum FileSystemSpecialPath"#,
        ),
        (special(json!({"kind": "unknown"})), "missing field `path`"),
        (
            special(json!({"kind": "project_roots", "subpath": 5})),
            "invalid type: integer `5`, expected path string",
        ),
    ];
    check_properties(rows.into_iter().map(|(value, text)| ("permissionProfile", value, text)).collect());
}
