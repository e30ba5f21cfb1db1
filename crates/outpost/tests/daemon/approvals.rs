//! `outpost approvals`: decisions from scripts, approver keys, and their checks.

use crate::approval_fixture::{ApprovalFixture, answer, text};
use outpost_testkit::{Half, require};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn id(question: &Value) -> &str {
    question["id"].as_str().unwrap()
}

#[test]
fn a_question_is_listed_and_shown_and_its_command_runs_once_approved() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let file = fixture.path("made");
    let mut client = fixture.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    let id = id(&question);
    let listed = fixture.decide(&["list"]);
    assert!(listed.contains(id) && listed.contains(&format!("touch {}", file.display())), "{listed}");
    let shown = fixture.decide(&["show", &id[..4]]);
    assert!(shown.contains(&format!("id       {id}")) && shown.contains("not verified"), "{shown}");
    let json: Value = serde_json::from_str(&fixture.decide(&["show", "--json", id])).unwrap();
    assert_eq!(json, question);
    assert!(!file.exists());
    assert_eq!(fixture.decide(&["allow", &id[..6]]), format!("approved {id}\n"));
    assert_eq!(answer(&mut client)["status"], "ok");
    assert!(file.exists());
    let settled = watcher.settled();
    assert_eq!((&settled["id"], &settled["allow"]), (&question["id"], &json!(true)));
    assert!(settled["by"].as_str().unwrap().contains("with outpost approvals"), "{settled}");
    assert_eq!(fixture.decide(&["list", "--json"]), "[]\n");
}

#[test]
fn the_note_of_a_denial_reaches_the_client() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let file = fixture.path("made");
    let mut client = fixture.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    fixture.decide(&["deny", id(&question), "--note", "not on a Friday"]);
    let denied = answer(&mut client);
    assert_eq!(
        (denied["status"].as_str(), denied["message"].as_str()),
        (Some("denied"), Some("not on a Friday"))
    );
    assert!(!file.exists());
}

#[test]
fn a_decision_with_another_digest_is_refused() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let mut client = fixture.ask("one", &["true"]);
    let question = watcher.asked();
    let (id, digest) = (id(&question), question["digest"].as_str().unwrap());
    let wrong = digest.replace(|_: char| true, "0");
    let refused = fixture.approvals(&["approve", id, "--digest", &wrong]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("has another digest"), "{refused:?}");
    fixture.decide(&["approve", id, "--digest", digest]);
    assert_eq!(answer(&mut client)["decision"], "human");
}

#[test]
fn unknown_short_and_ambiguous_ids_are_refused() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let _client = fixture.ask("one", &["true"]);
    let question = watcher.asked();
    let fails = |arguments: &[&str], why: &str| {
        let done = fixture.approvals(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    fails(&["approve", &id(&question)[..3]], "at least 4 characters");
    fails(&["approve", "zzzz"], "no such question: zzzz");
    fails(&["show", "00000000-0000-4000-8000-000000000000"], "no question 00000000");
    fails(&["deny", "\u{1b}[2J\u{1b}[2J"], "\\u{1b}[2J");
    fails(&["revoke", "00000000-0000-4000-8000-000000000000"], "no such grant");
    assert!(fixture.decide(&["list"]).contains(id(&question)));
}

#[test]
fn a_grant_allows_its_number_of_runs_and_none_after_its_revocation() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let mut client = fixture.ask("one", &["true"]);
    let question = watcher.asked();
    fixture.decide(&["approve", id(&question), "--times", "2"]);
    assert_eq!(answer(&mut client)["decision"], "human");
    watcher.settled();
    assert_eq!(answer(&mut fixture.ask("two", &["true"]))["decision"], "grant");
    let grants: Value = serde_json::from_str(&fixture.decide(&["grants", "--json"])).unwrap();
    assert_eq!((&grants[0]["times_left"], &grants[0]["digest"]), (&json!(1), &question["digest"]));
    let grant = grants[0]["id"].as_str().unwrap();
    let listed = fixture.decide(&["grants"]);
    assert!(listed.contains(grant) && listed.contains("1 time "), "{listed}");
    assert_eq!(fixture.decide(&["revoke", &grant[..8]]), format!("revoked {grant}\n"));
    let mut client = fixture.ask("three", &["true"]);
    fixture.decide(&["deny", id(&watcher.asked())]);
    assert_eq!(answer(&mut client)["status"], "denied");
    assert_eq!(fixture.decide(&["grants", "--json"]), "[]\n");
}

