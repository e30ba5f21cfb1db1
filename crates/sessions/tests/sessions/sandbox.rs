//! Sandboxed sessions: the kernel confines the agent in every mode.

use crate::kit::{CLIS, Host};
use outpost_testkit::Half;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_sandboxed_agent_writes_only_where_it_may() {
    let host = Host::start();
    let write = ["init", "touch @project/made", "result"];
    let read_only = host.create_with(json!({ "sandbox": { "type": "readOnly" } }));
    let events = host.run(&read_only, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "error", "{events:?}");
    assert!(!host.path("project/made").exists());
    let writable =
        host.create_with(json!({ "sandbox": { "type": "workspaceWrite", "networkAccess": false } }));
    let events = host.run(&writable, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "result", "{events:?}");
    assert!(host.path("project/made").exists());
    // The sandbox survives a restart of the daemon.
    std::fs::remove_file(host.path("project/made")).unwrap();
    let mut host = host;
    host.restart();
    let events = host.run(&read_only, &write).rest();
    assert_eq!(events.last().unwrap()["type"], "error", "{events:?}");
    assert!(!host.path("project/made").exists());
}

#[test]
fn an_invalid_sandbox_is_refused() {
    let host = Host::start();
    let project = host.path("project");
    for sandbox in [
        json!("readOnly"),
        json!({ "type": "open" }),
        json!({ "type": "readOnly", "writableRoots": [] }),
        json!({ "type": "workspaceWrite", "writableRoots": ["relative"] }),
    ] {
        let params = json!({ "path": project, "sandbox": sandbox });
        let (code, message) = host.client().error("session.create", params);
        assert_eq!(code, -32602, "{message}");
        assert!(message.starts_with("Invalid param: sandbox: "), "{message}");
    }
}

const SET_SANDBOX: &str = "import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=30)
database.execute('update sessions set sandbox = ? where id = ?', sys.argv[2:])
database.commit()";

/// All files below a directory, with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => all.extend(files(&entry.path())),
            false => {
                drop(all.insert(entry.path(), std::fs::read_to_string(entry.path()).unwrap_or_default()))
            }
        }
    }
    all
}

/// Files from which agents read hooks, plugins and MCP servers. These run outside of any sandbox when a user starts the
/// agent.
const SETTINGS: &[&str] = &[
    "home/.claude/settings.json",
    "home/.claude/settings.local.json",
    "home/.claude/hooks/hook",
    "home/.claude/plugins/plugin",
    "home/.claude/CLAUDE.md",
    "home/.claude/not-yet-known",
    "home/.claude.json",
    "home/.codex/config.toml",
    "home/.codex/hooks.json",
    "home/.gemini/settings.json",
    "home/.gemini/extensions/extension",
    "home/.config/opencode/opencode.json",
    "home/.config/opencode/plugin/plugin.js",
    "home/.local/share/opencode/bin/rg",
    "home/.cache/opencode/node_modules/x.js",
    "project/.claude/settings.json",
    "project/.claude/hooks/hook",
    "project/.codex/config.toml",
    "project/.gemini/settings.json",
    "project/.opencode/plugin/plugin.js",
    "project/.mcp.json",
    "project/opencode.json",
];

#[test]
fn a_confined_agent_writes_no_settings_of_any_agent() {
    let host = Host::start();
    let write = |name: &str| {
        std::fs::create_dir_all(host.path(name).parent().unwrap()).unwrap();
        std::fs::write(host.path(name), "kept").unwrap();
    };
    for existing in [true, false] {
        if existing {
            SETTINGS.iter().for_each(|name| write(name));
        } else {
            ["home", "project"].iter().for_each(|name| std::fs::remove_dir_all(host.path(name)).unwrap());
            ["home/Projects", "project"]
                .iter()
                .for_each(|name| std::fs::create_dir_all(host.path(name)).unwrap());
            // claude creates it at its first start.
            std::fs::write(host.path("home/.claude.json"), "{}").unwrap();
        }
        // Placeholder files exist until the process has exited.
        let all = || {
            let mut all = files(&host.path("home"));
            all.extend(files(&host.path("project")));
            all.retain(|path, text| {
                text != "{}\n" || !path.to_string_lossy().contains("/project/opencode.json")
            });
            all
        };
        let before = all();
        for (cli, kind) in CLIS.iter().flat_map(|cli| [(cli, "readOnly"), (cli, "workspaceWrite")]) {
            let session = host.create_with(json!({ "cli_type": cli, "sandbox": { "type": kind } }));
            let attack = SETTINGS.iter().map(|name| {
                let path = host.text(name);
                format!(
                    "mkdir -p $(dirname {path}); echo planted >> {path}; echo planted > {path}.new; \
                     mv -f {path}.new {path}; mv $(dirname {path}) $(dirname {path}).old; rm -rf $(dirname {path}); \
                     mkdir -p $(dirname {path}); echo planted > {path};"
                )
            });
            let attack = format!("sh {} true", attack.collect::<String>());
            host.run(&session, &["init", &attack, "touch @attacked", "result"]).rest();
            assert_eq!(before, all(), "{cli} {kind} existing: {existing}");
        }
    }
}

