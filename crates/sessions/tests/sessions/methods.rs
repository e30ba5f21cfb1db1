//! Every method of the contract: its params, its result, its errors.

use crate::kit::{CLIS, Host, canonical, kinds};
use serde_json::{Value, json};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A timestamp of the contract: `2026-03-29T10:00:00Z`, optionally with a fraction.
fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() >= 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T'
}

/// The fake reports a version, so it counts as genuine, and its conversations are searched in claude's store.
#[test]
fn a_missing_conversation_falls_back_to_a_new_one() {
    let host = Host::start();
    let id = host.create();
    let store = host.path("home/.claude/projects/-project");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(store.join("kept.jsonl"), "").unwrap();
    let resume = |conversation: &str| {
        host.client().result("session.resume", json!({ "sessionId": id, "sdkSessionId": conversation }))
    };
    assert_eq!(resume("kept"), json!({ "ok": true, "fallback": false }));
    assert_eq!(host.listed(&id)["sdkSessionId"], "kept");
    assert_eq!(resume("gone"), json!({ "ok": true, "fallback": true }));
    host.run(&id, &["record @argv", "result"]).rest();
    let argv = host.wait_record("argv")["argv"].to_string();
    assert!(!argv.contains("--resume"), "{argv}");
}

/// The operator moves the stores, and the daemon's own environment has other ones.
#[test]
fn conversations_are_searched_in_the_configured_store() {
    let config = "[sessions.codex]\nenv = { CODEX_HOME = \"../elsewhere\" }\n[sessions.claude]\ndrop_env = [\"CLAUDE_CONFIG_DIR\"]\n";
    let host = Host::start_with(config, &[("CODEX_HOME", "/nowhere"), ("CLAUDE_CONFIG_DIR", "/nowhere")]);
    let stores = [("codex", "elsewhere/sessions/2026"), ("claude", "home/.claude/projects/-project")];
    for (cli, store) in stores {
        let id = host.create_with(json!({ "cli_type": cli }));
        std::fs::create_dir_all(host.path(store)).unwrap();
        std::fs::write(host.path(store).join("kept.jsonl"), "").unwrap();
        for (conversation, is_fresh) in [("kept", false), ("gone", true)] {
            let params = json!({ "sessionId": id, "sdkSessionId": conversation });
            let resumed = host.client().result("session.resume", params);
            assert_eq!(resumed, json!({ "ok": true, "fallback": is_fresh }), "{cli}");
        }
    }
}

/// A value of a request must not become an option of the CLI, such as `--dangerously-skip-permissions`.
#[test]
fn a_value_that_looks_like_an_option_is_refused() {
    let host = Host::start();
    let id = host.create();
    let project = host.path("project");
    let cases = [
        ("session.create", json!({ "path": project, "model": "--dangerously-skip-permissions" })),
        ("session.set_model", json!({ "sessionId": id, "model": "-c" })),
        ("session.resume", json!({ "sessionId": id, "sdkSessionId": "--dangerously-skip-permissions" })),
        ("session.set_model", json!({ "sessionId": id, "model": "a\nb" })),
    ];
    for (method, params) in cases {
        let (code, message) = host.client().error(method, params);
        assert!(code == -32602 && message.ends_with("is not a name"), "{method}: {code} {message}");
    }
    // The same holds for the conversation id that a CLI reports.
    host.run(&id, &["session --dangerously-skip-permissions", "init", "result"]).rest();
    assert_eq!(host.listed(&id)["sdkSessionId"], Value::Null);
}

