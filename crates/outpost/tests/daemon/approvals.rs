//! `outpost approvals`: decisions from scripts, and who may make them.

use crate::desk::{Desk, answer, text};
use outpost_testkit::{Which, require};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn id(question: &Value) -> &str {
    question["id"].as_str().unwrap()
}

#[test]
fn what_was_asked_is_listed_shown_and_runs_once_it_is_allowed() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let file = desk.path("made");
    let mut client = desk.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    let id = id(&question);
    let listed = desk.decide(&["list"]);
    assert!(listed.contains(id) && listed.contains(&format!("touch {}", file.display())), "{listed}");
    let shown = desk.decide(&["show", &id[..4]]);
    assert!(shown.contains(&format!("id       {id}")) && shown.contains("not checked by anybody"), "{shown}");
    let json: Value = serde_json::from_str(&desk.decide(&["show", "--json", id])).unwrap();
    assert_eq!(json, question);
    assert!(!file.exists());
    assert_eq!(desk.decide(&["allow", &id[..6]]), format!("approved {id}\n"));
    assert_eq!(answer(&mut client)["status"], "ok");
    assert!(file.exists());
    let settled = watcher.settled();
    assert_eq!((&settled["id"], &settled["allow"]), (&question["id"], &json!(true)));
    assert!(settled["by"].as_str().unwrap().contains("with outpost approvals"), "{settled}");
    assert_eq!(desk.decide(&["list", "--json"]), "[]\n");
}

#[test]
fn a_denial_brings_its_note_to_whoever_asked() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let file = desk.path("made");
    let mut client = desk.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    desk.decide(&["deny", id(&question), "--note", "not on a Friday"]);
    let denied = answer(&mut client);
    assert_eq!(
        (denied["status"].as_str(), denied["message"].as_str()),
        (Some("denied"), Some("not on a Friday"))
    );
    assert!(!file.exists());
}

#[test]
fn what_is_allowed_is_what_has_the_digest_that_was_shown() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    let (id, digest) = (id(&question), question["digest"].as_str().unwrap());
    let wrong = digest.replace(|_: char| true, "0");
    let refused = desk.approvals(&["allow", id, "--digest", &wrong]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("has another digest"), "{refused:?}");
    desk.decide(&["allow", id, "--digest", digest]);
    assert_eq!(answer(&mut client)["decision"], "human");
}

#[test]
fn an_id_that_is_unknown_short_or_of_several_decides_nothing() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let _client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    let fails = |arguments: &[&str], why: &str| {
        let done = desk.approvals(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    fails(&["allow", &id(&question)[..3]], "at least 4 characters");
    fails(&["allow", "zzzz"], "there is no question zzzz");
    fails(&["show", "00000000-0000-4000-8000-000000000000"], "no question 00000000");
    fails(&["deny", "\u{1b}[2J\u{1b}[2J"], "\\u{1b}[2J");
    fails(&["revoke", "00000000-0000-4000-8000-000000000000"], "there is no grant");
    assert!(desk.decide(&["list"]).contains(id(&question)));
}

#[test]
fn what_is_remembered_runs_unasked_as_often_as_was_said_and_not_once_it_is_revoked() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    desk.decide(&["allow", id(&question), "--times", "2"]);
    assert_eq!(answer(&mut client)["decision"], "human");
    watcher.settled();
    assert_eq!(answer(&mut desk.ask("two", &["true"]))["decision"], "grant");
    let grants: Value = serde_json::from_str(&desk.decide(&["grants", "--json"])).unwrap();
    assert_eq!((&grants[0]["times_left"], &grants[0]["digest"]), (&json!(1), &question["digest"]));
    let grant = grants[0]["id"].as_str().unwrap();
    let listed = desk.decide(&["grants"]);
    assert!(listed.contains(grant) && listed.contains("1 time "), "{listed}");
    assert_eq!(desk.decide(&["revoke", &grant[..8]]), format!("revoked {grant}\n"));
    let mut client = desk.ask("three", &["true"]);
    desk.decide(&["deny", id(&watcher.asked())]);
    assert_eq!(answer(&mut client)["status"], "denied");
    assert_eq!(desk.decide(&["grants", "--json"]), "[]\n");
}

