//! Root's policy, `/etc/outpost`, against rules of the daemon's user: what an agent of that user can write itself.
//! `Gate::run` waits for a question.

use crate::gate::{Gate, GateOptions};
use crate::kit::plain;
use outpost_testkit::require;
use serde_json::json;

/// Any user but root.
const USER: u32 = 54_321;

/// Root's approvers: the one of the gate.
const APPROVERS: &str = "[[approver]]\nname = \"test\"\nkey = \"{approver}\"\nroot = true\n";

/// Gives the daemon an `/etc` with these rules of root's in a mount namespace of its own.
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

fn gate(system: Option<&str>, own: &str) -> Gate {
    Gate::with(GateOptions {
        rules: Some(own.to_owned()),
        uid: Some(USER),
        before: Some(etc(system)),
        ..GateOptions::default()
    })
}

/// The flag and the configuration name files that the user can write; so can the agent.
#[test]
fn under_roots_policy_a_rule_of_the_user_cannot_allow() {
    outpost_testkit::require!(crate::kit::ours());
    require!(outpost_testkit::root());
    let mut gate = gate(None, &rule("allow", "/usr/bin/true"));
    assert_eq!(gate.run(&plain("flag", json!([["true"]])))["status"], "ok");
    // Nor one that appears later, nor one that a reload names.
    std::fs::write(gate.rules(), rule("allow", "/usr/bin/true") + "\n").unwrap();
    assert_eq!(gate.run(&plain("changed", json!([["true"]])))["status"], "ok");
    let log = gate.daemon().log();
    assert!(log.contains("rules that allow count only in the system's directory"), "{log}");
}

#[test]
fn under_roots_policy_its_own_rules_allow_and_those_of_the_user_make_it_stricter() {
    outpost_testkit::require!(crate::kit::ours());
    require!(outpost_testkit::root());
    let allow = [
        rule("allow", "/usr/bin/true"),
        rule("allow", "/usr/bin/id").replace("\"allow\"\ndec", "\"id\"\ndec"),
    ];
    let own = rule("deny", "/usr/bin/id") + &rule("allow", "/usr/bin/uname");
    let mut gate = gate(Some(&allow.concat()), &own);
    assert_eq!(gate.unasked(&plain("allowed", json!([["true"]])))["status"], "ok");
    assert_eq!(gate.unasked(&plain("denied", json!([["id"]])))["status"], "denied");
    assert_eq!(gate.run(&plain("asked", json!([["uname"]])))["status"], "ok");
}

/// `[approvals] rules` in the user's configuration is a path that the user chose, whoever owns the file there.
#[test]
fn a_reload_cannot_lead_to_other_rules_that_allow() {
    outpost_testkit::require!(crate::kit::ours());
    require!(outpost_testkit::root());
    let before = etc(None) + &format!("cat >/etc/other.toml <<'E'\n{}\nE\n", rule("allow", "/usr/bin/true"));
    let mut gate = Gate::with(GateOptions {
        uid: Some(USER),
        before: Some(before),
        config: Some("[log]\nlevel = \"info\"\n".into()),
        rules_by_configuration: true,
        ..GateOptions::default()
    });
    assert_eq!(gate.run(&plain("before", json!([["true"]])))["status"], "ok");
    std::fs::write(gate.daemon().dir().join("config.toml"), "[approvals]\nrules = \"/etc/other.toml\"\n")
        .unwrap();
    let _reloaded: serde_json::Value = gate.daemon().ask("reload", &json!({}));
    assert_eq!(gate.run(&plain("after", json!([["true"]])))["status"], "ok");
}
