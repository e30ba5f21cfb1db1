//! "Params presence and typing": absent, empty and mistyped params of every method.

use crate::contract::table::{Row, check};
use outpost_testkit::Relay;

const INVALID: &str = "-32602 Invalid params";
const NO_FILE: &str = r#"{"exists":false,"isDir":false,"size":0,"mode":""}"#;
const NO_PATH: &str = r#"{"valid":false,"isDir":false,"error":"Path does not exist"}"#;
const NO_REPO: &str = r#"{"isRepo":false,"repoSlug":"","defaultBranch":""}"#;
const SUCCESS: &str = r#"{"success":true}"#;
const NO_PROCESS: &str = r#"{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;

/// "An empty {} is accepted and runs the method's own validation."
const EMPTY: [(&str, &str); 15] = [
    ("files.list", "-32603 open : no such file or directory"),
    ("files.validate", NO_PATH),
    ("files.stat", NO_FILE),
    ("files.read", r#"{"content":"","exists":false}"#),
    ("files.extract_tar", "-32602 archivePath and destDir are required"),
    ("git.info", NO_REPO),
    ("git.status", r#"{"isRepo":false,"clean":false}"#),
    ("git.list_branches", r#"{"isRepo":false,"branches":[]}"#),
    ("git.worktree_create", "-32602 branchName is required"),
    ("git.worktree_remove", SUCCESS),
    ("process.spawn", "-32602 Process ID is required"),
    ("process.stdin", "-32602 Process not found"),
    ("process.kill", SUCCESS),
    ("process.killAndWait", "-32602 Process ID is required"),
    ("process.reattach", "-32602 Process ID is required"),
];

#[test]
fn absent_params_are_invalid_and_empty_ones_are_not() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (method, empty) in EMPTY {
        // `null` counts as an empty object. Unknown members are ignored.
        let accepted =
            ["{}", "null", "{ }", r#"{"unknown":1}"#, r#"{"":[],"x":{"id":"y","path":"/"},"param":null}"#];
        rows.extend(accepted.map(|params| (method, params, empty)));
        rows.extend(
            ["", "[]", r#"[{"path":"/"}]"#, "5", "\"x\"", "\"{}\"", "true", "false"]
                .map(|params| (method, params, INVALID)),
        );
    }
    check(&mut client, relay.dir(), &rows);
}

/// Params with mistyped members.
fn mistyped(method: &'static str, names: &[&str], wrong: &[&str]) -> Vec<(&'static str, String)> {
    let each =
        names.iter().flat_map(|name| wrong.iter().map(move |value| format!(r#"{{"{name}":{value}}}"#)));
    each.map(|params| (method, params)).collect()
}

const NO_STRING: [&str; 6] = ["123", "1.5", "true", "[]", "{}", "[\"x\"]"];
const NO_INTEGER: [&str; 10] =
    ["\"4\"", "1.5", "1.0", "1e3", "9223372036854775808", "-9223372036854775809", "true", "[]", "{}", "\"\""];
const NO_BOOL: [&str; 6] = ["\"true\"", "1", "0", "[]", "{}", "\"\""];

/// "a wrong field type … is also -32602 Invalid params; the daemon does not silently coerce or ignore".
#[test]
fn a_mistyped_member_is_invalid_also_in_a_method_that_ignores_it() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let mut rows = Vec::new();
    for method in ["files.list", "files.validate", "files.stat", "files.read"] {
        rows.extend(mistyped(method, &["path", "PATH"], &NO_STRING));
        rows.extend(mistyped(method, &["maxBytes", "maxbytes"], &NO_INTEGER));
    }
    rows.extend(mistyped("files.extract_tar", &["archivePath", "destDir"], &NO_STRING));
    for method in
        ["git.info", "git.status", "git.list_branches", "git.worktree_create", "git.worktree_remove"]
    {
        let names = ["path", "baseRepo", "branchName", "worktreePath", "sourceBranch"];
        rows.extend(mistyped(method, &names, &NO_STRING));
    }
    rows.extend(mistyped("process.spawn", &["id", "command", "cwd"], &NO_STRING));
    rows.extend(mistyped(
        "process.spawn",
        &["args"],
        &["\"x\"", "1", "true", "{}", "[1]", "[[]]", "[\"a\",1]"],
    ));
    rows.extend(mistyped(
        "process.spawn",
        &["env"],
        &["\"x\"", "1", "true", "[]", r#"{"A":1}"#, r#"{"A":true}"#, r#"{"A":["x"]}"#, r#"{"A":"x","B":{}}"#],
    ));
    rows.extend(mistyped("process.spawn", &["wantPid"], &NO_BOOL));
    rows.extend(mistyped("process.stdin", &["id", "data"], &NO_STRING));
    rows.extend(mistyped("process.stdin", &["offset"], &NO_INTEGER));
    rows.extend(mistyped("process.kill", &["id", "signal"], &NO_STRING));
    rows.extend(mistyped("process.killAndWait", &["id", "signal"], &NO_STRING));
    rows.extend(mistyped("process.killAndWait", &["timeoutMs"], &NO_INTEGER));
    rows.extend(mistyped("process.killAndWait", &["escalate"], &NO_BOOL));
    rows.extend(mistyped("process.reattach", &["id"], &NO_STRING));
    rows.extend(mistyped("process.reattach", &["fromSeq"], &NO_INTEGER));
    rows.extend(mistyped("process.reattach", &["wantPid"], &NO_BOOL));
    let rows: Vec<Row<'_>> =
        rows.iter().map(|(method, params)| (*method, params.as_str(), INVALID)).collect();
    check(&mut client, relay.dir(), &rows);
    check(
        &mut client,
        relay.dir(),
        &[
            // Checked before the method's own validation, at any position.
            ("files.stat", r#"{"path":"/","maxBytes":"{"}"#, INVALID),
            ("git.status", r#"{"path":"/","baseRepo":[1,2]}"#, INVALID),
            ("files.stat", r#"{"path":1,"path":"/"}"#, INVALID),
            ("files.extract_tar", r#"{"archivePath":"","destDir":5}"#, INVALID),
            ("process.spawn", r#"{"id":"","command":"","args":5}"#, INVALID),
            ("process.stdin", r#"{"id":"x","data":"!","offset":"0"}"#, INVALID),
            // These methods have params of their own: a member of another method is unknown here.
            (
                "files.extract_tar",
                r#"{"path":1,"maxBytes":"x"}"#,
                "-32602 archivePath and destDir are required",
            ),
            ("files.read", r#"{"archivePath":1,"destDir":2}"#, r#"{"content":"","exists":false}"#),
            (
                "process.kill",
                r#"{"offset":"x","command":1,"wantPid":1,"timeoutMs":"x","escalate":5}"#,
                SUCCESS,
            ),
            ("process.killAndWait", r#"{"id":"x","fromSeq":"x","env":5}"#, r#"{"found":false,"died":false}"#),
            (
                "process.reattach",
                r#"{"id":"x","data":5,"signal":1,"escalate":1,"timeoutMs":"x"}"#,
                NO_PROCESS,
            ),
            ("process.stdin", r#"{"id":"x","wantPid":1,"fromSeq":"x"}"#, "-32602 Process not found"),
            ("process.spawn", r#"{"offset":"x","signal":1,"data":5}"#, "-32602 Process ID is required"),
        ],
    );
}

#[test]
fn null_counts_as_absent_and_the_last_duplicate_wins() {
    let relay = Relay::start();
    let root = r#"{"valid":true,"isDir":true}"#;
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("files.validate", r#"{"path":null}"#, NO_PATH),
            ("files.validate", r#"{"path":"/","maxBytes":null}"#, root),
            ("files.validate", r#"{"path":"/nope","path":"/"}"#, root),
            ("files.validate", r#"{"path":"/","path":"/nope"}"#, NO_PATH),
            ("files.validate", r#"{"path":"/","path":null}"#, root),
            ("files.validate", r#"{"PATH":"/"}"#, root),
            ("files.validate", r#"{"Path":"/nope","pATH":"/"}"#, root),
            ("files.validate", r#"{"path":"/nope","PATH":"/"}"#, root),
            ("files.validate", r#"{"\u0070ath":"\u002f"}"#, root),
            ("files.validate", r#"{"path":"\/"}"#, root),
            ("files.validate", r#"{"path ":"/"}"#, NO_PATH),
            (
                "files.extract_tar",
                r#"{"archivePath":null,"destDir":"/x"}"#,
                "-32602 archivePath and destDir are required",
            ),
            (
                "git.info",
                r#"{"path":null,"baseRepo":null,"branchName":null,"worktreePath":null,"sourceBranch":null}"#,
                NO_REPO,
            ),
            ("git.worktree_create", r#"{"branchName":null}"#, "-32602 branchName is required"),
            ("git.worktree_create", r#"{"branchName":""}"#, "-32602 branchName is required"),
            ("process.spawn", r#"{"id":null,"command":"x"}"#, "-32602 Process ID is required"),
            ("process.spawn", r#"{"id":"x","command":null}"#, "-32602 Command is required"),
            ("process.stdin", r#"{"id":"x","data":null,"offset":null}"#, "-32602 Process not found"),
            ("process.kill", r#"{"id":null,"signal":null}"#, SUCCESS),
            ("process.killAndWait", r#"{"id":null}"#, "-32602 Process ID is required"),
            (
                "process.killAndWait",
                r#"{"id":"x","signal":null,"timeoutMs":null,"escalate":null}"#,
                r#"{"found":false,"died":false}"#,
            ),
            ("process.reattach", r#"{"id":"x","fromSeq":null,"wantPid":null}"#, NO_PROCESS),
            ("process.reattach", r#"{"id":null}"#, "-32602 Process ID is required"),
        ],
    );
}