#[test]
fn create_gives_an_id_and_the_session_is_listed_with_every_field() {
    let host = Host::start();
    let given = json!({ "path": host.path("project"), "mode": "plan", "model": "m-1", "cli_type": "gemini" });
    let created = host.client().result("session.create", given);
    assert_eq!(keys(&created), ["sessionId"]);
    let id = created["sessionId"].as_str().unwrap();
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "a version 4 uuid: {id}");
    let plain = host.create();
    let listed = host.client().result("session.list", json!({}));
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    // Oldest first.
    assert_eq!((&sessions[0]["sessionId"], &sessions[1]["sessionId"]), (&json!(id), &json!(plain)));
    let expected = [
        "cliType",
        "createdAt",
        "lastActivityAt",
        "mode",
        "model",
        "path",
        "sdkSessionId",
        "sessionId",
        "status",
    ];
    for session in sessions {
        assert_eq!(keys(session), expected);
        assert_eq!((&session["status"], &session["sdkSessionId"]), (&json!("idle"), &Value::Null));
        assert_eq!(session["path"], host.text("project"));
        assert!(is_time(&session["createdAt"]) && is_time(&session["lastActivityAt"]), "{session}");
    }
    let of = |session: &Value| json!([session["mode"], session["model"], session["cliType"]]);
    assert_eq!(of(&sessions[0]), json!(["plan", "m-1", "gemini"]));
    assert_eq!(of(&sessions[1]), json!(["auto", null, "claude"]));
}

#[test]
fn only_known_modes_and_clis_are_accepted() {
    let host = Host::start();
    for mode in ["auto", "code", "plan", "ask"] {
        let id = host.create_with(json!({ "mode": mode }));
        assert_eq!(host.listed(&id)["mode"], mode);
    }
    for cli in CLIS {
        let id = host.create_with(json!({ "cli_type": cli }));
        assert_eq!(host.listed(&id)["cliType"], cli);
    }
    let refused = |more: Value| {
        let mut params = json!({ "path": host.path("project") });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.client().error("session.create", params)
    };
    for mode in ["", "AUTO", "yolo", "bypass"] {
        assert_eq!(refused(json!({ "mode": mode })), (-32000, "Invalid mode".into()), "{mode}");
    }
    for cli in ["", "Claude", "bash", "../claude"] {
        let (code, text) = refused(json!({ "cli_type": cli }));
        assert!(code == -32000 && text.starts_with("Invalid cli_type"), "{cli}: {text}");
    }
    for more in [json!({ "mode": 1 }), json!({ "model": {} }), json!({ "cli_type": [] })] {
        assert_eq!(refused(more.clone()).0, -32602, "{more}");
    }
    // Null counts as absent.
    host.create_with(json!({ "mode": null, "model": null, "cli_type": null }));
    assert_eq!(host.client().result("session.list", json!({}))["sessions"].as_array().unwrap().len(), 9);
}

#[test]
fn missing_params_are_32602_in_every_method() {
    let host = Host::start();
    let id = host.create();
    let cases = [
        ("session.create", json!({}), "Missing required param: path"),
        ("session.create", json!({ "path": 7 }), "Missing required param: path"),
        ("session.send", json!({}), "Missing required params: sessionId, message"),
        ("session.send", json!({ "sessionId": id }), "Missing required params: sessionId, message"),
        ("session.send", json!({ "message": "x" }), "Missing required params: sessionId, message"),
        ("session.resume", json!({}), "Missing required param: sessionId"),
        ("session.destroy", json!({}), "Missing required param: sessionId"),
        ("session.set_mode", json!({ "sessionId": id }), "Missing required params: sessionId, mode"),
        ("session.set_mode", json!({ "mode": "auto" }), "Missing required params: sessionId, mode"),
        ("session.set_model", json!({ "sessionId": id }), "Missing required params: sessionId, model"),
        ("session.interrupt", json!({}), "Missing required param: sessionId"),
        ("session.queue_stats", json!({}), "Missing required param: sessionId"),
        ("session.reconnect", json!({}), "Missing required param: sessionId"),
    ];
    for (method, params, text) in cases {
        assert_eq!(host.client().error(method, params.clone()), (-32602, text.into()), "{method} {params}");
    }
    for method in
        ["create", "resume", "destroy", "set_mode", "set_model", "interrupt", "queue_stats", "reconnect"]
    {
        for body in [
            format!("{{\"method\":\"session.{method}\"}}"),
            format!("{{\"method\":\"session.{method}\",\"params\":[]}}"),
        ] {
            let error = json!({ "error": { "code": -32602, "message": "Missing params" } });
            assert_eq!(host.client().post(&body).json(), error, "{body}");
        }
    }
    assert_eq!(host.client().error("session.reconnect", json!({ "sessionId": id, "cursor": "x" })).0, -32602);
    assert_eq!(host.client().error("session.reconnect", json!({ "sessionId": id, "cursor": -1 })).0, -32602);
}

