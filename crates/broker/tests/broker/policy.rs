//! Root's policy in `/etc/outpost` takes precedence over the rules of the daemon's user, which an agent of that user could
//! write. `Fixture::run` waits for a question.

use crate::fixture::{Fixture, FixtureOptions};
use crate::kit::plain;
use outpost_testkit::require;
use serde_json::json;

/// Any uid except root's.
const USER: u32 = 54_321;

/// Root's approvers file, with the fixture's approver.
const APPROVERS: &str = "[[approver]]\nname = \"test\"\nkey = \"{approver}\"\nroot = true\n";

/// A script that mounts an `/etc` with these rules of root in the daemon's own mount namespace.
fn etc(rules: Option<&str>) -> String {
    let rules =
        rules.map_or(String::new(), |rules| format!("cat >/etc/outpost/rules.toml <<'E'\n{rules}\nE\n"));
    format!(
        "mount -t tmpfs -o mode=755 none /mnt\ncp -a /etc/passwd /etc/group /etc/nsswitch.conf /mnt/\nmount --bind /mnt /etc\n\
         umask 022\nmkdir /etc/outpost\n{rules}cat >/etc/outpost/approvers.toml <<'E'\n{APPROVERS}E\n"
    )
}

fn rule(decision: &str, program: &str) -> String {
    let privileged = if decision == "allow" { "privileged = false\n" } else { "" };
    format!(
        "[[rule]]\nname = \"{decision}\"\ndecision = \"{decision}\"\ncommand = [\"{program}\"]\n{privileged}"
    )
}

fn fixture(system: Option<&str>, own: &str) -> Fixture {
    Fixture::with(FixtureOptions {
        rules: Some(own.to_owned()),
        uid: Some(USER),
        before: Some(etc(system)),
        ..FixtureOptions::default()
    })
}

/// The user, and thus the agent, can write the files that the flag and the configuration name.
#[test]
fn under_roots_policy_a_rule_of_the_user_cannot_allow() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    require!(outpost_testkit::root());
    let mut fixture = fixture(None, &rule("allow", "/usr/bin/true"));
    assert_eq!(fixture.run(&plain("flag", json!([["true"]])))["status"], "ok");
    // A later change of the file does not count either.
    std::fs::write(fixture.rules(), rule("allow", "/usr/bin/true") + "\n").unwrap();
    assert_eq!(fixture.run(&plain("changed", json!([["true"]])))["status"], "ok");
    let log = fixture.daemon().log();
    assert!(log.contains("ignoring allow rules outside of the system directory"), "{log}");
}

#[test]
fn under_roots_policy_roots_rules_allow_and_the_users_rules_only_restrict() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    require!(outpost_testkit::root());
    let allow = [
        rule("allow", "/usr/bin/true"),
        rule("allow", "/usr/bin/id").replace("\"allow\"\ndec", "\"id\"\ndec"),
    ];
    let own = rule("deny", "/usr/bin/id") + &rule("allow", "/usr/bin/uname");
    let mut fixture = fixture(Some(&allow.concat()), &own);
    assert_eq!(fixture.answer_unasked(&plain("allowed", json!([["true"]])))["status"], "ok");
    assert_eq!(fixture.answer_unasked(&plain("denied", json!([["id"]])))["status"], "denied");
    assert_eq!(fixture.run(&plain("asked", json!([["uname"]])))["status"], "ok");
}

/// The user chooses the path in `[approvals] rules`, so its rules count as the user's even if root owns the file.
#[test]
fn a_reload_cannot_add_rules_that_allow() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    require!(outpost_testkit::root());
    let before = etc(None) + &format!("cat >/etc/other.toml <<'E'\n{}\nE\n", rule("allow", "/usr/bin/true"));
    let mut fixture = Fixture::with(FixtureOptions {
        uid: Some(USER),
        before: Some(before),
        config: Some("[log]\nlevel = \"info\"\n".into()),
        rules_by_configuration: true,
        ..FixtureOptions::default()
    });
    assert_eq!(fixture.run(&plain("before", json!([["true"]])))["status"], "ok");
    std::fs::write(fixture.daemon().dir().join("config.toml"), "[approvals]\nrules = \"/etc/other.toml\"\n")
        .unwrap();
    let _reloaded: serde_json::Value = fixture.daemon().ask("reload", &json!({}));
    assert_eq!(fixture.run(&plain("after", json!([["true"]])))["status"], "ok");
}
