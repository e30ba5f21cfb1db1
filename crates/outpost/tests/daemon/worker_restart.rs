//! Terminals, readers and descendants of a process after its worker was killed.

use crate::support::{daemon, outpost, read, until};
use outpost_control::client::Client;
use outpost_control::wire::{
    Attach, Attached, ProcessInfo, Spawn, Spawned, Stdin, StdinApplied, TerminalSize,
};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_testkit::{Daemon, Half};
use outpost_wire::base64;
use std::path::Path;
use std::time::Duration;

/// The smallest cap that a configuration may set.
const CAP_BYTES: u64 = 16 * 1024 * 1024;

fn spawn(daemon: &Daemon, spawn: Spawn) -> Spawned {
    daemon.connect().call("spawn", &spawn).unwrap()
}

fn shell(id: &str, script: &str) -> Spawn {
    let command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
    Spawn { id: id.into(), command, stdin: true, ..Spawn::default() }
}

fn info(daemon: &Daemon, process: &str) -> ProcessInfo {
    let found = daemon.list().into_iter().find(|info| info.process == process);
    found.unwrap_or_else(|| panic!("{process} is not listed; log: {}", daemon.log()))
}

/// Attaches as the client to which the lifetime of the process is bound.
fn own(daemon: &Daemon, process: &str, after: u64) -> Client {
    let mut client = daemon.connect();
    let attach = Attach { process: process.into(), after, owns: true, ..Attach::default() };
    let _attached: Attached = client.call("attach", &attach).unwrap();
    client
}

fn on_terminal(daemon: &Daemon, id: &str, script: &str) -> Spawned {
    spawn(daemon, Spawn { terminal: Some(TerminalSize { rows: 24, cols: 80 }), ..shell(id, script) })
}

/// Waits until the child has closed its terminal and the reactor has run since.
fn terminal_is_closed(daemon: &Daemon, process: &Spawned) {
    until("the child closes its terminal", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap().flatten();
        let mut targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        !targets.any(|target| target.starts_with("/dev/pts"))
    });
    let stdin = Stdin { process: process.process.clone(), offset: Some(0), data: String::new() };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
}

#[test]
fn a_process_that_closed_its_terminal_is_not_hung_up_by_a_killed_worker() {
    let daemon = daemon();
    let process = on_terminal(&daemon, "p", "exec sleep 1000 </dev/null >/dev/null 2>&1");
    let child = outpost_testkit::process(process.pid).unwrap();
    terminal_is_closed(&daemon, &process);
    daemon.kill(Half::Worker);
    assert_eq!(info(&daemon, &process.process).state, "running");
    daemon.kill(Half::Worker);
    assert!(!wait_readable(&child, Duration::from_millis(300)).unwrap(), "SIGHUP ended the process");
    assert_eq!(info(&daemon, &process.process).state, "running");
}

#[test]
fn output_to_a_terminal_that_is_opened_again_is_recorded() {
    let daemon = daemon();
    let go = daemon.dir().join("go");
    let script = format!(
        "echo first; exec </dev/null >/dev/null 2>&1; while ! [ -e {} ]; do sleep 0.02; done; echo again >/dev/tty; exec sleep 1000",
        go.display()
    );
    let process = on_terminal(&daemon, "p", &script);
    terminal_is_closed(&daemon, &process);
    std::fs::write(&go, "").unwrap();
    assert_eq!(read(&daemon, &process.process, 14).0, b"first\r\nagain\r\n");
}

/// Reads frames until there are `enough` bytes or the exit. Returns the last sequence number. Panics if output is missing.
fn read_on(client: &mut Client, mut last_seq: u64, output: &mut Vec<u8>, enough: usize) -> (u64, bool) {
    while output.len() < enough {
        let message = client.receive().unwrap();
        assert_eq!(message.first_seq, None, "output was dropped after frame {last_seq}");
        let Some(seq) = message.seq else { continue };
        assert_eq!(seq, last_seq + 1);
        last_seq = seq;
        if let Some(data) = &message.data {
            output.extend(base64::decode(data.as_bytes()).unwrap());
        }
        if message.exit.is_some() {
            return (last_seq, true);
        }
    }
    (last_seq, false)
}