#[test]
fn unknown_sessions_are_reported_like_in_codecast_daemon() {
    let host = Host::start();
    let client = host.client();
    let params = json!({ "sessionId": UNKNOWN, "mode": "auto", "model": "m" });
    for method in ["session.set_mode", "session.set_model", "session.interrupt"] {
        let expected = (-32000, format!("Session not found: {UNKNOWN}"));
        assert_eq!(client.error(method, params.clone()), expected, "{method}");
    }
    assert_eq!(client.error("session.queue_stats", params.clone()), (-32000, "Session not found".into()));
    assert_eq!(client.result("session.destroy", params.clone()), json!({ "ok": false }));
    assert_eq!(client.result("session.resume", params.clone()), json!({ "ok": false, "fallback": false }));
    assert_eq!(client.result("session.reconnect", params), json!({ "bufferedEvents": [] }));
    let live = json!({ "sessionId": UNKNOWN, "cursor": 0 });
    assert_eq!(client.error("session.reconnect", live).0, -32000);
    let events = client.send(UNKNOWN, "hello").rest();
    assert_eq!(events, [json!({ "type": "error", "message": format!("Session not found: {UNKNOWN}") })]);
}

#[test]
fn paths_are_expanded_and_must_be_directories() {
    let host = Host::start();
    let client = host.client();
    std::fs::write(host.path("home/file"), "").unwrap();
    let path = |given: &str| {
        let created = client.result("session.create", json!({ "path": given }));
        host.listed(created["sessionId"].as_str().unwrap())["path"].as_str().unwrap().to_owned()
    };
    assert_eq!(path("named"), host.text("home/Projects/named"));
    assert_eq!(path("~/Projects/named"), host.text("home/Projects/named"));
    assert_eq!(path("~"), host.text("home"));
    assert_eq!(path(&host.text("project")), host.text("project"));
    let error = |given: &str| client.error("session.create", json!({ "path": given }));
    for (given, expanded) in
        [("absent", host.text("home/Projects/absent")), ("/absent/x", "/absent/x".into())]
    {
        let text = format!("Path does not exist on remote machine: {expanded} (resolved from: {given})");
        assert_eq!(error(given), (-32000, text));
    }
    assert!(error("~/file").1.starts_with("Path is not a directory"), "{:?}", error("~/file"));
    assert_eq!(error("~nobody/x").0, -32000);
    // A refused request creates nothing.
    assert!(!host.path("home/Projects/absent").exists());
    assert_eq!(client.result("health.check", json!({}))["sessions"], 4);
}

#[test]
fn skills_are_synced_without_overwriting_or_creating_a_project() {
    let host = Host::start();
    let client = host.client();
    let source = host.path("home/.codecast/skills");
    std::fs::create_dir_all(source.join(".claude/skills/one")).unwrap();
    for name in ["CLAUDE.md", "AGENTS.md", "GEMINI.md", ".claude/skills/one/SKILL.md"] {
        std::fs::write(source.join(name), format!("ours: {name}")).unwrap();
    }
    let read = |name: &str| std::fs::read_to_string(host.path(name)).ok();
    std::fs::write(host.path("project/CLAUDE.md"), "theirs").unwrap();
    host.create();
    assert_eq!(read("project/CLAUDE.md").unwrap(), "theirs");
    assert_eq!(read("project/.claude/skills/one/SKILL.md").unwrap(), "ours: .claude/skills/one/SKILL.md");
    assert_eq!((read("project/AGENTS.md"), read("project/GEMINI.md")), (None, None));
    host.create_with(json!({ "cli_type": "codex" }));
    assert_eq!(read("project/AGENTS.md").unwrap(), "ours: AGENTS.md");
    host.create_with(json!({ "cli_type": "gemini" }));
    assert_eq!(read("project/GEMINI.md").unwrap(), "ours: GEMINI.md");
    client.result("session.create", json!({ "path": "named" }));
    assert_eq!(read("home/Projects/named/CLAUDE.md").unwrap(), "ours: CLAUDE.md");
    client.error("session.create", json!({ "path": "absent" }));
    assert!(!host.path("home/Projects/absent").exists());
}

