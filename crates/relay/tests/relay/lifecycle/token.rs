//! The token: its sources, its parsing, and places where it must not appear.

use super::{in_shell, spawn_sh, stop_with, text};
use outpost_testkit::{Relay, RelayClient, TOKEN};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

const PONG: &str = r#""result":{"pong":true}"#;
const UNAUTHORIZED: &str =
    r#""error":{"code":-32001,"message":"Unauthorized: invalid or missing auth token"}"#;

fn refused(output: &Output, reason: &str) {
    let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(outcome, (Some(1), "", format!("claustrum: {reason}\n").as_str()));
}

/// Runs `-serve` with these bytes in the token file.
fn serve_with_file(relay: &Relay, bytes: &[u8]) -> Output {
    let mut serve = relay.serve_command("", &[]);
    fs::write(relay.path("token"), bytes).unwrap();
    serve.output().unwrap()
}

fn client(relay: &Relay, token: &str) -> RelayClient {
    relay.connect().with_token(token)
}

#[test]
fn without_a_token_flag_nothing_starts() {
    let relay = Relay::prepare();
    let socket = relay.socket();
    // The token is checked before the socket: a missing directory is not the reported error.
    for socket in [socket.to_str().unwrap(), "/no/such/directory/rpc.sock"] {
        let mut serve = relay.command(&["-serve", "-socket", socket]);
        let output = serve.env("CLAUDE_RPC_TOKEN", TOKEN).output().unwrap();
        refused(&output, "daemonized child requires --token-file or --token-fd");
    }
    assert!(!socket.exists() && !relay.path("state").exists());
}

#[test]
fn an_unreadable_token_file_is_named() {
    let relay = Relay::prepare();
    let serve = |file: &str| relay.run(&["-serve", "-socket", "/no/such/dir/s", "-token-file", file]);
    refused(&serve("/no/such/file"), "read --token-file: open /no/such/file: no such file or directory");
    let directory = relay.dir().to_str().unwrap();
    refused(&serve(directory), &format!("read --token-file: read {directory}: is a directory"));
    assert!(relay.dir().exists());
}

#[test]
fn the_token_file_is_removed_also_if_the_start_fails() {
    let relay = Relay::prepare();
    fs::write(relay.path("token"), TOKEN).unwrap();
    let output = relay.run(&["-serve", "-socket", "/no/such/dir/s", "-token-file", "token"]);
    refused(&output, "listen unix: listen unix /no/such/dir/s: bind: no such file or directory");
    assert!(!relay.path("token").exists());
    relay.serve(&[]);
    assert!(!relay.path("token").exists());
}

#[test]
fn a_trailing_newline_is_stripped_and_spaces_are_kept() {
    for (bytes, token) in [
        (&b"plain"[..], "plain"),
        (b" two  words \n", " two  words "),
        (b"carriage\r\n", "carriage"),
        (b"\ttabs\t\n", "\ttabs\t"),
    ] {
        let relay = Relay::prepare();
        assert!(serve_with_file(&relay, bytes).status.success(), "{bytes:?}");
        let escaped = token.replace('\t', "\\t");
        assert_eq!(client(&relay, &escaped).call("server.ping", ""), PONG, "{bytes:?}");
        for other in [format!("{escaped} "), escaped.trim_start_matches([' ', '\\']).to_owned() + "x"] {
            assert_eq!(client(&relay, &other).call("server.ping", ""), UNAUTHORIZED, "{other:?}");
        }
        assert_eq!(fs::read(relay.path("daemon.token")).unwrap(), token.as_bytes());
    }
}

#[test]
fn an_empty_token_is_refused() {
    let relay = Relay::prepare();
    for bytes in [&b""[..], b"\n", b"\r\n"] {
        let output = serve_with_file(&relay, bytes);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{bytes:?}");
        assert!(text(&output.stderr).starts_with("claustrum: "), "{output:?}");
        assert!(!relay.socket().exists() && !relay.path("daemon.token").exists());
    }
}

