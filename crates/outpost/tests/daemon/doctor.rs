//! `outpost doctor`, and the redaction of secrets in all output.

use crate::support::{outpost, read, sh};
use outpost_testkit::Daemon;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments);
    command.env("XDG_CONFIG_HOME", dir.join("config")).env("HOME", dir).envs(variables.iter().copied());
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn checks(report: &Value) -> impl Iterator<Item = &Value> {
    report["groups"].as_array().unwrap().iter().flat_map(|group| group["checks"].as_array().unwrap())
}

#[test]
fn every_check_has_a_verdict_and_every_problem_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["doctor", "--json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = checks(&report).map(|check| check["name"].as_str().unwrap()).collect();
    for name in [
        "kernel",
        "namespaces",
        "landlock",
        "seccomp",
        "cgroups",
        "pipes",
        "descriptors",
        "processes",
        "inotify",
        "sudo",
        "git",
        "claude",
        "codex",
        "gemini",
        "opencode",
        "config",
        "state",
        "runtime",
        "disk",
        "daemon",
        "systemd",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for check in checks(&report) {
        let is_ok = check["verdict"] == "ok";
        assert_eq!(check["fix"].is_string(), !is_ok, "{check}");
        assert_eq!(check["effect"].is_string(), !is_ok, "{check}");
    }
    let is_error = checks(&report).any(|check| check["verdict"] == "error");
    assert_eq!(output.status.code(), Some(i32::from(is_error)), "{report}");
    std::fs::create_dir_all(dir.path().join("config/outpost")).unwrap();
    std::fs::write(dir.path().join("config/outpost/outpost.toml"), "[brokr]\n").unwrap();
    let output = run(dir.path(), &["doctor"], &[]);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error     config") && text.contains("fix: outpost config check"), "{text}");
}

#[test]
fn secrets_are_in_no_log_and_no_output() {
    const IN_ENVIRONMENT: &str = "planted-in-the-environment";
    const IN_CONFIG: &str = "planted-in-the-configuration";
    const AS_BEARER: &str = "planted-as-a-bearer-token";
    const AS_PASSWORD: &str = "planted-as-a-password";
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("outpost.toml");
    std::fs::write(
        &config,
        format!(
            "[log]\nlevel = \"trace\"\n[sessions.claude]\nenv = {{ ANTHROPIC_API_KEY = \"{IN_CONFIG}\" }}\n\
             [approvals]\nnotify = [\"/bin/true\", \"Authorization: Bearer {AS_BEARER}\"]\n"
        ),
    )
    .unwrap();
    let variables = [("OPENAI_API_KEY", IN_ENVIRONMENT), ("SUDO_PASSWORD", AS_PASSWORD)];
    let mut serve = Command::new(outpost());
    serve.envs(variables);
    let config = config.to_str().unwrap();
    let daemon = Daemon::start_by(serve, tempfile::tempdir().unwrap(), &["--config", config]);
    // The child gets the variable and may print it: only readers of its output see that.
    let script = "echo $OPENAI_API_KEY; read line";
    let process = sh(&daemon, "p", script).process;
    assert!(read(&daemon, &process, 8).0.starts_with(b"planted-"));
    // An error message would quote the invalid value.
    std::fs::write(config, format!("[log]\nlevel = \"OPENAI_API_KEY={IN_ENVIRONMENT}\"\n")).unwrap();
    let mut outputs = Vec::new();
    for arguments in [
        &["reload"][..],
        &["config", "show"],
        &["config", "show", "--json"],
        &["config", "check", "--config", config],
        &["status"],
        &["status", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["kill", AS_PASSWORD],
    ] {
        outputs.push((
            arguments.join(" ").replace(AS_PASSWORD, ""),
            output_text(&run(daemon.dir(), arguments, &variables)),
        ));
    }
    outputs.push(("log".into(), daemon.log()));
    outputs.push(("files".into(), files(&daemon.dir().join("state/approvals"))));
    let shown = outputs.iter().find(|(name, _)| name == "config show").unwrap();
    assert!(shown.1.contains("\"ANTHROPIC_API_KEY\" = \"[redacted]\""), "{}", shown.1);
    assert!(shown.1.contains("Bearer [redacted]"), "{}", shown.1);
    for (name, text) in &outputs {
        assert!(!text.is_empty(), "{name} is empty");
        for secret in [IN_ENVIRONMENT, IN_CONFIG, AS_BEARER, AS_PASSWORD] {
            assert!(!text.contains(secret), "{secret} is in {name}: {text}");
        }
    }
}

/// The contents of all files below a directory.
fn files(dir: &Path) -> String {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let text = |path: std::path::PathBuf| match path.is_dir() {
        true => files(&path),
        false => String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned(),
    };
    entries.map(|entry| text(entry.path())).collect()
}
