//! Tests of parsing, of error messages, and of merging the file with flags.

use super::file::check;
use super::*;
use outpost_control::wire::SettingSource;

/// The example file with every commented key enabled.
fn example() -> Config {
    check(&example_text()).unwrap()
}

fn example_text() -> String {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let uncomment = |line: &'static str| {
        let key = line.strip_prefix("# ");
        key.filter(|key| key.split_once(" = ").is_some_and(|(name, _)| is_name(name))).unwrap_or(line)
    };
    let text: Vec<&str> =
        include_str!("../../../../docs/outpost.example.toml").lines().map(uncomment).collect();
    text.join("\n")
}

fn effective(text: &str, flags: &Config) -> Result<Effective, String> {
    Effective::new(Path::new("outpost.toml"), text, flags, Path::new("/state"))
}

#[test]
fn the_example_has_every_key_and_its_defaults_are_the_defaults() {
    let config = example();
    let text = format!("{config:?}");
    assert!(!text.contains("None"), "{text}");
    let default = Config::defaults(Path::new("/state"));
    assert_eq!(config.processes, default.processes);
    assert_eq!(config.log, default.log);
    // These have no default; the rules are files of this host.
    let broker = Broker {
        askpass: None,
        cpu_seconds_max: None,
        memory_bytes_max: None,
        file_bytes_max: None,
        ..config.broker
    };
    assert_eq!(broker, default.broker);
    assert_eq!(config.sessions.listen, default.sessions.listen);
    let times = |of: &Sessions| (of.turn_timeout_s, of.silence_timeout_s, of.ask_timeout_s, of.sessions_max);
    assert_eq!(times(&config.sessions), times(&default.sessions));
}

#[test]
fn every_error_has_its_line_and_column_and_a_suggestion() {
    let rows = [
        (
            "[broker]\nask_timeout = 5\n",
            "outpost.toml: line 2, column 1: unknown key ask_timeout; do you mean ask_timeout_s?",
        ),
        ("[sesions]\n", "outpost.toml: line 1, column 2: unknown key sesions; do you mean sessions?"),
        ("[sessions.claude]\nprogramm = 1\n", "line 2, column 1: unknown key programm; do you mean program?"),
        ("[sessions.gpt]\n", "line 1, column 11: unknown key gpt"),
        ("[broker]\nask_timeout_s = \"x\"\n", "line 2, column 17: invalid type"),
        ("[broker\n", "line 1, column 8"),
        ("[exec]\nwebsocket = \"10.0.0.1:80\"\n", "not a loopback address"),
        ("[log]\nlevel = \"=\"\n", "[log] level"),
        ("[sessions]\ntls_key = \"/k\"\n", "tls_cert and tls_key go together"),
        ("[approvals]\napprovers = [\"alice\"]\n", "set `socket`"),
    ];
    for (text, expected) in rows {
        let error = effective(text, &Config::default()).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let both = effective("a = 1\n[log]\nb = 2\n", &Config::default()).unwrap_err();
    assert_eq!(both.lines().count(), 2, "{both}");
}

#[test]
fn flags_override_the_file_and_the_file_overrides_defaults() {
    let flags =
        Config { broker: Broker { ask_timeout_s: Some(7), ..Broker::default() }, ..Config::default() };
    let text =
        "[broker]\nask_timeout_s = 8\nrun_timeout_s = 9\n[sessions.claude]\nenv = { KEY = \"s3cret\" }\n";
    let effective = effective(text, &flags).unwrap();
    let broker = &effective.config.broker;
    assert_eq!((broker.ask_timeout_s, broker.run_timeout_s, broker.stages_max), (Some(7), Some(9), Some(32)));
    let shown = effective.redacted("outpost.toml".into()).settings;
    let source = |key: &str| shown.iter().find(|row| row.key == key).unwrap().source;
    assert_eq!(source("broker.ask_timeout_s"), SettingSource::Flag);
    assert_eq!(source("broker.run_timeout_s"), SettingSource::File);
    assert_eq!(source("broker.stages_max"), SettingSource::Default);
    let text = format!("{shown:?}");
    assert!(text.contains("KEY") && !text.contains("s3cret"), "{text}");
    assert_eq!(effective.config.sessions.claude.env.as_ref().unwrap()["KEY"], "s3cret");
}

#[test]
fn a_reload_lists_changed_keys_and_keeps_those_that_need_a_restart() {
    let old = effective("", &Config::default()).unwrap();
    let new =
        effective("[broker]\nask_timeout_s = 8\n[sessions]\nlisten = \"127.0.0.1:1\"\n", &Config::default());
    let new = new.unwrap();
    assert_eq!(old.changes(&new), ["broker.ask_timeout_s", "sessions.listen"]);
    let applied = new.with_fixed_keys_of(&old).unwrap();
    assert_eq!(applied.config.sessions.listen, old.config.sessions.listen);
    assert_eq!(applied.config.broker.ask_timeout_s, Some(8));
    assert_eq!(applied.changes(&new), ["sessions.listen"], "the next reload reports it again");
}

#[test]
fn a_file_that_others_can_write_is_refused_and_a_missing_file_is_none() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outpost.toml");
    assert_eq!(read(&file), Ok(None));
    std::fs::write(&file, "x").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(read(&file), Ok(Some("x".into())));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o664)).unwrap();
    assert!(read(&file).unwrap_err().contains("chmod go-w"));
}
