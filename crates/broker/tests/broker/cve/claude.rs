//! Rows about Claude Code, Codex and srt: commands assumed harmless, limits, and the files that are policy.

use super::sudo::stdout;
use crate::fixture::{Fixture, FixtureOptions};
use crate::kit::{plain, with};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// No command is harmless by its name. Without a rule that allows all its arguments, a human decides.
#[test]
fn claude_code_cve_2025_54795_58764_64755_66032_and_cve_2026_24887_commands_taken_for_harmless() {
    let rules = "[[rule]]\nname = \"echo\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/echo\", \"hi\"]\nprivileged = false\n";
    let mut fixture = Fixture::with_rules(rules);
    for (number, argv) in [
        json!(["echo", "\"hi\"; touch x"]),
        json!(["echo", "hi", ">", "x"]),
        json!(["echo", "hi;id"]),
        json!(["echo"]),
        json!(["echo", "hi "]),
        json!(["echo", "-n", "hi"]),
        json!(["cat", "/dev/null"]),
        json!(["ls"]),
        json!(["pwd"]),
        json!(["true"]),
        json!(["date"]),
        json!(["grep", "--pre=sh", "x"]),
        json!(["sed", "s/x/id/e"]),
        json!(["sed", "-i", "s/a/b/", "/tmp/none"]),
        json!(["find", "/nowhere", "-exec", "id", ";"]),
        json!(["find", "/nowhere", "-fprintf", "/tmp/none", "x"]),
        json!(["cat$IFS/etc/passwd"]),
        json!(["sort", "-o", "/tmp/none", "/dev/null"]),
    ]
    .into_iter()
    .enumerate()
    {
        let request = with(plain(&number.to_string(), json!([argv])), json!({"session": number.to_string()}));
        if argv[0].as_str().unwrap().contains("IFS") {
            // No such program exists, and no shell expands the name.
            fixture.refused(&request);
        } else {
            fixture.ask_and_withdraw(&request);
        }
    }
    // One stage without an allowing rule suffices for a question.
    fixture.ask_and_withdraw(&plain("p", json!([["echo", "hi"], ["cat"]])));
    assert_eq!(stdout(&fixture.answer_unasked(&plain("q", json!([["echo", "hi"]])))), "hi\n");
}

/// A request beyond a limit is refused. It never falls back from deny to ask.
#[test]
fn claude_code_adversa_more_than_fifty_subcommands_fell_from_deny_to_ask() {
    let rules = "[[rule]]\nname = \"no-touch\"\ndecision = \"deny\"\ncommand = [\"/usr/bin/touch\", { rest = true }]\n\
                 [[rule]]\nname = \"true\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\", { rest = true }]\nprivileged = false\n";
    let mut fixture = Fixture::with_rules(rules);
    let file = fixture.path("ran");
    for count in [1, 31, 32, 50, 51, 500] {
        let mut stages = vec![json!(["true"]); count];
        stages.push(json!(["touch", file]));
        let answer = fixture.answer_unasked(&plain(&count.to_string(), json!(stages)));
        let expected = if count < 32 { "denied" } else { "error" };
        assert_eq!(answer["status"], expected, "{count}: {answer}");
    }
    for (id, pipeline) in [
        ("arguments", json!([vec!["true"; 4097]])),
        ("bytes", json!([["true", "x".repeat(128 * 1024)]])),
        ("stages", json!(vec![["true"]; 33])),
    ] {
        fixture.refused(&plain(id, pipeline));
    }
    fixture.refused(&with(plain("reason", json!([["true"]])), json!({"reason": "x".repeat(4097)})));
    assert!(!file.exists());
}

/// No file in a working directory, or at a path in a request, is policy.
#[test]
fn claude_code_cve_2025_65099_and_59536_codex_cve_2025_61260_project_files_run_before_trust() {
    let mut fixture = Fixture::start();
    let allow = "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\", { rest = true }]\nprivileged = false\ncwd = \"CWD\"\n";
    let config = "[approvals]\nrules = \"rules.toml\"\napprovers = [\"nobody\"]\nnotify = [\"/usr/bin/touch\", \"NOTE\"]\n";
    let note = fixture.path("notified");
    let project = std::fs::canonicalize(fixture.path("")).unwrap();
    let daemon = fixture.daemon().dir().to_owned();
    for root in [&project, &daemon] {
        for below in ["", ".outpost", ".config/outpost", "outpost", "etc/outpost", ".git"] {
            let dir = root.join(below);
            std::fs::create_dir_all(&dir).unwrap();
            let rules = allow.replace("CWD", project.to_str().unwrap());
            // The path of the operator's own rules is excepted.
            for name in ["rules.toml", "outpost.rules", ".outpost.toml", "settings.json"] {
                if dir.join(name) != fixture.rules() {
                    std::fs::write(dir.join(name), &rules).unwrap();
                }
            }
            std::fs::write(dir.join("outpost.toml"), config.replace("NOTE", note.to_str().unwrap())).unwrap();
        }
    }
    let more =
        json!({"cwd": project, "rules": project.join("rules.toml"), "config": project.join("outpost.toml")});
    fixture.ask_and_withdraw(&with(plain("a", json!([["true"]])), more.clone()));
    // A new worker ignores them, too.
    fixture.daemon().kill(outpost_testkit::Half::Worker);
    let mut fixture = fixture.reconnect_approver();
    fixture.ask_and_withdraw(&with(plain("b", json!([["true"]])), more));
    assert!(!note.exists());
}

