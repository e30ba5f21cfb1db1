//! Outpost as `codecast-daemon`: codecast's Head Node starts it, finds it and stops it.

use crate::kit::{TIMEOUT, outpost};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{SessionsClient, install_fake_clis};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct CodecastDaemon {
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

impl CodecastDaemon {
    fn start(dir: &Path) -> CodecastDaemon {
        let mut keeper = command(dir).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("DAEMON_PORT=")?.parse().ok());
        CodecastDaemon { keeper, port: port.expect("no line DAEMON_PORT=") }
    }

    /// Connects like the Head Node: without a token, also if the daemon runs as root.
    fn client(&self) -> SessionsClient {
        SessionsClient::new(([127, 0, 0, 1], self.port).into())
    }

    /// Stops the daemon like `codecast stop`. Returns whether it exited.
    fn stop(&mut self) -> bool {
        let Ok(keeper) = outpost_testkit::process(i32::try_from(self.keeper.id()).unwrap()) else {
            return true;
        };
        let _gone = pidfd::signal(&keeper, Signal::TERM);
        let ended = wait_readable(&keeper, TIMEOUT).unwrap_or(false);
        if ended {
            self.keeper.wait().unwrap();
        }
        ended
    }
}

impl Drop for CodecastDaemon {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn it_prints_its_port_serves_and_removes_its_files() {
    let dir = prepare();
    let mut daemon = CodecastDaemon::start(dir.path());
    let file = dir.path().join("home/.codecast/daemon.port");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), daemon.port.to_string());
    let health = daemon.client().call("health.check", json!({}));
    assert_eq!((&health["ok"], &health["result"]["ok"]), (&json!(true), &json!(true)));
    let cmdline = std::fs::read_to_string(format!("/proc/{}/cmdline", health["result"]["pid"])).unwrap();
    assert!(
        cmdline.starts_with("codecast-daemon\0"),
        "the Head Node finds the daemon by this name: {cmdline:?}"
    );
    let second = command(dir.path()).output().unwrap();
    assert!(second.status.success());
    assert_eq!(String::from_utf8(second.stdout).unwrap(), format!("DAEMON_PORT={}\n", daemon.port));
    assert!(daemon.stop());
    assert!(!file.exists());
}

#[test]
fn sessions_survive_a_restart() {
    let dir = prepare();
    let mut daemon = CodecastDaemon::start(dir.path());
    let params = json!({ "path": dir.path().join("project") });
    let id = daemon.client().result("session.create", params)["sessionId"].as_str().unwrap().to_owned();
    let events = daemon.client().send(&id, "echo:hello").rest();
    assert_eq!(events.last().unwrap()["type"], "result", "{events:?}");
    assert!(daemon.stop());
    let daemon = CodecastDaemon::start(dir.path());
    let listed = daemon.client().result("session.list", json!({}));
    assert_eq!(listed["sessions"][0]["sessionId"], id.as_str());
    let again = daemon.client().attach(&id, 0).rest();
    assert_eq!(again, events);
}

#[test]
fn the_version_is_printed() {
    let dir = prepare();
    let printed = command(dir.path()).arg("--version").output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.status.success() && text.starts_with("codecast-daemon "), "{text}");
}