#[test]
fn the_requesting_user_needs_an_enrolled_key_to_decide() {
    let fixture = ApprovalFixture::start();
    let refused = |arguments: &[&str], why: &str| {
        let done = fixture.approvals(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    let mut watcher = fixture.watch();
    let mut client = fixture.ask("one", &["true"]);
    let question = watcher.asked();
    let id = id(&question);
    refused(&["approve", id], "no approver key is set up");
    refused(&["enroll"], "use --no-passphrase");
    fixture.ssh_key("own", "", 0);
    refused(&["approve", id, "--key", "own"], "is not enrolled as an approver");
    assert!(
        text(&fixture.approvals(&["enroll", "--no-passphrase", "--name", "laptop"]).stdout)
            .starts_with("enrolled laptop SHA256:")
    );
    refused(&["enroll"], "is already enrolled");
    refused(&["enroll", "--key", "own", "--by", "own"], "is not enrolled as an approver");
    refused(&["approve", id, "--key", "own"], "is not enrolled as an approver");
    refused(&["approve", id, "--key", "missing"], "missing");
    refused(&["approve", id, "--secret-file", "own"], "approver secrets no longer work");
    std::fs::set_permissions(fixture.path("own"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .unwrap();
    refused(&["approve", id, "--key", "own"], "others can read it");
    fixture.decide(&["approve", id]);
    let done = answer(&mut client);
    assert!(done["approved_by"].as_str().unwrap().starts_with("laptop (SHA256:"), "{done}");
}

/// An enrolled key signs each change of the key list. A change takes effect at once.
#[test]
fn changes_of_the_key_list_need_the_signature_of_an_enrolled_key() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    fixture.ssh_key("second", "", 0);
    fixture.ssh_key("third", "", 0);
    fixture.decide(&["enroll", "--key", "second", "--name", "second", "--no-root"]);
    let refused = |arguments: &[&str], why: &str| {
        let done = fixture.approvals(arguments);
        assert!(!done.status.success() && text(&done.stderr).contains(why), "{arguments:?}: {done:?}");
    };
    // A key cannot enroll one with a larger scope.
    refused(&["enroll", "--key", "third", "--name", "third", "--by", "second"], "is smaller than");
    let mut client = fixture.ask_with("root", &["true"], json!({"privileged": true}));
    let question = watcher.asked();
    refused(&["approve", id(&question), "--key", "second"], "may not decide what runs as root");
    fixture.decide(&["deny", id(&question)]);
    assert_eq!(answer(&mut client)["status"], "denied");
    watcher.settled();
    fixture.decide(&["rename", "second", "renamed"]);
    let keys: Value = serde_json::from_str(&fixture.decide(&["keys", "--json"])).unwrap();
    assert_eq!(
        (&keys[1]["name"], &keys[1]["root"], &keys[1]["usable"]),
        (&json!("renamed"), &json!(false), &json!(true))
    );
    // The grant of a key is valid until the key is revoked.
    let mut client = fixture.ask("one", &["true"]);
    fixture.decide(&["approve", id(&watcher.asked()), "--times", "5", "--key", "second"]);
    assert_eq!(answer(&mut client)["status"], "ok");
    watcher.settled();
    assert_eq!(answer(&mut fixture.ask("two", &["true"]))["decision"], "grant");
    fixture.decide(&["revoke-key", "renamed"]);
    assert_eq!(fixture.decide(&["grants", "--json"]), "[]\n");
    let mut client = fixture.ask("three", &["true"]);
    let question = watcher.asked();
    refused(&["approve", id(&question), "--key", "second"], "is revoked");
    fixture.decide(&["enroll", "--key", "third", "--name", "third"]);
    fixture.decide(&["expire", "third", "2020-01-01T00:00:00Z"]);
    refused(&["approve", id(&question), "--key", "third"], "has expired");
    let own = serde_json::from_str::<Value>(&fixture.decide(&["keys", "--json"])).unwrap()[0]["name"].clone();
    refused(&["revoke-key", own.as_str().unwrap()], "the last key that can decide");
    fixture.decide(&["deny", id(&question)]);
    assert_eq!(answer(&mut client)["status"], "denied");
    // The next worker loads the same list.
    fixture.daemon.kill(Half::Worker);
    let after: Value = serde_json::from_str(&fixture.decide(&["keys", "--json"])).unwrap();
    let usable: Vec<&Value> = after.as_array().unwrap().iter().map(|key| &key["usable"]).collect();
    assert_eq!(usable, [&json!(true), &json!(false), &json!(false)], "{after}");
    let events = text(&fixture.run(&["audit", "show", "--event", "key"]).stdout);
    for action in ["host", "enroll", "rename", "revoke", "expire"] {
        assert!(events.contains(action), "{action}: {events}");
    }
}

/// The state of an old daemon contains the digest of a shared secret instead of keys.
#[test]
fn the_first_key_removes_the_old_secret() {
    let fixture = ApprovalFixture::start();
    let old = fixture.path("state/approvals/approver.sha256");
    std::fs::write(&old, "0".repeat(64)).unwrap();
    let done = fixture.approvals(&["enroll", "--no-passphrase"]);
    assert!(
        done.status.success() && text(&done.stderr).contains("approver secret no longer works"),
        "{done:?}"
    );
    assert!(!old.exists());
}

/// A client that knows the host key refuses another key at the same address.
#[test]
fn a_daemon_with_another_host_key_is_refused() {
    let fixture = ApprovalFixture::enrolled();
    fixture.decide(&["list"]);
    let known = fixture.path("state/known_hosts");
    let line = std::fs::read_to_string(&known).unwrap();
    let name = line.split_once(' ').unwrap().0.to_owned();
    assert!(name.ends_with("/run/approvals.sock"), "{line}");
    let other = std::fs::read_to_string(fixture.ssh_key("other", "", 0).with_extension("pub")).unwrap();
    std::fs::write(&known, format!("{name} {other}")).unwrap();
    let refused = fixture.approvals(&["list"]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let message = text(&refused.stderr);
    assert!(message.contains("may be another daemon") && message.contains("hint: "), "{message}");
}

#[test]
fn root_decides_for_another_users_daemon_with_its_own_key() {
    let fixture = require!(ApprovalFixture::for_other_user());
    let mut watcher = fixture.watch();
    let mut client = fixture.ask("one", &["id", "-u"]);
    let question = watcher.asked();
    fixture.decide(&["approve", id(&question)]);
    let done = answer(&mut client);
    assert_eq!((&done["status"], &done["stdout"]), (&"ok".into(), &"NjU1MzQK".into()), "{done}");
    let by = done["approved_by"].as_str().unwrap();
    assert!(by.starts_with("desk (SHA256:") && by.contains("), uid 0 pid "), "{done}");
}

#[test]
fn without_a_daemon_the_error_explains_how_to_start_one() {
    let fixture = ApprovalFixture::start();
    let done = fixture.approvals(&["list", "--socket", "nowhere.sock"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("nowhere.sock") && text(&done.stderr).contains("outpost serve"),
        "{done:?}"
    );
}

/// OpenSSH's agent, killed at the end of the test.
struct SshAgent {
    child: std::process::Child,
    socket: std::path::PathBuf,
}

impl SshAgent {
    fn with(fixture: &ApprovalFixture, key: &std::path::Path) -> SshAgent {
        let socket = fixture.path("agent");
        let mut agent = Command::new("ssh-agent");
        let mut child = agent.args(["-D", "-a"]).arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
        // The agent prints its address when it listens.
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let added = Command::new("ssh-add").env("SSH_AUTH_SOCK", &socket).arg(key).output().unwrap();
        assert!(added.status.success(), "{added:?}");
        SshAgent { child, socket }
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Only OpenSSH's agent holds the key, and OpenSSH alone can verify the signature.
#[test]
fn a_key_of_ssh_agent_decides_and_openssh_verifies_the_record() {
    let fixture = ApprovalFixture::start();
    let key = fixture.ssh_key("held", "", 0);
    let agent = SshAgent::with(&fixture, &key);
    std::fs::remove_file(&key).unwrap();
    let signing = |arguments: &[&str]| {
        let done = fixture.command(arguments).env("SSH_AUTH_SOCK", &agent.socket).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        text(&done.stdout)
    };
    signing(&["approvals", "enroll", "--ssh-agent", "--name", "agent"]);
    let mut watcher = fixture.watch();
    let mut client = fixture.ask_with("one", &["true"], json!({"privileged": true}));
    let question = watcher.asked();
    let refused = fixture.approvals(&["approve", id(&question)]);
    assert!(text(&refused.stderr).contains("no approver key is set up"), "{refused:?}");
    signing(&["approvals", "approve", id(&question)]);
    let done = answer(&mut client);
    assert!(done["approved_by"].as_str().unwrap().starts_with("agent (SHA256:"), "{done}");
    // Verify with OpenSSH, from the records and the public keys.
    let export = fixture.run(&["audit", "export"]).stdout;
    std::fs::write(fixture.path("chain"), &export).unwrap();
    std::fs::write(fixture.path("signers"), fixture.decide(&["keys", "--allowed-signers"])).unwrap();
    let decided = export.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let decided = decided.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let decided = decided.into_iter().find(|record| record["event"] == "decided").unwrap();
    let field = |name: &str| decided["data"][name].as_str().unwrap().to_owned();
    let armored =
        format!("-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n", field("signature"));
    std::fs::write(fixture.path("signature"), armored).unwrap();
    let statement = outpost_wire::base64::decode(field("statement").as_bytes()).unwrap();
    std::fs::write(fixture.path("statement"), statement).unwrap();
    let verify = "ssh-keygen -Y verify -f signers -I agent -n outpost-decision -s signature < statement";
    let verified =
        Command::new("sh").args(["-c", verify]).current_dir(fixture.daemon.dir()).output().unwrap();
    assert!(
        text(&verified.stdout).starts_with("Good \"outpost-decision\" signature for agent"),
        "{verified:?}"
    );
    // Verify with outpost on a host that has the public keys only.
    let there = |keys: &str| {
        let mut verify = Command::new(crate::support::outpost());
        verify.args(["--state-dir", "/nonexistent", "audit", "verify", "--keys", keys, "chain"]);
        verify.current_dir(fixture.daemon.dir()).output().unwrap()
    };
    let verified = there("signers");
    assert!(text(&verified.stdout).contains("1 command as root allowed by agent (SHA256:"), "{verified:?}");
    let other = std::fs::read_to_string(fixture.ssh_key("other", "", 0).with_extension("pub")).unwrap();
    std::fs::write(fixture.path("others"), format!("agent {other}")).unwrap();
    let refused = there("others");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(text(&refused.stderr).contains("is not trusted"), "{refused:?}");
}
