//! The guard, root's daemon for approvals: requests of several users, and attacks by them.

use crate::support::{outpost, until};
use outpost_sys::procfs;
use outpost_testkit::{ANN, BOB, BrokerClient, Guard, Half, broker_request, require, root};
use outpost_wire::base64;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Rules that allow the commands of these tests.
const RULES: &str = r#"
[[rule]]
name = "id"
decision = "allow"
command = ["/usr/bin/id", "-u"]
privileged = true
[[rule]]
name = "own-id"
decision = "allow"
command = ["/usr/bin/id"]
privileged = false
[[rule]]
name = "status"
decision = "allow"
command = ["/usr/bin/cat", { any = true }]
privileged = false
[[rule]]
name = "sleep"
decision = "allow"
command = ["/usr/bin/sleep", { any = true }]
privileged = false
"#;

fn guard() -> Guard {
    Guard::start(outpost(), RULES)
}

fn stdout(answer: &Value) -> String {
    let text = answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"));
    String::from_utf8(base64::decode(text.as_bytes()).unwrap()).unwrap()
}

/// A client with a pending question.
fn waiting(guard: &Guard, uid: u32, id: &str, privileged: bool, command: &[&str]) -> BrokerClient {
    let before = guard.status().faces.waiting.unwrap().questions;
    let client = guard.send(uid, &broker_request(id, privileged, command));
    until("a question waits", || guard.status().faces.waiting.unwrap().questions == before + 1);
    client
}

#[test]
fn approved_commands_run_as_root_or_as_the_requesting_user_with_its_groups() {
    require!(root());
    let guard = guard();
    let by_root = guard.ask(ANN, &broker_request("1", true, &["id", "-u"]));
    assert_eq!((stdout(&by_root).as_str(), &by_root["decision"]), ("0\n", &json!("rule:id")), "{by_root}");
    let status = guard.ask(ANN, &broker_request("2", false, &["cat", "/proc/self/status"]));
    let status = stdout(&status);
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let own = vec![ANN.to_string(); 4];
    assert_eq!((field("Uid:"), field("Gid:")), (own.clone(), own));
    assert_eq!(field("Groups:"), ["54321", "54401", "54402"], "as /etc/group has them");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("Seccomp:"), ["0"]);
    let environment = guard.ask(ANN, &broker_request("3", false, &["cat", "/proc/self/environ"]));
    let environment = stdout(&environment);
    assert!(
        environment.contains("HOME=/home/ann\0") && environment.contains("USER=ann\0"),
        "{environment:?}"
    );
    assert!(!environment.contains("OUTPOST"), "{environment:?}");
}

#[test]
fn users_neither_see_nor_block_each_others_requests() {
    require!(root());
    let guard = guard();
    // The same id, session and command of two users, at the same time.
    let request = broker_request("same", false, &["id"]);
    let (mut ann, mut bob) = (guard.send(ANN, &request), guard.send(BOB, &request));
    let [ann, bob]: [Value; 2] =
        [&mut ann, &mut bob].map(|client| serde_json::from_str(&client.answer()).unwrap());
    assert!(stdout(&ann).starts_with("uid=54321"), "{ann}");
    assert!(stdout(&bob).starts_with("uid=54322"), "{bob}");
    assert_ne!(ann["digest"], bob["digest"], "a decision for one user is none for another");
    let again = guard.ask(ANN, &request);
    assert_eq!(again["message"], "duplicate request id: same");
}

#[test]
fn one_user_cannot_use_up_the_capacity_of_another() {
    require!(root());
    let guard = guard();
    let silent: Vec<BrokerClient> = (0..64).map(|_| BrokerClient::connect_as(&guard.broker(), ANN)).collect();
    let mut refused = BrokerClient::connect_as(&guard.broker(), ANN);
    assert!(refused.answer().contains("too many connections of this user"));
    let answer = guard.ask(BOB, &broker_request("1", false, &["id"]));
    assert!(stdout(&answer).starts_with("uid=54322"), "{answer}");
    drop(silent);
    until("the connections are closed", || {
        let answer = guard.ask(ANN, &json!({ "action": "ping", "time": outpost_testkit::stamp(0) }));
        answer["status"] == "ok"
    });
    // With all questions of a user pending, its next one is refused and that of another user is asked.
    let asked: Vec<BrokerClient> =
        (0..16).map(|at| waiting(&guard, ANN, &format!("q{at}"), true, &["true", &at.to_string()])).collect();
    let full = guard.ask(ANN, &broker_request("q16", true, &["true", "16"]));
    assert!(full["message"].as_str().unwrap().contains("wait for an answer already"), "{full}");
    let _bob = waiting(&guard, BOB, "q0", true, &["true", "0"]);
    drop(asked);
}

