//! Children find what a person would find who has logged in.

use super::{Follower, PATIENCE, until};
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
fn programs_of_the_login_path_are_found_by_the_first_process_already() {
    let relay = Relay::prepare();
    let tools = relay.path("tools");
    write_program(&tools.join("greet"), "#!/bin/sh\necho \"$PATH\"\n");
    // Start files talk, fail and set things; only PATH is taken.
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
    // What a request says about PATH counts for the child, not for where its program is.
    let params = json!({"id": "q", "command": "greet", "env": {"PATH": "/nowhere"}});
    assert_eq!(client.call("process.spawn", &params.to_string()), r#""result":{"success":true}"#);
    let mut follower = Follower::new(&relay.socket(), "q");
    assert_eq!((follower.read_to_exit(), follower.text()), (0, "/nowhere\n"));
    relay.kill(outpost_testkit::Which::Worker);
    relay.connect().call("process.spawn", r#"{"id":"r","command":"greet"}"#);
    let mut follower = Follower::new(&relay.socket(), "r");
    assert_eq!((follower.read_to_exit(), follower.text()), (0, path.as_str()), "after another worker came");
}

#[test]
fn a_login_shell_that_hangs_delays_the_first_process_a_little_and_nothing_else() {
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
            assert!(begun.elapsed() < Duration::from_secs(4), "these waited for the shell: {answers:?}");
        }
    }
    assert_eq!(answers[0], format!(r#"{{"jsonrpc":"2.0","id":{ping},"result":{{"pong":true}}}}"#));
    assert_eq!(answers[1], format!(r#"{{"jsonrpc":"2.0","id":{spawn},"result":{{"success":true}}}}"#));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
    let begun = Instant::now();
    client.call("process.spawn", r#"{"id":"q","command":"true"}"#);
    assert!(begun.elapsed() < Duration::from_secs(3), "only the first one waits");
    let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
    let hanging = || {
        let marked = procfs::all().into_iter().filter(|stat| stat.state != b'Z');
        let marked = marked.filter(|stat| procfs::has_environment(stat.pid, marker.as_bytes()));
        let line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        marked.filter(|stat| line(stat.pid).windows(4).any(|text| text == b"4242")).count()
    };
    until("the shell and what it started are gone", || hanging() == 0);
    assert!(begun.elapsed() < PATIENCE);
}