#[test]
fn the_token_can_come_through_a_pipe() {
    let relay = Relay::prepare();
    let socket = relay.socket();
    let socket = socket.to_str().unwrap();
    let mut serve = relay.command(&["-serve", "-socket", socket, "-token-fd", "0"]);
    let mut launcher =
        serve.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    launcher.stdin.take().unwrap().write_all(b"through stdin\r\n").unwrap();
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(client(&relay, "through stdin").call("server.ping", ""), PONG);
    assert_eq!(stop_with(&relay, "through stdin").stdout, b"");

    let script =
        r#"echo "by number" | { exec "$0" relay -serve -socket "$1" --token-fd=7 7<&0 </dev/null; }"#;
    let mut sh = in_shell(&relay, script, &relay.command(&[]));
    sh.arg(socket);
    let output = sh.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(client(&relay, "by number").call("server.ping", ""), PONG);
    assert_eq!(client(&relay, "through stdin").call("server.ping", ""), UNAUTHORIZED);
}

#[test]
fn a_closed_descriptor_is_refused() {
    let relay = Relay::prepare();
    let socket = relay.socket();
    for number in ["99", "5000000000"] {
        let output = relay.run(&["-serve", "-socket", socket.to_str().unwrap(), "-token-fd", number]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).starts_with("claustrum: read --token-fd: "), "{output:?}");
    }
    assert!(!socket.exists());
}

#[test]
fn the_token_is_in_no_environment_command_line_or_log() {
    const SECRET: &str = "s3cret-of-this-test";
    let relay = Relay::prepare();
    let mut serve = relay.serve_command(SECRET, &[]);
    let served = serve.env("CLAUDE_RPC_TOKEN", SECRET).env("CLAUSTRUM_LOG_LEVEL", "debug").output().unwrap();
    assert!(served.status.success(), "{served:?}");
    assert!(!text(&served.stdout).contains(SECRET) && !text(&served.stderr).contains(SECRET));
    let mut client = client(&relay, SECRET);
    let child = spawn_sh(&mut client, "p", "exec sleep 1000");
    relay.connect().call("server.ping", "");
    let holds = |text: &[u8]| text.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
    let status = relay.status().unwrap();
    for pid in [status.keeper_pid, status.worker_pid, child.cast_unsigned()] {
        for file in ["environ", "cmdline"] {
            let found = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!found.is_empty() && !holds(&found), "{file} of {pid}");
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.split(|byte| *byte == 0).any(|entry| entry == b"CLAUDE_SSH_DAEMON_CHILD=1"));
        assert!(!environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(b"CLAUDE_RPC_TOKEN")));
    }
    // The same holds for the next worker and keeper.
    relay.kill(outpost_testkit::Half::Worker);
    relay.kill(outpost_testkit::Half::Keeper);
    let status = relay.status().unwrap();
    for pid in [status.keeper_pid, status.worker_pid] {
        let found = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(!found.is_empty() && !holds(&found), "environ of {pid}");
    }
    assert!(relay.log().contains("Unauthorized request: method=server.ping, id=1"), "{}", relay.log());
    let mut files = vec![relay.dir().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() && path != relay.path("daemon.token") {
            assert!(!holds(&fs::read(&path).unwrap()), "{}", path.display());
        }
    }
}

#[test]
fn the_token_next_to_the_socket_is_private() {
    let relay = Relay::prepare();
    // Independent of the caller's umask.
    let serve = relay.serve_command(TOKEN, &[]);
    let mut sh = in_shell(&relay, r#"umask 0; exec "$0" "$@""#, &serve);
    assert!(sh.args(serve.get_args()).output().unwrap().status.success());
    let mode = |name: &str| fs::symlink_metadata(relay.path(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("rpc.sock"), 0o600);
    assert_eq!(mode("daemon.token"), 0o600);
    assert_eq!(mode("remote-server.log"), 0o600);
    assert_eq!(mode("state"), 0o700);
    assert_eq!(fs::read(relay.path("daemon.token")).unwrap(), TOKEN.as_bytes());
    let names: Vec<_> = fs::read_dir(relay.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_str().unwrap().starts_with("daemon.token-")), "{names:?}");
}
