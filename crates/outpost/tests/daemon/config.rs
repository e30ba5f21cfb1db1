//! The configuration: check, display, and reload in a running daemon.

use crate::support::{outpost, read, sh};
use outpost_control::client::CallError;
use outpost_control::wire::{Attach, Attached, Spawn, Spawned};
use outpost_sys::signal::Signal;
use outpost_testkit::{Daemon, Half};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Configured {
    daemon: Daemon,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Configured {
    fn new(text: &str) -> Configured {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("outpost.toml");
        std::fs::write(&file, text).unwrap();
        let daemon = Daemon::start_with(outpost(), &["--config", file.to_str().unwrap()]);
        Configured { daemon, file, _dir: dir }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.file, text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(self.daemon.dir(), arguments)
    }

    /// Waits until the log contains this text.
    fn wait_for_log(&self, text: &str) {
        let started = Instant::now();
        while !self.daemon.log().contains(text) {
            assert!(started.elapsed() < Duration::from_secs(30), "{text:?} is not in {}", self.daemon.log());
            outpost_testkit::pause();
        }
    }

    fn spawn(&self, id: &str) -> Result<Spawned, CallError> {
        let command = ["/bin/sleep", "1000"].map(Into::into).to_vec();
        self.daemon.connect().call("spawn", &Spawn { id: id.into(), command, ..Spawn::default() })
    }
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(outpost());
    command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments);
    command.env("XDG_CONFIG_HOME", dir.join("config")).current_dir(dir).stdin(Stdio::null());
    command.output().unwrap()
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_reload_applies_to_new_work_and_drops_no_connection() {
    let it = Configured::new("[processes]\nrunning_max = 100\n");
    let process = sh(&it.daemon, "p", "echo before; read line; echo after").process;
    let mut reader = it.daemon.connect();
    let attach = Attach { process: process.clone(), ..Attach::default() };
    let _attached: Attached = reader.call("attach", &attach).unwrap();
    let before = it.daemon.status();
    it.write("[processes]\nrunning_max = 1\n[sessions]\nlisten = \"127.0.0.1:1\"\n");
    let reloaded = it.run(&["reload"]);
    let text = output_text(&reloaded);
    assert!(reloaded.status.success(), "{text}");
    assert!(text.contains("applied: processes.running_max"), "{text}");
    // A flag sets this key, so the file does not change it.
    assert!(!text.contains("sessions.listen"), "{text}");
    assert!(matches!(it.spawn("q"), Err(CallError::Refused(failure)) if failure.kind == "busy"));
    assert_eq!(it.daemon.status().worker_pid, before.worker_pid);
    let stdin = serde_json::json!({"process": process, "offset": null, "data": "Cg=="});
    it.daemon.connect().call::<serde_json::Value>("stdin", &stdin).unwrap();
    let mut output = Vec::new();
    while let Ok(message) = reader.receive() {
        output.extend(
            message.data.and_then(|data| outpost_wire::base64::decode(data.as_bytes())).unwrap_or_default(),
        );
        if message.exit.is_some() {
            break;
        }
    }
    assert_eq!(String::from_utf8_lossy(&output), "before\nafter\n", "the connection from before the reload");
    let shown = output_text(&it.run(&["config", "show"]));
    assert!(shown.contains("of the running daemon"), "{shown}");
    let row = |key: &str, source: &str| {
        shown.lines().any(|line| line.starts_with(key) && line.ends_with(&format!("# {source}")))
    };
    assert!(row("running_max = 1 ", "file") && row("ended_max = 4096", "default"), "{shown}");
    assert!(row("listen = \"127.0.0.1:0\"", "flag"), "{shown}");
}

#[test]
fn an_invalid_file_changes_nothing_also_for_the_next_worker() {
    let it = Configured::new("[processes]\nrunning_max = 1\n");
    it.spawn("p").unwrap();
    it.write("[processes]\nruning_max = 5\n");
    let refused = it.run(&["reload"]);
    let place = "line 2, column 1: unknown key runing_max; do you mean running_max?";
    assert!(!refused.status.success() && output_text(&refused).contains(place), "{refused:?}");
    assert!(it.daemon.log().contains("the configuration is unchanged"), "{}", it.daemon.log());
    it.daemon.kill(Half::Worker);
    assert!(matches!(it.spawn("q"), Err(CallError::Refused(failure)) if failure.kind == "busy"));
    // SIGHUP does the same as the command.
    it.write("[processes]\nrunning_max = 5\n[exec]\nwebsocket = \"127.0.0.1:0\"\n");
    outpost_sys::pidfd::signal(it.daemon.keeper(), Signal::HUP).unwrap();
    it.wait_for_log("change only when the daemon restarts");
    assert!(it.daemon.log().contains("exec.websocket"), "{}", it.daemon.log());
    it.spawn("q").unwrap();
    it.daemon.kill(Half::Worker);
    it.spawn("r").unwrap();
}

#[test]
fn a_file_is_checked_without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outpost.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(dir.path(), &["config", "check", "--config", "outpost.toml"])
    };
    let good = check(include_str!("../../../../docs/outpost.example.toml"));
    assert!(good.status.success() && output_text(&good).contains("no errors"), "{good:?}");
    let bad = check("[broker]\nask_timeout = 1\n[sesions]\n");
    let text = output_text(&bad);
    assert_eq!(bad.status.code(), Some(1), "{text}");
    assert!(text.contains("line 2, column 1: unknown key ask_timeout; do you mean ask_timeout_s?"), "{text}");
    assert!(text.contains("line 3, column 2: unknown key sesions; do you mean sessions?"), "{text}");
    let missing = run(dir.path(), &["config", "check", "--config", "none.toml"]);
    assert!(
        !missing.status.success() && output_text(&missing).contains("config file not found"),
        "{missing:?}"
    );
    let default = run(dir.path(), &["config", "check"]);
    assert!(default.status.success() && output_text(&default).contains("the defaults apply"), "{default:?}");
    let served = run(dir.path(), &["serve", "--config", "outpost.toml"]);
    assert!(!served.status.success() && output_text(&served).contains("line 2, column 1"), "{served:?}");
}

#[test]
fn a_reload_changes_the_log_format() {
    let it = Configured::new("[log]\nformat = \"json\"\n");
    assert!(it.run(&["reload"]).status.success());
    let log = it.daemon.log();
    let line = log.lines().find(|line| line.contains("was reloaded")).unwrap_or_else(|| panic!("{log}"));
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["level"], &line["target"]),
        (&"info".into(), &"outpost::daemon::live_config".into()),
        "{line}"
    );
    assert!(line["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{line}");
    it.write("[log]\nformat = \"journald\"\n");
    assert!(it.run(&["reload"]).status.success());
    let log = it.daemon.log();
    assert!(
        log.lines()
            .any(|line| line.starts_with("<6>outpost::daemon::live_config: the configuration was reloaded")),
        "{log}"
    );
    it.write("[log]\nformat = \"journald\"\nlevel = \"error\"\n");
    assert!(it.run(&["reload"]).status.success());
    assert_eq!(it.daemon.log(), log, "later lines are below the level");
}

#[test]
fn a_reload_changes_the_retention_of_exited_processes() {
    let it = Configured::new("");
    let process = sh(&it.daemon, "p", "echo x").process;
    read(&it.daemon, &process, usize::MAX);
    it.write("[processes]\nended_kept_s = 0\n");
    assert!(it.run(&["reload"]).status.success());
    let started = Instant::now();
    while !it.daemon.list().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", it.daemon.list());
        outpost_testkit::pause();
    }
}
