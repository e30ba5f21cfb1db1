//! Users on a host with a guard: their daemons and clients forward requests to it, and fail if it does not run.

use crate::support::{outpost, until};
use outpost_testkit::{ANN, Broker, BrokerClient, Daemon, Guard, Half, broker_request, require, root};
use outpost_wire::base64;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const RULES: &str = r#"
[[rule]]
name = "id"
decision = "allow"
command = ["/usr/bin/id", "-u"]
privileged = true
[[rule]]
name = "own"
decision = "allow"
command = ["/usr/bin/id", "-u"]
privileged = false
[[rule]]
name = "sleep"
decision = "allow"
command = ["/usr/bin/sleep", { any = true }]
privileged = false
"#;

/// The daemon of a user on the guard's host.
fn user_daemon(guard: &Guard) -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(ANN), Some(ANN)).unwrap();
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={ANN}"), format!("--regid={ANN}"), "--clear-groups".into()]);
    command.arg(outpost()).arg("--guard-root").arg(guard.root()).env("HOME", dir.path());
    Daemon::start_by(command, dir, &[])
}

fn broker_of(daemon: &Daemon) -> PathBuf {
    daemon.dir().join("run/broker.sock")
}

fn send(socket: &Path, request: &Value) -> BrokerClient {
    let mut client = BrokerClient::connect_as(socket, ANN);
    client.send(format!("{request}\n"));
    client
}

fn answer(mut client: BrokerClient) -> Value {
    serde_json::from_str(&client.answer()).unwrap()
}

fn stdout(answer: &Value) -> String {
    let text = answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"));
    String::from_utf8(base64::decode(text.as_bytes()).unwrap()).unwrap()
}

/// `outpost` as a user on the guard's host, with the user's own directories.
fn cli(guard: &Guard, daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Guard::command_as(ANN, outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run", "--guard-root"]).arg(guard.root());
    command.args(arguments).current_dir(daemon.dir()).stdin(Stdio::null());
    command
}

fn output_text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn requests_to_a_users_daemon_are_decided_and_run_by_the_guard() {
    require!(root());
    let guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    for (privileged, uid) in [(true, "0\n"), (false, "54321\n")] {
        let request = broker_request(&privileged.to_string(), privileged, &["id", "-u"]);
        let answer = answer(send(&broker_of(&daemon), &request));
        assert_eq!(stdout(&answer), uid, "{answer}");
    }
    assert_eq!(daemon.status().faces.waiting.unwrap().questions, 0);
    // A request without a matching rule waits at the guard and is withdrawn when its client disconnects.
    let client = send(&broker_of(&daemon), &broker_request("asked", true, &["true"]));
    until("the guard asks", || guard.status().faces.waiting.unwrap().questions == 1);
    assert_eq!(daemon.status().faces.waiting.unwrap().questions, 0, "only the guard asks");
    drop(client);
    until("the question is withdrawn", || guard.status().faces.waiting.unwrap().questions == 0);
}

#[test]
fn a_killed_worker_of_the_users_daemon_still_passes_the_answer_back() {
    require!(root());
    let guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    let mut running = send(&broker_of(&daemon), &broker_request("running", false, &["sleep", "3"]));
    let asked = send(&broker_of(&daemon), &broker_request("asked", true, &["true"]));
    until("the guard asks", || guard.status().faces.waiting.unwrap().questions == 1);
    until("the command runs", || {
        guard.list().iter().any(|process| process.command.first().is_some_and(|name| name == "sleep"))
    });
    daemon.kill(Half::Worker);
    assert_eq!(guard.status().faces.waiting.unwrap().questions, 1);
    let answer: Value = serde_json::from_str(&running.answer()).unwrap();
    assert_eq!((&answer["status"], &answer["id"]), (&json!("ok"), &json!("running")), "{answer}");
    assert!(!asked.has_answer(Duration::ZERO));
    drop(asked);
    until("the question is withdrawn", || guard.status().faces.waiting.unwrap().questions == 0);
}

#[test]
fn without_the_guard_the_users_daemon_decides_nothing() {
    require!(root());
    let mut guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    guard.stop();
    let refused = answer(send(&broker_of(&daemon), &broker_request("1", false, &["true"])));
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("the guard of this host is away, so nothing was run"), "{refused}");
    assert!(message.contains("hint: "), "{refused}");
    assert_eq!((&refused["id"], &refused["status"]), (&json!("1"), &json!("error")));
    assert_eq!(daemon.status().faces.waiting.unwrap().questions, 0);
    let (code, _, errors) = output_text(&cli(&guard, &daemon, &["ask", "--", "true"]).output().unwrap());
    assert_eq!(code, Some(125), "{errors}");
    assert!(
        errors.starts_with("error: the guard of this host is away") && errors.contains("hint: "),
        "{errors}"
    );
    // After a restart of the guard, requests work again.
    guard.serve();
    let answer = answer(send(&broker_of(&daemon), &broker_request("2", true, &["id", "-u"])));
    assert_eq!(stdout(&answer), "0\n");
}

#[test]
fn a_listener_that_is_not_roots_gets_no_request() {
    require!(root());
    let mut guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    guard.stop();
    // A socket of another user in a directory of root.
    let socket = guard.broker();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::os::unix::fs::lchown(&socket, Some(ANN), None).unwrap();
    let refused = answer(send(&broker_of(&daemon), &broker_request("1", true, &["true"])));
    assert!(refused["message"].as_str().unwrap().contains("is not a socket of root"), "{refused}");
}