#[test]
fn set_mode_and_set_model_take_effect_with_the_next_turn() {
    let host = Host::start();
    let client = host.client();
    let id = host.create();
    let mut running = host.run(&id, &["init", "record @first", "wait @go", "result"]);
    host.wait_file("first");
    let set = |method: &str, more: Value| {
        let mut params = json!({ "sessionId": id });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.result(method, params)
    };
    assert_eq!(set("session.set_mode", json!({ "mode": "plan" })), json!({ "ok": true }));
    assert_eq!(set("session.set_model", json!({ "model": "m-2" })), json!({ "ok": true }));
    assert_eq!(
        client.error("session.set_mode", json!({ "sessionId": id, "mode": "x" })),
        (-32000, "Invalid mode".into())
    );
    assert_eq!(json!([host.listed(&id)["mode"], host.listed(&id)["model"]]), json!(["plan", "m-2"]));
    // A queued message runs with the settings at its start.
    assert_eq!(kinds(&host.run(&id, &["init", "record @second", "result"]).rest()), ["queued"]);
    host.touch("go");
    running.rest();
    let argv = |name: &str| host.wait_record(name)["argv"].to_string();
    assert!(argv("first").contains("--dangerously-skip-permissions") && !argv("first").contains("--model"));
    let second = argv("second");
    assert!(
        second.contains("\"--permission-mode\",\"plan\"") && second.contains("\"--model\",\"m-2\""),
        "{second}"
    );
    assert_eq!(set("session.set_model", json!({ "model": null })), json!({ "ok": true }));
    host.run(&id, &["record @third", "result"]).rest();
    assert!(!argv("third").contains("--model"));
}

#[test]
fn resume_sets_the_conversation_of_the_next_turn() {
    let host = Host::start();
    let id = host.create();
    let resumed = host.client().result("session.resume", json!({ "sessionId": id, "sdkSessionId": "sdk-7" }));
    assert_eq!(resumed, json!({ "ok": true, "fallback": false }));
    assert_eq!(host.listed(&id)["sdkSessionId"], "sdk-7");
    let events = host.run(&id, &["record @argv", "init", "session other", "result"]).rest();
    assert!(host.wait_record("argv")["argv"].to_string().contains("\"--resume\",\"sdk-7\""));
    // The id that the CLI reports replaces the resumed one.
    assert_eq!(events.last().unwrap()["session_id"], "other");
    assert_eq!(host.listed(&id)["sdkSessionId"], "other");
    let resumed = host.client().result("session.resume", json!({ "sessionId": id }));
    assert_eq!(resumed, json!({ "ok": true, "fallback": false }));
    assert_eq!(host.listed(&id)["sdkSessionId"], "other");
}

/// The CLI of an earlier turn may still run or exit when another conversation is resumed.
#[test]
fn nemesis_a_running_turn_does_not_undo_a_resume() {
    let host = Host::start();
    let next = |id: &str, conversation: &str, name: &str| {
        host.wait_status(id, "idle");
        assert_eq!(host.listed(id)["sdkSessionId"], conversation);
        host.run(id, &[&format!("record @{name}"), "session later", "result"]).rest();
        let argv = host.wait_record(name)["argv"].to_string();
        assert!(argv.contains(&format!("\"--resume\",\"{conversation}\"")), "{argv}");
        assert_eq!(host.listed(id)["sdkSessionId"], "later", "the id that the CLI reported");
    };
    let resume = |id: &str, conversation: &str| {
        let params = json!({ "sessionId": id, "sdkSessionId": conversation });
        assert_eq!(host.client().result("session.resume", params)["ok"], true);
    };
    let id = host.create();
    let mut stream = host.run(&id, &["init", "wait @go", "result"]);
    stream.event();
    resume(&id, "while-it-runs");
    host.touch("go");
    stream.rest();
    next(&id, "while-it-runs", "first");

    let id = host.create();
    host.run(&id, &["init", "result", "wait @over", "line {}"]).rest();
    resume(&id, "while-it-ends");
    host.touch("over");
    next(&id, "while-it-ends", "second");

    let id = host.create();
    host.run(&id, &["init", "wait @again", "result"]).event();
    resume(&id, "before-the-worker-dies");
    host.daemon().kill(outpost_testkit::Half::Worker);
    host.client().result("health.check", json!({}));
    host.touch("again");
    next(&id, "before-the-worker-dies", "third");
}