/// Logins and conversations are shared with the host. Other files are private to the session and survive turns.
#[test]
fn a_confined_agent_keeps_its_login_conversations_and_private_files() {
    let host = Host::start();
    std::fs::create_dir_all(host.path("home/.claude")).unwrap();
    for name in ["home/.claude/.credentials.json", "home/.claude/settings.json", "home/.claude.json"] {
        std::fs::write(host.path(name), "host").unwrap();
    }
    std::os::unix::fs::symlink("settings.json", host.path("home/.claude/linked.json")).unwrap();
    let session = host.create_with(json!({ "sandbox": { "type": "readOnly" } }));
    let output_of = |script: &str| {
        let script = format!("sh cd {} && {script}", host.text("home"));
        let events = host.run(&session, &["init", &script, "result"]).rest();
        events[1]["content"].as_str().unwrap_or_default().to_owned()
    };
    let first = output_of(
        "cat .claude/settings.json .claude/linked.json; echo new > .claude/.credentials.json; \
        mkdir .claude/projects/p; echo talk > .claude/projects/p/1.jsonl; echo mine > .claude.json; \
        mkdir .claude/todos; echo todo > .claude/todos/1; cat .claude.json",
    );
    assert_eq!(first, "hosthostmine\n");
    let read = |name: &str| std::fs::read_to_string(host.path(name)).unwrap_or_default();
    assert_eq!(read("home/.claude/.credentials.json"), "new\n");
    assert_eq!(read("home/.claude/projects/p/1.jsonl"), "talk\n");
    assert_eq!((read("home/.claude.json"), read("home/.claude/todos/1")), ("host".into(), String::new()));
    std::fs::remove_file(host.path("home/.claude/settings.json")).unwrap();
    std::fs::write(host.path("home/.claude/new-settings.json"), "later").unwrap();
    let second = output_of(
        "cat .claude/todos/1 .claude/new-settings.json .claude.json; ls .claude/settings.json 2>&1",
    );
    assert!(second.starts_with("todo\nlaterhost") && second.contains("No such file"), "{second}");
    // The daemon follows no symlink that the agent left behind.
    output_of("rm -rf .claude/sub; ln -s /etc/hostname .claude/one; ln -s /etc .claude/sub; echo $?");
    std::fs::write(host.path("home/.claude/one"), "1").unwrap();
    std::fs::create_dir(host.path("home/.claude/sub")).unwrap();
    assert_eq!(output_of("cat .claude/one; ls .claude/sub"), "1");
    host.client().result("session.destroy", json!({ "sessionId": session }));
    host.wait("the session's files are gone", || {
        (!host.path("state/sessions").join(&session).exists()).then_some(())
    });
}

/// A newer version or a user may have written a sandbox that this version cannot parse. Then the agent must not run.
#[test]
fn a_stored_sandbox_that_cannot_be_read_refuses_the_turn() {
    let host = Host::start();
    let stored = ["{", r#"{"type":"vault"}"#, r#"{"type":"readOnly","more":1}"#, "null", ""];
    let relative = r#"{"type":"workspaceWrite","writableRoots":["x"]}"#;
    for (number, stored) in stored.into_iter().chain([relative]).enumerate() {
        let session = host.create_with(json!({ "sandbox": { "type": "readOnly" } }));
        let database = host.path("state/approvals/approvals.db");
        let mut change = Command::new("python3");
        change.args(["-c", SET_SANDBOX]).arg(database).args([stored, &session]);
        let changed = change.output().unwrap();
        assert!(changed.status.success(), "{changed:?}");
        host.daemon().kill(Half::Worker);
        let made = format!("made-{number}");
        let events = host.run(&session, &["init", &format!("touch @{made}"), "result"]).rest();
        let last = events.last().unwrap();
        let message = last["message"].as_str().unwrap_or_default();
        assert!(last["type"] == "error" && message.contains("stored sandbox cannot be read"), "{last}");
        assert!(message.contains("create it again"), "{last}");
        assert!(!host.path(&made).exists());
    }
}