#[test]
fn ask_and_mcp_reach_the_guard() {
    require!(root());
    let guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    let mut ask = cli(&guard, &daemon, &["ask", "--", "id", "-u"]);
    let (code, output, errors) = output_text(&ask.current_dir("/").output().unwrap());
    assert_eq!((code, output.as_str()), (Some(0), "0\n"), "{errors}");
    let mut ask = cli(&guard, &daemon, &["ask", "--unprivileged", "--", "id", "-u"]);
    let (code, output, errors) = output_text(&ask.current_dir("/").output().unwrap());
    assert_eq!((code, output.as_str()), (Some(0), "54321\n"), "{errors}");
    let mut mcp = cli(&guard, &daemon, &["mcp"]);
    let mut mcp = mcp.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = mcp.stdin.take().unwrap();
    let mut lines = BufReader::new(mcp.stdout.take().unwrap()).lines();
    let mut call = |id: u32, method: &str, params: Value| {
        writeln!(input, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .unwrap();
        loop {
            let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if line["id"] == id {
                break line;
            }
        }
    };
    let client = json!({ "name": "test", "version": "1" });
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    call(1, "initialize", hello);
    let arguments = json!({ "argv": ["id", "-u"], "reason": "a test", "cwd": "/" });
    let answer = call(2, "tools/call", json!({ "name": "execute", "arguments": arguments })).to_string();
    assert!(answer.contains("0\\n") && answer.contains("rule:id"), "{answer}");
    drop(input);
    assert!(mcp.wait().unwrap().success());
}

#[test]
fn the_originals_client_is_answered_by_the_guard() {
    require!(root());
    let program = require!(Broker::sudo_request());
    let guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    for socket in [guard.broker(), broker_of(&daemon)] {
        let mut client = Guard::command_as(ANN, &program);
        let output =
            client.arg("--socket").arg(&socket).args(["id", "-u"]).env("NO_COLOR", "1").output().unwrap();
        let (code, text, errors) = output_text(&output);
        assert_eq!((code, text.as_str()), (Some(0), "0\n"), "{}: {errors}", socket.display());
    }
}

#[test]
fn status_doctor_and_the_first_ask_name_the_mode_in_force() {
    require!(root());
    const PERSONAL: &str = "personal mode: protects against confined agents and mistakes; \
                            not against an unconfined process of the same user";
    const GUARDED: &str = "guard mode: also protects against an unconfined process of the same user";
    let mut guard = Guard::start(outpost(), RULES);
    let daemon = user_daemon(&guard);
    let shown =
        |guard: &Guard, arguments: &[&str]| output_text(&cli(guard, &daemon, arguments).output().unwrap()).1;
    for arguments in [&["status"][..], &["doctor"]] {
        assert!(shown(&guard, arguments).contains(GUARDED), "{arguments:?}");
    }
    let on_terminal = |guard: &Guard| {
        let line = format!(
            "setpriv --reuid={ANN} --regid={ANN} --clear-groups {} --state-dir state --runtime-dir run --guard-root {} ask \
             --unprivileged -- id -u",
            outpost().display(),
            guard.root().display()
        );
        let line = format!("cd / && {line}")
            .replace(" state ", &format!(" {} ", daemon.dir().join("state").display()));
        let line = line.replace(" run ", &format!(" {} ", daemon.dir().join("run").display()));
        let output =
            Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let first = on_terminal(&guard);
    assert!(first.contains(GUARDED) && first.contains("54321"), "{first}");
    let second = on_terminal(&guard);
    assert!(!second.contains("mode") && second.contains("54321"), "{second}");
    guard.stop();
    let away = shown(&guard, &["doctor"]);
    assert!(away.contains("guard mode, but the guard is not running"), "{away}");
    std::fs::remove_dir_all(guard.root().join("var/lib/outpost-guard")).unwrap();
    for arguments in [&["status"][..], &["doctor"]] {
        assert!(shown(&guard, arguments).contains(PERSONAL), "{arguments:?}");
    }
}

#[test]
fn the_guard_can_be_installed_and_uninstalled() {
    require!(root());
    let dir = tempfile::tempdir().unwrap();
    let install = |binary: &Path, arguments: &[&str]| {
        let mut command = Command::new(binary);
        command.args(["install-service", "--guard", "--guard-root"]).arg(dir.path()).args(arguments);
        output_text(&command.output().unwrap())
    };
    // Copy the binary, since other users may be able to write the build directory.
    let binary = dir.path().join("outpost");
    std::fs::copy(outpost(), &binary).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(dir.path(), 0o777);
    let (code, _, errors) = install(&binary, &[]);
    assert!(code == Some(1) && errors.contains("others than root can change"), "{errors}");
    assert!(!dir.path().join("var").exists(), "nothing was set up");
    mode(dir.path(), 0o755);
    let (code, done, errors) = install(&binary, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let unit = dir.path().join("etc/systemd/system/outpost-guard.service");
    for part in
        ["var/lib/outpost-guard", "run/outpost-guard", "outpost-guard.service", "next: enroll an approver"]
    {
        assert!(done.contains(part), "{part}: {done}");
    }
    assert!(std::fs::read_to_string(&unit).unwrap().contains("/outpost --guard --guard-root "));
    let as_user = Guard::command_as(ANN, &binary).args(["install-service", "--guard"]).output().unwrap();
    assert!(output_text(&as_user).2.contains("only root can set up the guard"));
    std::fs::write(dir.path().join("var/lib/outpost-guard/kept"), "").unwrap();
    let (code, done, errors) = install(&binary, &["--uninstall"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(!unit.exists() && !dir.path().join("var/lib/outpost-guard").exists(), "{done}");
    assert!(
        dir.path().join("var/lib/outpost-guard.uninstalled/kept").exists(),
        "records are kept under another name"
    );
    assert_eq!(install(&binary, &[]).0, Some(0));
    assert!(dir.path().join("var/lib/outpost-guard/kept").exists(), "the next installation uses them again");
}
