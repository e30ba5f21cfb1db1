//! Rows about Claude Code, Codex and srt: what is taken for harmless, limits, and whose files decide.

use super::sudo::stdout;
use crate::gate::{Gate, GateOptions};
use crate::kit::{plain, with};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// Nothing is harmless by its name: what no rule allows to the last argument is asked about.
#[test]
fn claude_code_cve_2025_54795_58764_64755_66032_and_cve_2026_24887_commands_taken_for_harmless() {
    let rules = "[[rule]]\nname = \"echo\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/echo\", \"hi\"]\nprivileged = false\n";
    let mut gate = Gate::ruled(rules);
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
            // Not a program at all: nobody makes it one.
            gate.refused(&request);
        } else {
            gate.asks(&request);
        }
    }
    // One stage that no rule allows is enough.
    gate.asks(&plain("p", json!([["echo", "hi"], ["cat"]])));
    assert_eq!(stdout(&gate.unasked(&plain("q", json!([["echo", "hi"]])))), "hi\n");
}

/// More than a limit is refused: nobody is asked instead of being told that a rule denies.
#[test]
fn claude_code_adversa_more_than_fifty_subcommands_fell_from_deny_to_ask() {
    let rules = "[[rule]]\nname = \"no-touch\"\ndecision = \"deny\"\ncommand = [\"/usr/bin/touch\", { rest = true }]\n\
                 [[rule]]\nname = \"true\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\", { rest = true }]\nprivileged = false\n";
    let mut gate = Gate::ruled(rules);
    let file = gate.path("ran");
    for count in [1, 31, 32, 50, 51, 500] {
        let mut stages = vec![json!(["true"]); count];
        stages.push(json!(["touch", file]));
        let answer = gate.unasked(&plain(&count.to_string(), json!(stages)));
        let expected = if count < 32 { "denied" } else { "error" };
        assert_eq!(answer["status"], expected, "{count}: {answer}");
    }
    for (id, pipeline) in [
        ("arguments", json!([vec!["true"; 4097]])),
        ("bytes", json!([["true", "x".repeat(128 * 1024)]])),
        ("stages", json!(vec![["true"]; 33])),
    ] {
        gate.refused(&plain(id, pipeline));
    }
    gate.refused(&with(plain("reason", json!([["true"]])), json!({"reason": "x".repeat(4097)})));
    assert!(!file.exists());
}

/// No file in a working directory, nor in any place that a request names, is policy.
#[test]
fn claude_code_cve_2025_65099_and_59536_codex_cve_2025_61260_project_files_run_before_trust() {
    let mut gate = Gate::start();
    let allow = "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\", { rest = true }]\nprivileged = false\ncwd = \"CWD\"\n";
    let config = "[approvals]\nrules = \"rules.toml\"\napprovers = [\"nobody\"]\nnotify = [\"/usr/bin/touch\", \"NOTE\"]\n";
    let note = gate.path("notified");
    let project = std::fs::canonicalize(gate.path("")).unwrap();
    let daemon = gate.daemon().dir().to_owned();
    for place in [&project, &daemon] {
        for below in ["", ".outpost", ".config/outpost", "outpost", "etc/outpost", ".git"] {
            let dir = place.join(below);
            std::fs::create_dir_all(&dir).unwrap();
            let rules = allow.replace("CWD", project.to_str().unwrap());
            // Where the daemon was told to look for rules, it finds them: that place is the operator's.
            for name in ["rules.toml", "outpost.rules", ".outpost.toml", "settings.json"] {
                if dir.join(name) != gate.rules() {
                    std::fs::write(dir.join(name), &rules).unwrap();
                }
            }
            std::fs::write(dir.join("outpost.toml"), config.replace("NOTE", note.to_str().unwrap())).unwrap();
        }
    }
    let more =
        json!({"cwd": project, "rules": project.join("rules.toml"), "config": project.join("outpost.toml")});
    gate.asks(&with(plain("a", json!([["true"]])), more.clone()));
    // Neither by a daemon that starts, or has to start again, beside them.
    gate.daemon().kill(outpost_testkit::Which::Worker);
    let mut gate = gate.again();
    gate.asks(&with(plain("b", json!([["true"]])), more));
    assert!(!note.exists());
}

/// No policy is the strictest that can be lived with: a human is asked. And where others can make one, it denies all.
#[test]
fn claude_code_cve_2026_25725_absent_settings_are_unprotected_settings() {
    let mut gate = Gate::start();
    assert!(!gate.rules().exists());
    gate.asks(&plain("absent", json!([["true"]])));
    let allow =
        "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\"]\nprivileged = false\n";
    std::fs::write(gate.rules(), allow).unwrap();
    assert_eq!(gate.unasked(&plain("operator's", json!([["true"]])))["decision"], "rule:all");
    let denied = |gate: &mut Gate, id: &str| {
        let answer = gate.unasked(&plain(id, json!([["true"]])));
        assert_eq!(answer["status"], "denied", "{answer}");
        answer["message"].as_str().unwrap().to_owned()
    };
    for (id, text) in [("broken", "[[rule]"), ("unknown", "allow_all = true\n"), ("wrong", "rule = 7\n")] {
        std::fs::write(gate.rules(), text).unwrap();
        let told = denied(&mut gate, id);
        assert!(told.contains("line 1") && told.contains("every request is denied"), "{told}");
    }
    std::fs::write(gate.rules(), allow).unwrap();
    std::fs::set_permissions(gate.rules(), PermissionsExt::from_mode(0o666)).unwrap();
    assert!(denied(&mut gate, "writable").contains("can be written by others"));
    std::fs::remove_file(gate.rules()).unwrap();
    gate.asks(&plain("absent again", json!([["true"]])));
    // In a directory that is everybody's, a missing file is one that anybody can make.
    let open = gate.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let flags = vec![format!("--rules={}", open.join("rules.toml").display())];
    let mut other = Gate::with(GateOptions { flags, ..GateOptions::default() });
    other.asks(&plain("absent in the open", json!([["true"]])));
    std::fs::write(open.join("rules.toml"), allow).unwrap();
    assert!(denied(&mut other, "made").contains("can be written by others"));
}

/// One parser, one value: no NUL cuts what is checked from what is used.
#[test]
fn srt_host_with_nul_passed_a_suffix_check() {
    let rules = "[[rule]]\nname = \"echo\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/echo\", { any = true }]\nprivileged = false\n";
    let mut gate = Gate::ruled(rules);
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
        let told = gate.refused(&request);
        assert!(told.contains("forbidden"), "{told}");
    }
    // As a raw byte it is no JSON.
    let line = plain("raw", json!([["/usr/bin/echo", "xNUL"]])).to_string().replace("NUL", "\0");
    assert_eq!(gate.send_line(&line).answer()["status"], "error");
}