#[test]
fn the_user_that_may_be_asking_decides_nothing_without_an_enrolled_key() {
    let desk = Desk::own();
    let refused = |arguments: &[&str], why: &str| {
        let done = desk.approvals(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    let id = id(&question);
    refused(&["allow", id], "there is no key to sign with");
    refused(&["enroll"], "--no-passphrase makes one without");
    desk.ssh_key("own", "", 0);
    refused(&["allow", id, "--key", "own"], "is not an approver's here");
    assert!(
        text(&desk.approvals(&["enroll", "--no-passphrase", "--name", "laptop"]).stdout)
            .starts_with("enrolled laptop SHA256:")
    );
    refused(&["enroll"], "is enrolled already");
    refused(&["enroll", "--key", "own", "--by", "own"], "is not an approver's here");
    refused(&["allow", id, "--key", "own"], "is not an approver's here");
    refused(&["allow", id, "--key", "missing"], "missing");
    refused(&["allow", id, "--secret-file", "own"], "the approver's secret is not used any more");
    std::fs::set_permissions(desk.path("own"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    refused(&["allow", id, "--key", "own"], "others can read it");
    desk.decide(&["allow", id]);
    let done = answer(&mut client);
    assert!(done["approved_by"].as_str().unwrap().starts_with("laptop (SHA256:"), "{done}");
}

/// The list of keys: each change is signed by one that is enrolled, and takes effect at once.
#[test]
fn keys_are_enrolled_renamed_ended_and_revoked_by_those_before_them() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    desk.ssh_key("second", "", 0);
    desk.ssh_key("third", "", 0);
    desk.decide(&["enroll", "--key", "second", "--name", "second", "--no-root"]);
    let refused = |arguments: &[&str], why: &str| {
        let done = desk.approvals(arguments);
        assert!(!done.status.success() && text(&done.stderr).contains(why), "{arguments:?}: {done:?}");
    };
    // One of a smaller scope enrols none of a larger one.
    refused(&["enroll", "--key", "third", "--name", "third", "--by", "second"], "is smaller than");
    let mut client = desk.ask_with("root", &["true"], json!({"privileged": true}));
    let question = watcher.asked();
    refused(&["allow", id(&question), "--key", "second"], "may not decide what runs as root");
    desk.decide(&["deny", id(&question)]);
    assert_eq!(answer(&mut client)["status"], "denied");
    watcher.settled();
    desk.decide(&["rename", "second", "renamed"]);
    let keys: Value = serde_json::from_str(&desk.decide(&["keys", "--json"])).unwrap();
    assert_eq!(
        (&keys[1]["name"], &keys[1]["root"], &keys[1]["usable"]),
        (&json!("renamed"), &json!(false), &json!(true))
    );
    // A grant of that key holds until the key is revoked.
    let mut client = desk.ask("one", &["true"]);
    desk.decide(&["allow", id(&watcher.asked()), "--times", "5", "--key", "second"]);
    assert_eq!(answer(&mut client)["status"], "ok");
    watcher.settled();
    assert_eq!(answer(&mut desk.ask("two", &["true"]))["decision"], "grant");
    desk.decide(&["revoke-key", "renamed"]);
    assert_eq!(desk.decide(&["grants", "--json"]), "[]\n");
    let mut client = desk.ask("three", &["true"]);
    let question = watcher.asked();
    refused(&["allow", id(&question), "--key", "second"], "is revoked");
    desk.decide(&["enroll", "--key", "third", "--name", "third"]);
    desk.decide(&["expire", "third", "2020-01-01T00:00:00Z"]);
    refused(&["allow", id(&question), "--key", "third"], "has expired");
    let own = serde_json::from_str::<Value>(&desk.decide(&["keys", "--json"])).unwrap()[0]["name"].clone();
    refused(&["revoke-key", own.as_str().unwrap()], "the last key that can decide");
    desk.decide(&["deny", id(&question)]);
    assert_eq!(answer(&mut client)["status"], "denied");
    // All of it holds for the next worker.
    desk.daemon.kill(Which::Worker);
    let after: Value = serde_json::from_str(&desk.decide(&["keys", "--json"])).unwrap();
    let usable: Vec<&Value> = after.as_array().unwrap().iter().map(|key| &key["usable"]).collect();
    assert_eq!(usable, [&json!(true), &json!(false), &json!(false)], "{after}");
    let events = text(&desk.run(&["audit", "show", "--event", "key"]).stdout);
    for action in ["host", "enroll", "rename", "revoke", "expire"] {
        assert!(events.contains(action), "{action}: {events}");
    }
}

/// A daemon of before there were keys has the digest of a secret in its state.
#[test]
fn what_is_left_of_the_secret_goes_with_the_first_key() {
    let desk = Desk::own();
    let old = desk.path("state/approvals/approver.sha256");
    std::fs::write(&old, "0".repeat(64)).unwrap();
    let done = desk.approvals(&["enroll", "--no-passphrase"]);
    assert!(done.status.success() && text(&done.stderr).contains("secret of before is removed"), "{done:?}");
    assert!(!old.exists());
}

/// A client that has met the host refuses another one at the same place.
#[test]
fn a_daemon_with_another_host_key_is_refused() {
    let desk = Desk::enrolled();
    desk.decide(&["list"]);
    let known = desk.path("state/known_hosts");
    let line = std::fs::read_to_string(&known).unwrap();
    let name = line.split_once(' ').unwrap().0.to_owned();
    assert!(name.ends_with("/run/approvals.sock"), "{line}");
    let other = std::fs::read_to_string(desk.ssh_key("other", "", 0).with_extension("pub")).unwrap();
    std::fs::write(&known, format!("{name} {other}")).unwrap();
    let refused = desk.approvals(&["list"]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let told = text(&refused.stderr);
    assert!(told.contains("may be another daemon") && told.contains("hint: "), "{told}");
}

#[test]
fn root_decides_for_another_users_daemon_with_its_own_key() {
    let desk = require!(Desk::of_nobody());
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["id", "-u"]);
    let question = watcher.asked();
    desk.decide(&["allow", id(&question)]);
    let done = answer(&mut client);
    assert_eq!((&done["status"], &done["stdout"]), (&"ok".into(), &"NjU1MzQK".into()), "{done}");
    let by = done["approved_by"].as_str().unwrap();
    assert!(by.starts_with("desk (SHA256:") && by.contains("), uid 0 pid "), "{done}");
}

#[test]
fn who_has_no_daemon_is_told_how_to_start_one() {
    let desk = Desk::own();
    let done = desk.approvals(&["list", "--socket", "nowhere.sock"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("nowhere.sock") && text(&done.stderr).contains("outpost serve"),
        "{done:?}"
    );
}

/// OpenSSH's agent, ended with the test.
struct SshAgent {
    child: std::process::Child,
    socket: std::path::PathBuf,
}

impl SshAgent {
    fn with(desk: &Desk, key: &std::path::Path) -> SshAgent {
        let socket = desk.path("agent");
        let mut agent = Command::new("ssh-agent");
        let mut child = agent.args(["-D", "-a"]).arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
        // It prints where it is once it listens.
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

/// Nothing of ours holds the key, and nothing of ours is needed to check what it has signed.
#[test]
fn a_key_of_ssh_agent_decides_and_openssh_verifies_the_record() {
    let desk = Desk::own();
    let key = desk.ssh_key("held", "", 0);
    let agent = SshAgent::with(&desk, &key);
    std::fs::remove_file(&key).unwrap();
    let signing = |arguments: &[&str]| {
        let done = desk.command(arguments).env("SSH_AUTH_SOCK", &agent.socket).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        text(&done.stdout)
    };
    signing(&["approvals", "enroll", "--ssh-agent", "--name", "agent"]);
    let mut watcher = desk.watch();
    let mut client = desk.ask_with("one", &["true"], json!({"privileged": true}));
    let question = watcher.asked();
    let refused = desk.approvals(&["allow", id(&question)]);
    assert!(text(&refused.stderr).contains("there is no key to sign with"), "{refused:?}");
    signing(&["approvals", "allow", id(&question)]);
    let done = answer(&mut client);
    assert!(done["approved_by"].as_str().unwrap().starts_with("agent (SHA256:"), "{done}");
    // By OpenSSH alone, from the records and the public keys.
    let export = desk.run(&["audit", "export"]).stdout;
    std::fs::write(desk.path("chain"), &export).unwrap();
    std::fs::write(desk.path("signers"), desk.decide(&["keys", "--allowed-signers"])).unwrap();
    let decided = export.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let decided = decided.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let decided = decided.into_iter().find(|record| record["event"] == "decided").unwrap();
    let field = |name: &str| decided["data"][name].as_str().unwrap().to_owned();
    let armored =
        format!("-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n", field("signature"));
    std::fs::write(desk.path("signature"), armored).unwrap();
    let statement = outpost_wire::base64::decode(field("statement").as_bytes()).unwrap();
    std::fs::write(desk.path("statement"), statement).unwrap();
    let verify = "ssh-keygen -Y verify -f signers -I agent -n outpost-decision -s signature < statement";
    let verified = Command::new("sh").args(["-c", verify]).current_dir(desk.daemon.dir()).output().unwrap();
    assert!(
        text(&verified.stdout).starts_with("Good \"outpost-decision\" signature for agent"),
        "{verified:?}"
    );
    // By this program, on a host that has nothing but the public keys.
    let there = |keys: &str| {
        let mut verify = Command::new(crate::support::outpost());
        verify.args(["--state-dir", "/nonexistent", "audit", "verify", "--keys", keys, "chain"]);
        verify.current_dir(desk.daemon.dir()).output().unwrap()
    };
    let verified = there("signers");
    assert!(text(&verified.stdout).contains("1 command as root allowed by agent (SHA256:"), "{verified:?}");
    let other = std::fs::read_to_string(desk.ssh_key("other", "", 0).with_extension("pub")).unwrap();
    std::fs::write(desk.path("others"), format!("agent {other}")).unwrap();
    let refused = there("others");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(text(&refused.stderr).contains("is none that counts"), "{refused:?}");
}