#[test]
fn request_limits_are_per_user() {
    require!(root());
    let guard = Guard::prepare(outpost(), RULES);
    std::fs::write(guard.root().join("etc/outpost/guard.toml"), "[broker]\nrequests_per_minute = 3\n")
        .unwrap();
    let mut guard = guard;
    guard.serve();
    for at in 0..3 {
        let mut request = broker_request(&at.to_string(), false, &["id"]);
        request["session"] = json!(format!("session {at}"));
        assert_eq!(guard.ask(ANN, &request)["status"], "ok");
    }
    let limited = guard.ask(ANN, &broker_request("4", false, &["id"]));
    assert!(limited["message"].as_str().unwrap().starts_with("rate limited"), "{limited}");
    assert_eq!(guard.ask(BOB, &broker_request("4", false, &["id"]))["status"], "ok");
}

#[test]
fn replies_do_not_reveal_files_of_root() {
    require!(root());
    let guard = guard();
    let hidden = guard.root().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::copy("/usr/bin/id", hidden.join("there")).unwrap();
    for privileged in [true, false] {
        let ask = |name: &str| {
            let path = hidden.join(name);
            let id = format!("{name} {privileged}");
            let mut answer = guard.ask(ANN, &broker_request(&id, privileged, &[path.to_str().unwrap()]));
            answer["id"] = json!("");
            answer
        };
        let existing = ask("there");
        assert_eq!(existing, ask("missing"), "privileged: {privileged}");
        assert_eq!(existing["status"], "error", "{existing}");
    }
    let mut elsewhere = broker_request("cwd", false, &["id"]);
    elsewhere["cwd"] = json!(hidden.join("there"));
    let refused = guard.ask(ANN, &elsewhere);
    assert!(refused["message"].as_str().unwrap().contains("Permission denied"), "{refused}");
}

/// Attacks by an unconfined process of the requesting user. Each attack that succeeds prints its name.
const ATTACKS: &str = r#"
root=$1; worker=$2; keeper=$3
state=$root/var/lib/outpost-guard; run=$root/run/outpost-guard
try() { name=$1; shift; "$@" 2>/dev/null && echo "$name"; }
try list-state ls "$state"
try write-state touch "$state/approvals/grants"
try new-socket touch "$run/approvals.sock.new"
try remove-socket rm -f "$run/broker.sock"
try rename-socket mv "$run/broker.sock" "$run/old.sock"
try rename-runtime mv "$run" "$root/run/old"
try write-rules sh -c "echo >> $root/etc/outpost/rules.toml"
try write-approvers sh -c "echo > $root/etc/outpost/approvers.toml"
try kill-worker kill -STOP "$worker"
try kill-keeper kill -STOP "$keeper"
try read-memory head -c 1 "/proc/$worker/mem"
try read-environment head -c 1 "/proc/$worker/environ"
try read-descriptors ls "/proc/$worker/fd"
try look-into-memory head -c 1 "/proc/$worker/maps"
"#;