fn with_small_cap(dir: &Path) -> Daemon {
    let file = dir.join("outpost.toml");
    std::fs::write(&file, format!("[processes]\noutput_bytes_max = {CAP_BYTES}\n")).unwrap();
    Daemon::start_with(outpost(), &["--config", file.to_str().unwrap()])
}

#[test]
fn a_command_that_waits_for_its_reader_still_does_after_a_killed_worker() {
    const LINES: usize = 6_000_000;
    let dir = tempfile::tempdir().unwrap();
    let daemon = with_small_cap(dir.path());
    let command = ["/usr/bin/seq", &LINES.to_string()].map(Into::into).to_vec();
    let process =
        spawn(&daemon, Spawn { id: "p".into(), command, ends_with_client: true, ..Spawn::default() });
    let mut output = Vec::new();
    let mut client = own(&daemon, &process.process, 0);
    let (last_seq, _) = read_on(&mut client, 0, &mut output, 100_000);
    let worker = daemon.worker();
    pidfd::signal(&worker, outpost_sys::signal::Signal::KILL).unwrap();
    drop(client);
    // Without a reader the command continues up to the cap and blocks there.
    let mut before = 0;
    until("the command waits or has ended", || {
        let now = info(&daemon, &process.process);
        let rests = now.output_bytes == before && now.kept_bytes + 8 * 1024 * 1024 > CAP_BYTES;
        before = now.output_bytes;
        rests || now.exit.is_some()
    });
    let mut client = own(&daemon, &process.process, last_seq);
    let (_, exited) = read_on(&mut client, last_seq, &mut output, usize::MAX);
    assert!(exited);
    let expected: usize = (1..=LINES).map(|line| line.to_string().len() + 1).sum();
    assert_eq!(output.len(), expected);
}

#[test]
fn descendants_of_a_command_are_ended_with_it_also_after_a_killed_worker() {
    let daemon = daemon();
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; read line";
    let process = spawn(&daemon, Spawn { ends_with_client: true, ..shell("p", script) });
    let mut output = Vec::new();
    let mut client = own(&daemon, &process.process, 0);
    let (last_seq, _) = read_on(&mut client, 0, &mut output, 2);
    let left: i32 = String::from_utf8(output).unwrap().trim().parse().unwrap();
    let left = outpost_testkit::process(left).unwrap();
    pidfd::signal(daemon.worker(), outpost_sys::signal::Signal::KILL).unwrap();
    let _client = own(&daemon, &process.process, last_seq);
    let stdin = Stdin { process: process.process, offset: Some(0), data: "Cg==".into() };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
    assert!(wait_readable(&left, Duration::from_secs(20)).unwrap(), "the descendant runs on");
}

#[test]
fn closing_the_input_of_a_terminal_sends_end_of_file_although_much_input_waits() {
    const LINES: usize = 4000;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outpost.toml");
    std::fs::write(&file, "[processes]\ninput_bytes_max = 65536\n").unwrap();
    let daemon = Daemon::start_with(outpost(), &["--config", file.to_str().unwrap()]);
    let go = daemon.dir().join("go");
    let script =
        format!("stty -echo; echo ready; while ! [ -e {} ]; do sleep 0.02; done; wc -c", go.display());
    let process = on_terminal(&daemon, "p", &script).process;
    assert_eq!(read(&daemon, &process, 7).0, b"ready\r\n");
    // One message may exceed the limit. More input remains than the queue may hold.
    let mut data = Vec::new();
    base64::append(&mut data, ("x".repeat(99) + "\n").repeat(LINES).as_bytes());
    let data = String::from_utf8(data).unwrap();
    let applied: StdinApplied =
        daemon.ask("stdin", &Stdin { process: process.clone(), offset: Some(0), data });
    assert_eq!(applied.applied, 100 * LINES as u64);
    let closed: () =
        daemon.ask("closeStdin", &outpost_control::wire::ProcessRef { process: process.clone() });
    assert_eq!(closed, ());
    std::fs::write(&go, "").unwrap();
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "ready\r\n400000\r\n");
    assert_eq!(exit.unwrap().code, Some(0));
}
