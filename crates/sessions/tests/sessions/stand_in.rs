//! Called as `codecast-daemon`: as its Head Node starts it, finds it and ends it.

use crate::kit::{PATIENCE, outpost};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{SessionsClient, install_fake_clis};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct StandIn {
    keeper: Child,
    port: u16,
}

fn command(dir: &Path) -> Command {
    let bin = dir.join("bin");
    let mut command = Command::new(bin.join("codecast-daemon"));
    command.env("HOME", dir.join("home")).env("XDG_STATE_HOME", dir.join("state"));
    command.env("XDG_CONFIG_HOME", dir.join("config")).env("DAEMON_PORT", "0");
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env_remove("DAEMON_BIND");
    // "Head's `codecast start` does pass `--config <path>`".
    command.args(["--config", "somewhere"]).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn prepare() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    install_fake_clis(&dir.path().join("bin"), &["claude"]);
    std::os::unix::fs::symlink(outpost(), dir.path().join("bin/codecast-daemon")).unwrap();
    for name in ["home", "project"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    dir
}

impl StandIn {
    fn start(dir: &Path) -> StandIn {
        let mut keeper = command(dir).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("DAEMON_PORT=")?.parse().ok());
        StandIn { keeper, port: port.expect("no line DAEMON_PORT=") }
    }

    /// As the Head Node connects: without a token, also where the daemon is root's.
    fn client(&self) -> SessionsClient {
        SessionsClient::new(([127, 0, 0, 1], self.port).into())
    }

    /// As `codecast stop` does it. Whether it ended.
    fn end(&mut self) -> bool {
        let Ok(keeper) = outpost_testkit::process(i32::try_from(self.keeper.id()).unwrap()) else {
            return true;
        };
        let _gone = pidfd::signal(&keeper, Signal::TERM);
        let ended = wait_readable(&keeper, PATIENCE).unwrap_or(false);
        if ended {
            self.keeper.wait().unwrap();
        }
        ended
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn it_says_its_port_serves_and_takes_its_files_along() {
    let dir = prepare();
    let mut daemon = StandIn::start(dir.path());
    let file = dir.path().join("home/.codecast/daemon.port");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), daemon.port.to_string());
    let health = daemon.client().call("health.check", json!({}));
    assert_eq!((&health["ok"], &health["result"]["ok"]), (&json!(true), &json!(true)));
    let words = std::fs::read_to_string(format!("/proc/{}/cmdline", health["result"]["pid"])).unwrap();
    assert!(words.starts_with("codecast-daemon\0"), "nobody would find {words:?}");
    let second = command(dir.path()).output().unwrap();
    assert!(second.status.success());
    assert_eq!(String::from_utf8(second.stdout).unwrap(), format!("DAEMON_PORT={}\n", daemon.port));
    assert!(daemon.end());
    assert!(!file.exists());
}

#[test]
fn its_sessions_outlive_it() {
    let dir = prepare();
    let mut daemon = StandIn::start(dir.path());
    let params = json!({ "path": dir.path().join("project") });
    let id = daemon.client().result("session.create", params)["sessionId"].as_str().unwrap().to_owned();
    let events = daemon.client().send(&id, "echo:hello").rest();
    assert_eq!(events.last().unwrap()["type"], "result", "{events:?}");
    assert!(daemon.end());
    let daemon = StandIn::start(dir.path());
    let listed = daemon.client().result("session.list", json!({}));
    assert_eq!(listed["sessions"][0]["sessionId"], id.as_str());
    let again = daemon.client().attach(&id, 0).rest();
    assert_eq!(again, events);
}

#[test]
fn its_version_is_told() {
    let dir = prepare();
    let said = command(dir.path()).arg("--version").output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success() && text.starts_with("codecast-daemon "), "{text}");
}
