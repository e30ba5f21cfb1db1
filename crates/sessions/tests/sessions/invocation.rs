//! How the CLIs are invoked: arguments by mode and model, environment, directory, long and unusual prompts.

use crate::kit::{CLIS, Host, canonical, kinds, terminal_event};
use serde_json::{Value, json};

fn argv(record: &Value) -> Vec<String> {
    record["argv"].as_array().unwrap()[1..].iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn has(argv: &[String], wanted: &[&str]) -> bool {
    argv.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn claude_is_invoked_like_by_codecast_daemon_with_its_real_modes() {
    let host = Host::start();
    let expected: [(&str, &[&str]); 4] = [
        ("auto", &["--dangerously-skip-permissions"]),
        ("code", &["--permission-mode", "acceptEdits"]),
        ("plan", &["--permission-mode", "plan"]),
        ("ask", &["--permission-mode", "default"]),
    ];
    for (mode, flags) in expected {
        let id = host.create_with(json!({ "mode": mode, "model": "m-1" }));
        let steps = [&format!("record @{mode}"), "init", "result"];
        host.run(&id, &steps).rest();
        let argv = argv(&host.wait_record(mode));
        assert!(has(&argv, flags) && has(&argv, &["--model", "m-1"]), "{mode}: {argv:?}");
        assert_eq!(argv[0], "-p");
        let always = ["--output-format", "stream-json", "--include-partial-messages", "--verbose"];
        assert!(has(&argv, &always), "{argv:?}");
        assert_eq!(
            argv.iter().filter(|word| word.contains("permission")).count(),
            if mode == "ask" { 2 } else { 1 }
        );
        assert_eq!(has(&argv, &["--input-format", "stream-json"]), mode == "ask");
    }
}

#[test]
fn the_next_turn_resumes_the_conversation_of_the_one_before() {
    let host = Host::start();
    let id = host.create();
    host.run(&id, &["record @first", "init", "session mine", "result"]).rest();
    host.run(&id, &["record @second", "init", "result"]).rest();
    assert!(!argv(&host.wait_record("first")).contains(&"--resume".to_owned()));
    assert!(has(&argv(&host.wait_record("second")), &["--resume", "mine"]));
}

#[test]
fn each_cli_runs_in_the_project_with_the_daemons_environment() {
    let host = Host::start_with(
        "[sessions.claude]\nenv = { OWN = \"x\", TERM = \"vt100\" }\ndrop_env = [\"SECRET\"]\n",
        &[("SECRET", "s"), ("KEPT", "k"), ("CLAUDECODE", "1")],
    );
    for cli in CLIS {
        let id = host.create_with(json!({ "cli_type": cli }));
        // The fake speaks claude's format only, so the events of other CLIs are not checked here.
        host.run(&id, &[&format!("record @{cli}")]).rest();
        let record = host.wait_record(cli);
        assert_eq!(record["cwd"], canonical(&host.path("project")), "{cli}");
        let env = &record["env"];
        assert_eq!(env["KEPT"], "k");
        assert_eq!(env.get("CLAUDECODE"), None, "the CLI would take itself for a child of claude");
        assert_eq!(env["HOME"], host.text("home"));
        let is_claude = cli == "claude";
        assert_eq!(env.get("SECRET").is_none(), is_claude, "{cli}");
        assert_eq!(env["TERM"], if is_claude { "vt100" } else { "dumb" });
        assert_eq!(env.get("OWN"), is_claude.then(|| json!("x")).as_ref());
    }
}

#[test]
fn prompts_that_look_like_options_or_exceed_argument_limits_arrive() {
    let host = Host::start();
    let awkward = [
        format!("--help\n{}", host.script(&["record @0", "init", "result"])),
        format!("{}\n{}", host.script(&["record @1", "init", "result"]), "# ".repeat(300_000)),
        "-p".to_owned(),
    ];
    for (number, prompt) in awkward.iter().enumerate() {
        let id = host.create();
        let events = host.client().send(&id, prompt).rest();
        let last = terminal_event(&events, 1);
        if number == 2 {
            assert_eq!(
                (last["type"].as_str(), &events[2]["content"]),
                (Some("result"), &json!("-p")),
                "{events:?}"
            );
        }
    }
}

#[test]
fn a_long_prompt_arrives_complete() {
    let host = Host::start();
    let id = host.create();
    let steps = [vec!["record @it", "init", "result"], vec![""; 200_000]].concat();
    let prompt = host.script(&steps);
    let events = host.client().send(&id, &prompt).rest();
    assert_eq!(kinds(&events), ["system", "result"]);
    assert_eq!(host.wait_record("it")["stdin"], json!(prompt));
}

/// Every user of the host can read the arguments of a process.
#[test]
fn no_agent_has_the_message_in_its_arguments() {
    let host = Host::start();
    for (cli, mode) in CLIS.iter().flat_map(|cli| ["auto", "code", "plan", "ask"].map(|mode| (cli, mode))) {
        let id = host.create_with(json!({ "cli_type": cli, "mode": mode }));
        let name = format!("{cli}-{mode}");
        host.run(&id, &[&format!("record @{name}"), "line secret-word", "result"]).rest();
        let record = host.wait_record(&name);
        assert!(!record["argv"].to_string().contains("secret-word"), "{cli} {mode}: {record}");
        assert!(!record["env"].to_string().contains("secret-word"), "{cli} {mode}: {record}");
        assert!(record["stdin"].to_string().contains("secret-word"), "{cli} {mode}: {record}");
    }
}

#[test]
fn a_missing_cli_is_reported_with_a_hint() {
    let host = Host::start();
    for cli in CLIS {
        std::fs::remove_file(host.path("bin").join(cli)).unwrap();
        let id = host.create_with(json!({ "cli_type": cli }));
        let events = host.client().send(&id, "hello").rest();
        let error = terminal_event(&events, 1);
        let text = format!("Failed to spawn {cli}: No such file or directory (os error 2)");
        assert!(error["message"].as_str().unwrap().starts_with(&text), "{error}");
        assert_eq!((error["type"].as_str(), error["cli"].as_str()), (Some("error"), Some(cli)));
        assert!(error["hint"].as_str().unwrap().contains("install"), "{error}");
        // The session is still usable: a CLI in the home directory is found and runs.
        std::fs::create_dir_all(host.path("home/.local/bin")).unwrap();
        let fake = std::fs::canonicalize(host.path("bin/opencode"));
        if let Ok(fake) = fake {
            std::os::unix::fs::symlink(fake, host.path("home/.local/bin").join(cli)).unwrap();
            host.run(&id, &[&format!("touch @{cli}-ran")]).rest();
            assert!(host.path(&format!("{cli}-ran")).exists());
        }
    }
}

#[test]
fn a_configured_program_takes_precedence_over_path() {
    let host = Host::start();
    let fake = std::fs::canonicalize(host.path("bin/claude")).unwrap();
    let named = host.path("named-claude");
    std::os::unix::fs::symlink(fake, &named).unwrap();
    let config = format!("[sessions.claude]\nprogram = {:?}\n", named.display().to_string());
    let host = Host::start_with(&config, &[]);
    let id = host.create();
    host.run(&id, &["record @it", "result"]).rest();
    assert_eq!(host.wait_record("it")["argv"][0], json!(named));
}