/// Without rules a human decides. A rules file that others can write denies all requests.
#[test]
fn claude_code_cve_2026_25725_absent_settings_are_unprotected_settings() {
    let mut fixture = Fixture::start();
    assert!(!fixture.rules().exists());
    fixture.ask_and_withdraw(&plain("absent", json!([["true"]])));
    let allow =
        "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\"]\nprivileged = false\n";
    std::fs::write(fixture.rules(), allow).unwrap();
    assert_eq!(fixture.answer_unasked(&plain("operator's", json!([["true"]])))["decision"], "rule:all");
    let denied = |fixture: &mut Fixture, id: &str| {
        let answer = fixture.answer_unasked(&plain(id, json!([["true"]])));
        assert_eq!(answer["status"], "denied", "{answer}");
        answer["message"].as_str().unwrap().to_owned()
    };
    for (id, text) in [("broken", "[[rule]"), ("unknown", "allow_all = true\n"), ("wrong", "rule = 7\n")] {
        std::fs::write(fixture.rules(), text).unwrap();
        let message = denied(&mut fixture, id);
        assert!(message.contains("line 1") && message.contains("every request is denied"), "{message}");
    }
    std::fs::write(fixture.rules(), allow).unwrap();
    std::fs::set_permissions(fixture.rules(), PermissionsExt::from_mode(0o666)).unwrap();
    assert!(denied(&mut fixture, "writable").contains("can be written by others"));
    std::fs::remove_file(fixture.rules()).unwrap();
    fixture.ask_and_withdraw(&plain("absent again", json!([["true"]])));
    // In a world-writable directory any user can create the missing file.
    let open = fixture.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let flags = vec![format!("--rules={}", open.join("rules.toml").display())];
    let mut other = Fixture::with(FixtureOptions { flags, ..FixtureOptions::default() });
    other.ask_and_withdraw(&plain("absent in the open", json!([["true"]])));
    std::fs::write(open.join("rules.toml"), allow).unwrap();
    assert!(denied(&mut other, "made").contains("can be written by others"));
}

/// There is one parser: a NUL byte cannot make the checked value differ from the used one.
#[test]
fn srt_host_with_nul_passed_a_suffix_check() {
    let rules = "[[rule]]\nname = \"echo\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/echo\", { any = true }]\nprivileged = false\n";
    let mut fixture = Fixture::with_rules(rules);
    for (number, more) in [
        json!({"pipeline": [["/usr/bin/echo\u{0}evil", "x"]]}),
        json!({"pipeline": [["/usr/bin/echo", "x\u{0}evil"]]}),
        json!({"pipeline": [["/usr/bin/echo", "x"], ["/usr/bin/echo", "\u{0}"]]}),
        json!({"env": {"LANG": "C\u{0}LD_PRELOAD=x"}}),
        json!({"env": {"LANG\u{0}": "C"}}),
        json!({"cwd": "/\u{0}tmp"}),
        json!({"session": "a\u{0}b"}),
        json!({"host": "evil\u{0}.local"}),
        json!({"reason": "\u{0}"}),
        json!({"version": "\u{0}"}),
        json!({"time": "\u{0}"}),
        json!({"id": "\u{0}"}),
    ]
    .into_iter()
    .enumerate()
    {
        let request = with(plain(&number.to_string(), json!([["/usr/bin/echo", "x"]])), more);
        let message = fixture.refused(&request);
        assert!(message.contains("forbidden"), "{message}");
    }
    // A raw NUL byte is invalid JSON.
    let line = plain("raw", json!([["/usr/bin/echo", "xNUL"]])).to_string().replace("NUL", "\0");
    assert_eq!(fixture.send_line(&line).answer()["status"], "error");
}
