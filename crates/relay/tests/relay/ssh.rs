//! A client over a real ssh connection: sshd runs the bridge, and the connection breaks.

use crate::lifecycle::{Follower, Gate, assert_exits, spawn_sh, wait_until, write_stdin};
use outpost_testkit::{Relay, RelayClient, Sshd, SshdOptions, require};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

/// Runs the bridge over ssh and returns a client of it.
fn client(sshd: &Sshd, relay: &Relay) -> (Ssh, RelayClient) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (stdin, stdout): (OwnedFd, OwnedFd) = (theirs.try_clone().unwrap().into(), theirs.into());
    let mut ssh = sshd.ssh();
    // The marker variable of this test, so that cleanup also finds a hanging bridge.
    ssh.arg(format!(
        "env OUTPOST_TEST_DAEMON={} {} relay -bridge -socket {}",
        relay.dir().display(),
        relay.binary().display(),
        relay.socket().display()
    ));
    let log = fs::File::options().append(true).create(true).open(relay.path("ssh.log")).unwrap();
    let ssh = ssh.stdin(stdin).stdout(stdout).stderr(log).spawn().unwrap();
    (Ssh(ssh), RelayClient::over(ours))
}

/// An ssh process, killed on drop.
struct Ssh(Child);

impl Ssh {
    /// Simulates a lost network connection.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _already_exited = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The bridge processes with this relay's marker variable.
fn bridges(relay: &Relay) -> Vec<i32> {
    let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
    let is_bridge = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(2) == Some(b"-bridge")
    };
    let all = outpost_sys::procfs::all().into_iter().map(|stat| stat.pid);
    all.filter(|pid| is_bridge(*pid) && outpost_sys::procfs::has_environment(*pid, marker.as_bytes()))
        .collect()
}

#[test]
fn a_broken_ssh_connection_loses_no_byte() {
    let relay = Relay::start();
    let mut gate = Gate::new(&relay.path("gate"));
    let sshd = require!(Sshd::start(relay.dir(), &SshdOptions::PLAIN));
    let logs = || format!("{}{}", fs::read_to_string(relay.path("ssh.log")).unwrap_or_default(), sshd.log());
    let (ssh, mut client) = self::client(&sshd, &relay);
    client.request("server.ping", "");
    let pong = client.try_line();
    assert_eq!(pong.as_deref(), Some(r#"{"jsonrpc":"2.0","id":1,"result":{"pong":true}}"#), "{}", logs());
    let script = "read word; echo got $word; i=0; while [ $i -lt 40000 ]; do \
        echo line $i of a stream that is longer than everything that could hold it on its way; i=$((i+1)); \
        [ $i = 20000 ] && read x < gate; done; exit 3";
    let child = spawn_sh(&mut client, "p", script);
    assert_eq!(write_stdin(&mut client, "p", b"hello\n")["applied"], 6);
    let expected: String = std::iter::once("got hello\n".to_owned())
        .chain((0..40000).map(|i| {
            format!("line {i} of a stream that is longer than everything that could hold it on its way\n")
        }))
        .collect();
    let mut follower = Follower::new(&relay.socket(), "p");
    while follower.bytes.len() < 500_000 {
        let line = client.try_line();
        assert!(follower.take(line), "{}", logs());
    }
    let bridge = bridges(&relay);
    assert_eq!(bridge.len(), 1);
    let bridge = outpost_testkit::process(bridge[0]).unwrap();
    ssh.kill();
    drop(client);
    gate.open();
    assert_exits(&bridge, "the bridge of the lost connection");
    assert!(!expected[..follower.bytes.len()].is_empty() && expected.as_bytes().starts_with(&follower.bytes));

    // Two more connections: the first is closed early, the second is not.
    for until_bytes in [2_000_000, usize::MAX] {
        let (_ssh, mut client) = self::client(&sshd, &relay);
        let params = format!(r#"{{"id":"p","fromSeq":{},"wantPid":true}}"#, follower.last_seq);
        client.request("process.reattach", &params);
        while follower.exit.is_none() && follower.bytes.len() < until_bytes {
            let line = client.try_line();
            assert!(follower.take(line), "{}", logs());
        }
    }
    assert_eq!(follower.exit, Some(3));
    assert!(follower.text() == expected, "{} bytes of {}", follower.bytes.len(), expected.len());
    assert!(!crate::lifecycle::is_alive(child));
    wait_until("no bridge is left", || bridges(&relay).is_empty());
}

#[test]
fn a_daemon_started_over_ssh_does_not_hold_the_session() {
    let relay = Relay::prepare();
    let sshd = require!(Sshd::start(relay.dir(), &SshdOptions::PLAIN));
    fs::write(relay.path("token"), outpost_testkit::TOKEN).unwrap();
    let dir = relay.dir().display();
    let remote = format!(
        "env OUTPOST_TEST_DAEMON={dir} OUTPOST_STATE_DIR={dir}/state HOME={dir} {} relay --serve --socket {} \
         --token-file {dir}/token",
        relay.binary().display(),
        relay.socket().display()
    );
    let mut ssh = sshd.ssh();
    ssh.arg(&remote);
    let started = ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let session = outpost_testkit::process(started.id().cast_signed()).unwrap();
    // ssh exits only after every process has closed its pipes.
    assert_exits(&session, "the session that started the daemon");
    let output = started.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let banner = format!("Claustrum remote server listening on {}\n", relay.socket().display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), banner);
    let (_ssh, mut client) = client(&sshd, &relay);
    assert_eq!(client.call("server.ping", ""), r#""result":{"pong":true}"#);
}