#[test]
fn an_unconfined_process_of_the_asking_user_reaches_nothing_of_the_guard() {
    require!(root());
    let guard = guard();
    let _question = waiting(&guard, ANN, "1", true, &["true"]);
    let status = guard.status();
    let mut attack = Guard::command_as(ANN, "/bin/sh");
    attack.args(["-c", ATTACKS, "sh"]).arg(guard.root());
    attack.args([status.worker_pid, status.keeper_pid].map(|pid| pid.to_string()));
    let succeeded = String::from_utf8(attack.output().unwrap().stdout).unwrap();
    assert_eq!(succeeded, "");
    assert_eq!(guard.status().worker_pid, status.worker_pid);
    // The same attempts by root succeed, so the attacks are real.
    let mut harmless = Guard::command_as(0, "/bin/sh");
    harmless
        .args(["-c", "ls \"$1/var/lib/outpost-guard\" && head -c 1 /proc/$2/environ", "sh"])
        .arg(guard.root());
    assert!(harmless.arg(status.worker_pid.to_string()).output().unwrap().status.success());
    // The user cannot use the control socket.
    let mut cli = Guard::command_as(ANN, outpost());
    cli.args(["--guard", "--guard-root"]).arg(guard.root()).arg("status");
    assert!(!cli.output().unwrap().status.success());
    // The user sees its own question but cannot decide it with any key.
    let own = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(own.path(), Some(ANN), Some(ANN)).unwrap();
    let approvals = |uid: u32, arguments: &[&str]| {
        let mut cli = Guard::command_as(uid, outpost());
        cli.args(["--guard", "--guard-root"]).arg(guard.root()).arg("--state-dir").arg(own.path());
        cli.arg("approvals").args(arguments).env_remove("SSH_AUTH_SOCK").output().unwrap()
    };
    let listed = approvals(ANN, &["list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let key = own.path().join("key");
    // ssh-keygen refuses users without an account.
    let mut keygen = Guard::command_as(0, "ssh-keygen");
    assert!(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().unwrap().success());
    std::os::unix::fs::chown(&key, Some(ANN), Some(ANN)).unwrap();
    let key = key.to_str().unwrap();
    for (arguments, why) in [
        (&["approve", id.as_str()][..], "no approver key is set up"),
        (&["approve", &id, "--key", key], "is not enrolled as an approver"),
        (&["enroll", "--no-passphrase"], "which only root can change"),
        (&["enroll", "--key", key], "which only root can change"),
        (&["revoke-key", "x"], "no such key: x"),
    ] {
        let output = approvals(ANN, arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(why), "{arguments:?}: {output:?}");
    }
    // Another user does not see the question.
    std::os::unix::fs::chown(own.path(), Some(BOB), Some(BOB)).unwrap();
    std::fs::remove_file(own.path().join("known_hosts")).unwrap();
    let listed = approvals(BOB, &["list", "--json"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "[]\n", "{listed:?}");
    assert_eq!(guard.status().faces.waiting.unwrap().questions, 1);
}

#[test]
fn a_killed_worker_of_the_guard_loses_neither_question_nor_command() {
    require!(root());
    let guard = guard();
    let mut asked = waiting(&guard, ANN, "asked", true, &["true"]);
    let mut running = guard.send(BOB, &broker_request("running", false, &["sleep", "3"]));
    let sleeps = || {
        let line = b"sleep\x003\0".as_slice();
        procfs::all().into_iter().find(|stat| {
            std::fs::read(format!("/proc/{}/cmdline", stat.pid)).is_ok_and(|found| found == line)
                && std::fs::metadata(format!("/proc/{}", stat.pid)).is_ok_and(|of| of.uid() == BOB)
        })
    };
    until("the command runs", || sleeps().is_some());
    guard.kill(Half::Worker);
    assert_eq!(guard.status().faces.waiting.unwrap().questions, 1);
    assert!(!asked.has_answer(Duration::ZERO));
    let answer: Value = serde_json::from_str(&running.answer()).unwrap();
    assert_eq!((&answer["status"], &answer["stages"][0]["exit_code"]), (&json!("ok"), &json!(0)), "{answer}");
    guard.kill(Half::Keeper);
    assert_eq!(guard.status().faces.waiting.unwrap().questions, 1);
    asked.end();
}

#[test]
fn the_sockets_are_open_to_all_users_and_the_state_is_roots() {
    require!(root());
    let guard = guard();
    let mode = |path: &Path| {
        let of = std::fs::symlink_metadata(path).unwrap();
        (of.uid(), of.mode() & 0o777)
    };
    let runtime = guard.root().join("run/outpost-guard");
    assert_eq!(mode(&runtime), (0, 0o755));
    assert_eq!(mode(&guard.broker()), (0, 0o666));
    assert_eq!(mode(&guard.approvals()), (0, 0o666));
    assert_eq!(mode(&runtime.join("control.sock")), (0, 0o600));
    assert_eq!(mode(&guard.root().join("var/lib/outpost-guard")), (0, 0o700));
    let faces: Vec<String> = guard.status().faces.listening.iter().map(|row| row.face.clone()).collect();
    assert_eq!(faces, ["control", "broker", "approve"], "two faces and root's control socket");
}

#[test]
fn a_guard_is_roots_and_takes_no_configuration_that_others_can_write() {
    require!(root());
    let guard = Guard::prepare(outpost(), RULES);
    let serve = |uid: u32, arguments: &[&str]| {
        let mut command = Guard::command_as(uid, outpost());
        command.args(["--guard", "--guard-root"]).arg(guard.root()).arg("serve").args(arguments);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(serve(ANN, &[]).contains("the guard runs as root"));
    assert!(serve(0, &["--rules", "/tmp/rules.toml"]).contains("not for the guard"));
    let rules = guard.root().join("etc/outpost/rules.toml");
    std::os::unix::fs::chown(&rules, Some(ANN), None).unwrap();
    assert!(serve(0, &[]).contains("others than root can change it"));
}

/// Keys in root's file can decide within their scope until they are revoked.
#[test]
fn the_guards_approvers_are_those_of_roots_file() {
    require!(root());
    let guard = guard();
    let own = tempfile::tempdir().unwrap();
    let approvals = |arguments: &[&str]| {
        let mut cli = Guard::command_as(0, outpost());
        cli.args(["--guard", "--guard-root"]).arg(guard.root()).arg("--state-dir").arg(own.path());
        let done = cli.arg("approvals").args(arguments).env_remove("SSH_AUTH_SOCK").output().unwrap();
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr),
        )
    };
    let succeeds = |arguments: &[&str]| {
        let (succeeded, message) = approvals(arguments);
        assert!(succeeded, "{arguments:?}: {message}");
        message
    };
    succeeds(&["enroll", "--no-passphrase", "--name", "desk", "--for-user", "ann"]);
    let question = |client: &BrokerClient| {
        let _waits = client;
        let listed: Value = serde_json::from_str(&succeeds(&["list", "--json"])).unwrap();
        listed[0]["id"].as_str().unwrap().to_owned()
    };
    let mut ann = waiting(&guard, ANN, "a", true, &["id", "-g"]);
    succeeds(&["approve", &question(&ann)]);
    let answer: Value = serde_json::from_str(&ann.answer()).unwrap();
    assert_eq!((stdout(&answer).as_str(), &answer["decision"]), ("0\n", &json!("human")), "{answer}");
    assert!(answer["approved_by"].as_str().unwrap().starts_with("desk (SHA256:"), "{answer}");
    let mut bob = waiting(&guard, BOB, "b", true, &["id", "-g"]);
    let (_, message) = approvals(&["approve", &question(&bob)]);
    assert!(message.contains("may not decide for user 54322"), "{message}");
    bob.end();
    until("it is withdrawn", || guard.status().faces.waiting.unwrap().questions == 0);
    let mut ann = waiting(&guard, ANN, "c", true, &["id", "-g"]);
    succeeds(&["revoke-key", "desk"]);
    let (_, message) = approvals(&["approve", &question(&ann)]);
    assert!(message.contains("is revoked"), "{message}");
    // A file that others can write is not trusted.
    let file = guard.root().join("etc/outpost/approvers.toml");
    std::fs::write(&file, "trusted_users = [\"root\"]\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (succeeded, message) = approvals(&["approve", &question(&ann)]);
    assert!(!succeeded && message.contains("others than root can change"), "{message}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::remove_file(own.path().join("approver.key")).unwrap();
    succeeds(&["approve", &question(&ann)]);
    let answer: Value = serde_json::from_str(&ann.answer()).unwrap();
    assert!(answer["approved_by"].as_str().unwrap().starts_with("uid 0 without a signature"), "{answer}");
    let mut verify = Guard::command_as(0, outpost());
    verify.args(["--guard", "--guard-root"]).arg(guard.root()).args(["audit", "verify"]);
    let refused = verify.output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("is not trusted"), "the file does not have the key any more: {refused:?}");
}
