//! "Validation, in this order (first hit wins)": each step with its text, and each pair of steps in their order.

use crate::table::{check, check_exec, danger, fits, runs_on_original, server, sh, with};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

const OUTSIDE: &str = "-32600 invalid permission profile: permissions profile requests filesystem writes outside the \
     workspace root, which is not supported until the runtime enforces FileSystemSandboxPolicy directly";

/// Each fault by itself in the order in which they are looked for, and the answer to it. Faults that exclude each other
/// name the same member.
fn faults() -> Vec<(Value, &'static str)> {
    let writes =
        json!({"fileSystem": {"entries": [{"access": "write", "path": {"type": "path", "path": "/opt"}}]}});
    vec![
        (json!({"timeoutMs": "x"}), "-32600 Invalid request: invalid type: string \"x\", expected i64"),
        (json!({"command": []}), "-32600 command must not be empty"),
        (
            json!({"permissionProfile": {}, "sandboxPolicy": {"type": "dangerFullAccess"}}),
            "-32600 `permissionProfile` cannot be combined with `sandboxPolicy`",
        ),
        (
            json!({"size": {"rows": 1, "cols": 1}, "tty": false}),
            "-32602 command/exec size requires tty: true",
        ),
        (
            json!({"outputBytesCap": 1, "disableOutputCap": true}),
            "-32602 command/exec cannot set both outputBytesCap and disableOutputCap",
        ),
        (
            json!({"timeoutMs": 1, "disableTimeout": true}),
            "-32602 command/exec cannot set both timeoutMs and disableTimeout",
        ),
        (
            json!({"timeoutMs": -1, "disableTimeout": false}),
            "-32602 command/exec timeoutMs must be non-negative, got -1",
        ),
        (json!({"permissionProfile": writes, "sandboxPolicy": null}), OUTSIDE),
        (
            json!({"size": {"rows": 0, "cols": 1}, "tty": true}),
            "-32602 command/exec size rows and cols must be greater than 0",
        ),
        (
            json!({"streamStdin": true, "processId": null}),
            "-32600 command/exec tty or streaming requires a client-supplied processId",
        ),
        (json!({"processId": "active"}), r#"-32600 duplicate active command/exec process id: "active""#),
        (
            json!({"command": ["/no/such/program"]}),
            "-32603 failed to spawn command: No such file or directory (os error 2)",
        ),
    ]
}

#[test]
fn of_two_faults_the_one_checked_first_is_reported() {
    let mut server = server();
    let params = with(
        sh("echo up; exec sleep 1000"),
        json!({"processId": "active", "disableTimeout": true, "streamStdoutStderr": true}),
    );
    server.request("command/exec", &params);
    server.wait_output("active", "up");
    let faults = faults();
    let mut wrong = String::new();
    for (first, (fault, expected)) in faults.iter().enumerate() {
        for (later, _) in faults.iter().skip(first) {
            // The earlier one last, so that a member that both set is as it has it.
            let mut params = with(with(danger(&["/bin/true"]), later.clone()), fault.clone());
            if params["permissionProfile"] != Value::Null && !expected.contains("cannot be combined") {
                params["sandboxPolicy"] = Value::Null;
            }
            // A value that is no longer the later fault is no fault at all; the order is what counts.
            let id = server.request("command/exec", &params);
            let line = server.reply(id);
            if !fits(&line, &id.to_string(), expected) {
                wrong += &format!("\n{params}\n  expected {expected}\n  got      {line}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn other_values_of_the_same_faults() {
    let mut server = server();
    let run = |more: Value| with(danger(&["/bin/true"]), more);
    let id_needed = "-32600 command/exec tty or streaming requires a client-supplied processId";
    let too_small = "-32602 command/exec size rows and cols must be greater than 0";
    check_exec(
        &mut server,
        vec![
            (
                run(json!({"timeoutMs": i64::MIN})),
                "-32602 command/exec timeoutMs must be non-negative, got -9223372036854775808",
            ),
            (run(json!({"tty": true})), id_needed),
            (run(json!({"streamStdin": true})), id_needed),
            (run(json!({"streamStdoutStderr": true})), id_needed),
            (run(json!({"tty": true, "size": {"rows": 1, "cols": 0}})), too_small),
            (run(json!({"tty": true, "size": {"rows": 0, "cols": 0}})), too_small),
            (run(json!({"tty": true, "size": {"rows": 1, "cols": 1}})), id_needed),
            // Of a size that is not positive and lacks a terminal, the missing terminal is reported.
            (run(json!({"size": {"rows": 0, "cols": 0}})), "-32602 command/exec size requires tty: true"),
            // Null and false count as absent.
            (run(json!({"outputBytesCap": null, "disableOutputCap": true})), "exit 0"),
            (run(json!({"outputBytesCap": 5, "disableOutputCap": false})), "exit 0"),
            (run(json!({"timeoutMs": null, "disableTimeout": true})), "exit 0"),
            (run(json!({"permissionProfile": null, "size": null, "env": null, "cwd": null})), "exit 0"),
        ],
    );
}

/// "duplicate active": also of a command that only buffers, and free again once the reply is out.
#[test]
fn an_id_is_taken_as_long_as_its_command_runs() {
    let mut server = server();
    for name in ["dup", "", "a\"b\\\né"] {
        let id = json!({"processId": name});
        let first = server.request("command/exec", &with(sh("exec sleep 1000"), id.clone()));
        let second = with(sh("echo second"), id.clone());
        let text = format!("-32600 duplicate active command/exec process id: {}", json!(name));
        check(
            &mut server,
            &[("command/exec", second.clone(), &text), ("command/exec/terminate", id.clone(), "{}")],
        );
        server.reply(first);
        check(&mut server, &[("command/exec", second, "exit 0 second\n|")]);
    }
}

#[test]
fn a_command_that_cannot_start_is_an_error_and_no_exit_code() {
    let mut server = server();
    let plain = server.dir().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    let garbage = server.dir().join("garbage");
    std::fs::write(&garbage, "\u{1}\u{2}garbage").unwrap();
    std::fs::set_permissions(&garbage, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (plain, garbage) = (plain.to_str().unwrap(), garbage.to_str().unwrap());
    let missing = "-32603 failed to spawn command: No such file or directory (os error 2)";
    let denied = "-32603 failed to spawn command: Permission denied (os error 13)";
    let nul = "-32603 failed to spawn command: nul byte found in provided data";
    let (long, longer) = ("x".repeat(3_000_000), "x".repeat(9_000_000));
    check_exec(
        &mut server,
        vec![
            (danger(&["/no/such/program"]), missing),
            (danger(&["no-such-program"]), missing),
            (danger(&["./no-such-program"]), missing),
            (danger(&[""]), "-32603 failed to spawn command: missing program for pipe spawn"),
            (danger(&["", "x"]), "-32603 failed to spawn command: missing program for pipe spawn"),
            (danger(&["/etc"]), denied),
            (danger(&[plain]), denied),
            (danger(&[garbage]), "-32603 failed to spawn command: Exec format error (os error 8)"),
            (
                danger(&["/bin/true", &long]),
                "-32603 failed to spawn command: Argument list too long (os error 7)",
            ),
            (
                danger(&["/bin/true", &longer]),
                "-32603 failed to spawn command: Argument list too long (os error 7)",
            ),
            (danger(&["a\0b"]), nul),
            (danger(&["/bin/true", "a\0b"]), nul),
            (with(danger(&["/bin/true"]), json!({"env": {"A": "a\0b"}})), nul),
            (with(danger(&["/bin/true"]), json!({"env": {"A\0": "ab"}})), nul),
            (with(danger(&["/bin/true"]), json!({"cwd": "a\0b"})), nul),
            (with(danger(&["/bin/true"]), json!({"cwd": "/no/such/directory"})), missing),
            (
                with(danger(&["/bin/true"]), json!({"cwd": plain})),
                "-32603 failed to spawn command: Not a directory (os error 20)",
            ),
            (with(danger(&["true"]), json!({"env": {"PATH": "/no/such/directory"}})), missing),
            // The name is free after it.
            (with(danger(&["/no/such/program"]), json!({"processId": "p"})), missing),
            (with(danger(&["/bin/true"]), json!({"processId": "p"})), "exit 0"),
        ],
    );
}

/// The original has other words for it on a terminal.
#[test]
fn a_command_that_cannot_start_on_a_terminal_is_an_error_too() {
    let mut server = server();
    let tty = |command: &str, more: Value| {
        with(with(danger(&[command]), json!({"tty": true, "processId": "p"})), more)
    };
    let mut rows = vec![
        tty("/no/such/program", json!({})),
        tty("no-such-program", json!({})),
        tty("", json!({})),
        tty("/etc/passwd", json!({})),
        tty("true", json!({"env": {"PATH": "/no/such/directory"}})),
    ];
    if !runs_on_original() {
        // The original runs it in the home directory without a word.
        rows.push(tty("/bin/true", json!({"cwd": "/no/such/directory"})));
    }
    for params in rows {
        let id = server.request("command/exec", &params);
        let reply: Value = serde_json::from_str(&server.reply(id)).unwrap();
        assert_eq!(reply["error"]["code"], -32603, "{params}: {reply}");
        let text = reply["error"]["message"].as_str().unwrap();
        assert!(text.starts_with("failed to spawn command: "), "{params}: {reply}");
    }
    assert!(server.deltas("p").is_empty());
}
