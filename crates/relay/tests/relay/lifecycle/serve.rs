//! `-serve`: the state when the launcher returns, and obstacles at the socket path.

use super::{Follower, assert_exits, daemon_pidfds, in_shell, is_alive, spawn_sh, stop, text};
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{Relay, RelayClient, TOKEN, require};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

const PONG: &str = r#""result":{"pong":true}"#;

fn bind_error(relay: &Relay, reason: &str) -> String {
    format!("claustrum: listen unix: listen unix {}: bind: {reason}\n", relay.socket().display())
}

#[test]
fn the_launcher_returns_when_the_daemon_serves_in_its_own_session() {
    let relay = Relay::prepare();
    let mut serve = relay.serve_command(TOKEN, &[]);
    let launcher = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let launcher_pid = launcher.id().cast_signed();
    let output = launcher.wait_with_output().unwrap();
    let banner = format!("Claustrum remote server listening on {}\n", relay.socket().display());
    let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(outcome, (Some(0), banner.as_str(), ""));
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
    let keeper = relay.status().unwrap().keeper_pid.cast_signed();
    let stat = procfs::stat(keeper).unwrap();
    assert_eq!((stat.session, stat.group), (keeper, keeper));
    assert!(stat.parent != launcher_pid && stat.parent != std::process::id().cast_signed(), "{stat:?}");
    // The seventh field of stat is the terminal.
    let line = fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let terminal = line.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(4).unwrap();
    assert_eq!(terminal, "0");
    let child = spawn_sh(&mut relay.connect(), "p", "exec sleep 1000");
    assert_eq!(procfs::stat(child).unwrap().group, child);
}

#[test]
fn the_daemon_holds_no_descriptor_of_the_launcher() {
    let relay = Relay::prepare();
    let serve = relay.serve_command(TOKEN, &[]);
    // Also under other numbers, as in an ssh session.
    let mut sh = in_shell(&relay, r#"exec "$0" "$@" 3>&1 8>&1 9>&2"#, &serve);
    sh.args(serve.get_args()).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::piped());
    let mut launcher = sh.spawn().unwrap();
    let mut stdin = launcher.stdin.take().unwrap();
    assert!(launcher.wait().unwrap().success());
    let (mut out, mut err) = (launcher.stdout.take().unwrap(), launcher.stderr.take().unwrap());
    let mut text = String::new();
    for pipe in [&mut out as &mut dyn Read, &mut err] {
        pipe.read_to_string(&mut text).unwrap();
    }
    assert_eq!(text.lines().count(), 1, "{text}");
    let written = std::io::Write::write(&mut stdin, b"x");
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe, "stdin is held open");
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_continues() {
    let relay = Relay::start();
    let mut client = relay.connect();
    let child = spawn_sh(&mut client, "p", "read line; echo $line; exit 3");
    let before = relay.status().unwrap();
    // A path through a symlink names the same socket.
    let link = relay.path("link");
    std::os::unix::fs::symlink(relay.dir(), &link).unwrap();
    let by_link = link.join("rpc.sock");
    for socket in [relay.socket(), by_link] {
        fs::write(relay.path("other-token"), "other").unwrap();
        let output =
            relay.run(&["-serve", "-socket", socket.to_str().unwrap(), "-token-file", "other-token"]);
        let expected = format!(
            "claustrum: listen unix: listen unix {}: bind: address already in use\n",
            socket.display()
        );
        let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(outcome, (Some(1), "", expected.as_str()));
        assert!(!relay.path("other-token").exists(), "the token file is removed after reading");
    }
    assert_eq!(fs::read(relay.path("daemon.token")).unwrap(), TOKEN.as_bytes());
    let after = relay.status().unwrap();
    assert_eq!((after.keeper_pid, after.worker_pid), (before.keeper_pid, before.worker_pid));
    assert_eq!(client.call("server.ping", ""), PONG);
    assert!(is_alive(child));
    super::write_stdin(&mut relay.connect(), "p", b"still here\n");
    let mut follower = Follower::new(&relay.socket(), "p");
    assert_eq!((follower.read_to_exit(), follower.text()), (3, "still here\n"));
}

#[test]
fn a_stale_socket_is_replaced() {
    let relay = Relay::prepare();
    drop(UnixListener::bind(relay.socket()).unwrap());
    assert!(fs::symlink_metadata(relay.socket()).unwrap().file_type().is_socket());
    relay.serve(&[]);
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
}

#[test]
fn a_killed_keeper_and_worker_do_not_prevent_the_next_start() {
    let relay = Relay::start();
    spawn_sh(&mut relay.connect(), "p", "echo before; exec sleep 1000");
    Follower::new(&relay.socket(), "p").read_until("before\n");
    let parts = daemon_pidfds(&relay);
    for signal in [Signal::STOP, Signal::KILL] {
        parts.iter().for_each(|part| pidfd::signal(part, signal).unwrap());
    }
    parts.iter().for_each(|part| assert_exits(part, "a killed keeper or worker"));
    assert!(relay.socket().exists() && relay.path("daemon.token").exists(), "SIGKILL leaves both files");
    relay.serve(&[]);
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
    let mut follower = Follower::new(&relay.socket(), "p");
    assert_eq!((follower.read_to_exit(), follower.text()), (-1, "before\n"), "the journal survives");
}