#[test]
fn health_has_every_field_of_the_contract() {
    let host = Host::start();
    let client = host.client();
    let whole = client.call("health.check", json!({}));
    // The Head Node reads it at the top level.
    assert_eq!(whole["ok"], true);
    assert!(whole.get("version").is_none(), "with a version, a Head Node would replace the daemon");
    let health = &whole["result"];
    assert_eq!(
        (&health["ok"], &health["sessions"], &health["sessionsByStatus"]),
        (&json!(true), &json!(0), &json!({}))
    );
    assert!(health["uptime"].is_u64() && health["rustVersion"].as_str().unwrap().contains('.'));
    assert!(health["version"].as_str().unwrap().contains('.'));
    assert!(
        ["rss", "heapUsed", "heapTotal"].iter().all(|name| health["memory"][name].as_u64().unwrap() > 0),
        "{health}"
    );
    let pid = u32::try_from(health["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(pid, host.daemon().status().worker_pid);
    let clis = host.wait("the CLIs are found", || {
        let clis = client.result("health.check", json!({}))["clis"].take();
        (clis["opencode"]["found"] == true).then_some(clis)
    });
    for cli in CLIS {
        assert_eq!(clis[cli]["path"], host.text(&format!("bin/{cli}")));
        assert_eq!(clis[cli]["version"], "0.0.1");
    }
    let (id, _idle) = (host.create(), host.create());
    let mut running = host.run(&id, &["init", "wait @go", "result"]);
    running.event();
    let health = client.result("health.check", json!({}));
    assert_eq!(
        (&health["sessions"], &health["sessionsByStatus"]),
        (&json!(2), &json!({ "idle": 1, "busy": 1 }))
    );
    host.touch("go");
    running.rest();
    assert_eq!(client.result("health.check", json!({}))["sessionsByStatus"], json!({ "idle": 2 }));
}

#[test]
fn monitor_has_the_fields_of_list_and_the_queue() {
    let host = Host::start();
    let client = host.client();
    let id = host.create();
    let mut running = host.run(&id, &["init", "wait @go", "result"]);
    running.event();
    host.run(&id, &["result"]).rest();
    let monitor = client.result("monitor.sessions", json!({}));
    assert_eq!(keys(&monitor), ["sessions", "totalSessions", "uptime"]);
    assert_eq!((&monitor["totalSessions"], monitor["uptime"].is_u64()), (&json!(1), true));
    let mut session = monitor["sessions"][0].clone();
    let queue = json!({ "userPending": 1, "responsePending": 0, "clientConnected": true });
    assert_eq!(session["queue"], queue);
    assert_eq!(host.stats(&id), queue);
    session.as_object_mut().unwrap().remove("queue");
    assert_eq!(session, host.listed(&id));
    assert_eq!(session["status"], "busy");
    host.touch("go");
    running.rest();
}

#[test]
fn a_turn_updates_the_activity_time_only() {
    let host = Host::start();
    let id = host.create();
    let before = host.listed(&id);
    host.run(&id, &["result"]).rest();
    let after = host.listed(&id);
    assert_eq!(before["createdAt"], after["createdAt"]);
    assert!(after["lastActivityAt"].as_str() > before["lastActivityAt"].as_str(), "{before} {after}");
}

#[test]
fn destroy_removes_the_session_and_its_files() {
    let host = Host::start();
    let id = host.create();
    host.run(&id, &["result"]).rest();
    let kept = host.path("state/sessions").join(&id);
    assert!(kept.is_dir(), "{}", canonical(&host.path("state")));
    let params = json!({ "sessionId": id });
    assert_eq!(host.client().result("session.destroy", params.clone()), json!({ "ok": true }));
    assert_eq!(host.listed(&id), Value::Null);
    assert_eq!(host.client().result("session.destroy", params), json!({ "ok": false }));
    host.wait("its files are gone", || (!kept.exists()).then_some(()));
}
