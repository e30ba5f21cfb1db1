//! Children are started with the PATH of the login shell.

use super::{Follower, TIMEOUT, wait_until};
use outpost_sys::procfs;
use outpost_testkit::{Relay, TOKEN};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_first_spawn_already_uses_the_login_path() {
    let relay = Relay::prepare();
    let tools = relay.path("tools");
    write_program(&tools.join("greet"), "#!/bin/sh\necho \"$PATH\"\n");
    // Startup files print, fail and set variables. Only PATH is used.
    let profile = format!("echo welcome\nfalse\nexport FROM_PROFILE=1\nPATH={}:$PATH\n", tools.display());
    fs::write(relay.path(".profile"), profile).unwrap();
    relay.serve(&[]);
    let mut client = relay.connect();
    assert_eq!(
        client.call("process.spawn", r#"{"id":"p","command":"greet"}"#),
        r#""result":{"success":true}"#
    );
    let mut follower = Follower::new(&relay.socket(), "p");
    assert_eq!(follower.read_to_exit(), 0);
    let path = follower.text().to_owned();
    assert!(path.starts_with(&format!("{}:", tools.display())), "{path:?}");
    // PATH in the request's env applies to the child, not to the lookup of its program.
    let params = json!({"id": "q", "command": "greet", "env": {"PATH": "/nowhere"}});
    assert_eq!(client.call("process.spawn", &params.to_string()), r#""result":{"success":true}"#);
    let mut follower = Follower::new(&relay.socket(), "q");
    assert_eq!((follower.read_to_exit(), follower.text()), (0, "/nowhere\n"));
    relay.kill(outpost_testkit::Half::Worker);
    relay.connect().call("process.spawn", r#"{"id":"r","command":"greet"}"#);
    let mut follower = Follower::new(&relay.socket(), "r");
    assert_eq!((follower.read_to_exit(), follower.text()), (0, path.as_str()), "in the next worker");
}

#[test]
fn a_hanging_login_shell_delays_only_the_first_spawn() {
    let relay = Relay::prepare();
    let shell = relay.path("shell");
    write_program(&shell, "#!/bin/sh\nsleep 4242 &\nexec sleep 4242\n");
    let begun = Instant::now();
    let served = relay.serve_command(TOKEN, &[]).env("SHELL", &shell).output().unwrap();
    assert!(served.status.success(), "{served:?}");
    let (mut client, mut other) = (relay.connect(), relay.connect());
    let spawn = client.request("process.spawn", r#"{"id":"p","command":"true"}"#);
    let ping = client.request("server.ping", "");
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(client.line());
        if answers.len() == 1 {
            assert_eq!(other.call("server.ping", ""), r#""result":{"pong":true}"#);
            let stat = format!(r#"{{"path":"{}"}}"#, relay.dir().display());
            assert!(other.call("files.stat", &stat).contains(r#""exists":true"#));
            assert!(
                begun.elapsed() < Duration::from_secs(4),
                "other requests waited for the shell: {answers:?}"
            );
        }
    }
    assert_eq!(answers[0], format!(r#"{{"jsonrpc":"2.0","id":{ping},"result":{{"pong":true}}}}"#));
    assert_eq!(answers[1], format!(r#"{{"jsonrpc":"2.0","id":{spawn},"result":{{"success":true}}}}"#));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
    let begun = Instant::now();
    client.call("process.spawn", r#"{"id":"q","command":"true"}"#);
    assert!(begun.elapsed() < Duration::from_secs(3), "only the first spawn waits");
    let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
    let hanging = || {
        let marked = procfs::all().into_iter().filter(|stat| stat.state != b'Z');
        let marked = marked.filter(|stat| procfs::has_environment(stat.pid, marker.as_bytes()));
        let line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        marked.filter(|stat| line(stat.pid).windows(4).any(|text| text == b"4242")).count()
    };
    wait_until("the shell and its descendants are gone", || hanging() == 0);
    assert!(begun.elapsed() < TIMEOUT);
}