#[test]
fn a_foreign_file_at_the_socket_path_is_not_replaced() {
    let relay = Relay::prepare();
    let refused = bind_error(&relay, "address already in use");
    let refuse = |what: &str| {
        let output = relay.try_serve(&[]);
        let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(outcome, (Some(1), "", refused.as_str()), "{what}");
        assert!(!relay.path("daemon.token").exists(), "{what}");
    };
    fs::write(relay.socket(), "a letter").unwrap();
    refuse("a file");
    assert_eq!(fs::read(relay.socket()).unwrap(), b"a letter");
    fs::remove_file(relay.socket()).unwrap();
    fs::create_dir(relay.socket()).unwrap();
    refuse("a directory");
    fs::remove_dir(relay.socket()).unwrap();
    std::os::unix::fs::symlink("elsewhere", relay.socket()).unwrap();
    refuse("a dangling symlink");
    assert_eq!(fs::read_link(relay.socket()).unwrap().to_str(), Some("elsewhere"));
    assert!(!relay.path("elsewhere").exists());
    fs::remove_file(relay.socket()).unwrap();
    let foreign = UnixListener::bind(relay.socket()).unwrap();
    refuse("a foreign socket");
    // The daemon only probed the foreign socket. A client can still connect to it.
    let (_ours, _probe) = (outpost_testkit::connect(relay.socket()).unwrap(), foreign.accept().unwrap());
    drop(foreign);
    relay.serve(&[]);
}

#[test]
fn a_too_long_socket_path_is_an_error() {
    let relay = Relay::prepare();
    let long = relay.path(&"x".repeat(120));
    fs::write(relay.path("token"), TOKEN).unwrap();
    let output = relay.run(&["-serve", "-socket", long.to_str().unwrap(), "-token-file", "token"]);
    let expected =
        format!("claustrum: listen unix: listen unix {}: bind: invalid argument\n", long.display());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected.as_str()));
}

#[test]
fn the_basic_flow_works_for_an_unprivileged_user() {
    require!(outpost_testkit::root());
    let relay = Relay::start_as(65534);
    let status = relay.status().unwrap();
    for pid in [status.keeper_pid, status.worker_pid] {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(text.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{text}");
    }
    let mut client = relay.connect();
    spawn_sh(&mut client, "p", "id -u; echo started; read line; echo got $line; exit 4");
    let mut follower = Follower::new(&relay.socket(), "p");
    follower.read_until("started\n");
    relay.kill(outpost_testkit::Half::Worker);
    super::write_stdin(&mut relay.connect(), "p", b"this\n");
    assert_eq!(follower.read_to_exit(), 4);
    assert_eq!(follower.text(), "65534\nstarted\ngot this\n");
    let child = spawn_sh(&mut relay.connect(), "q", "setsid sleep 1000 & exec sleep 1000");
    let (parts, child) = (daemon_pidfds(&relay), outpost_testkit::process(child).unwrap());
    stop(&relay);
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
    assert_exits(&child, "its child");
    assert!(!relay.socket().exists() && !relay.path("daemon.token").exists());
    relay.serve(&["-keep-children"]);
    assert_eq!(RelayClient::connect(&relay.socket()).call("server.ping", ""), PONG);
}

#[test]
fn a_daemon_whose_socket_was_removed_can_be_stopped_and_restarted() {
    let relay = Relay::start();
    let parts = daemon_pidfds(&relay);
    fs::remove_file(relay.socket()).unwrap();
    pidfd::signal(&parts[0], Signal::TERM).unwrap();
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
    relay.serve(&[]);
}

#[test]
fn a_home_with_a_long_path_works() {
    let relay = Relay::prepare();
    let home = relay.path(&format!("{}/{}", "x".repeat(80), "y".repeat(80)));
    fs::create_dir_all(&home).unwrap();
    let serve = |flags: &[&str]| {
        let mut command = relay.serve_command(TOKEN, flags);
        command.env_remove("OUTPOST_STATE_DIR").env_remove("XDG_STATE_HOME").env("HOME", &home);
        command.output().unwrap()
    };
    assert!(serve(&["-keep-children"]).status.success(), "{}", relay.log());
    let child = spawn_sh(&mut relay.connect(), "p", "exec sleep 1000");
    stop(&relay);
    // The next daemon finds the first one by its control socket, whose path is longer than sun_path.
    let output = serve(&[]);
    assert!(output.status.success(), "{output:?}");
    let known = relay.connect().call("process.reattach", r#"{"id":"p"}"#);
    assert!(known.contains(r#""running":true"#) && is_alive(child), "{known}");
    stop(&relay);
}

#[test]
fn without_a_home_the_journals_are_next_to_the_socket() {
    let relay = Relay::prepare();
    let mut command = relay.serve_command(TOKEN, &[]);
    command.env_remove("OUTPOST_STATE_DIR").env_remove("XDG_STATE_HOME").env("HOME", "/proc/no/home");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("beside the socket"), "{output:?}");
    assert_eq!(relay.connect().call("server.ping", ""), PONG);
    assert_eq!(fs::read_dir(relay.path(".outpost/relay")).unwrap().count(), 1);
    stop(&relay);
}
