//! The daemon and its faces as on the kernels of Debian 11 (5.10) and Ubuntu 24.04 (6.8), by `oldkernel`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use outpost_control::wire::{Killed, Spawn, Spawned};
use outpost_sys::epoll::wait_readable;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{
    AppServer, Broker, BrokerOptions, Daemon, Half, Options, Plan, binary_beside, pause, process_events,
    require, root, stamp,
};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

fn program(name: &str) -> PathBuf {
    binary_beside(env!("CARGO_BIN_EXE_oldkernel").as_ref(), name)
}

fn lives(pid: i32) -> bool {
    procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

fn spawn(daemon: &Daemon, id: &str, script: &str) -> Spawned {
    let command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
    daemon.connect().call("spawn", &Spawn { id: id.to_owned(), command, ..Spawn::default() }).unwrap()
}

/// Those of the table that run, by their ids.
fn running(daemon: &Daemon) -> Vec<String> {
    let mut ids: Vec<String> = daemon
        .list()
        .into_iter()
        .filter(|process| process.exit.is_none())
        .map(|process| process.id)
        .collect();
    ids.sort();
    ids
}

/// Whatever was started is in the table, can be killed, and is gone with the daemon.
fn every_process_that_was_started_is_known_and_ends(kernel: &'static str) {
    let daemon = Daemon::start_on(Some(kernel), &program("outpost"));
    spawn(&daemon, "first", "exit 0");
    let started: Vec<Spawned> =
        (0..4).map(|number| spawn(&daemon, &number.to_string(), "exec sleep 1000")).collect();
    // An order that waits its turn is carried out by now.
    assert_eq!(running(&daemon), ["0", "1", "2", "3"], "{}", daemon.log());
    assert!(started.iter().all(|process| lives(process.pid)));
    let killed: Killed = daemon.ask("kill", &json!({"process": "0", "graceMs": 0}));
    assert!(killed.died, "{killed:?}");
    assert_eq!(running(&daemon), ["1", "2", "3"]);
    let halves = [daemon.keeper(), daemon.worker()];
    let _gone = daemon.connect().call::<()>("stop", &());
    for half in halves {
        assert!(wait_readable(half, TIMEOUT).unwrap(), "the daemon does not stop: {}", daemon.log());
    }
    let left: Vec<i32> = started.iter().map(|process| process.pid).filter(|pid| lives(*pid)).collect();
    assert!(left.is_empty(), "{left:?} outlive the daemon");
}

/// A command that was started in the background and both halves killed at once: the next daemon ends what is left.
fn both_halves_killed_at_once_leave_no_orphan(kernel: &'static str) {
    let daemon = Daemon::start_on(Some(kernel), &program("outpost"));
    spawn(&daemon, "first", "exit 0");
    let mut run = Command::new(program("outpost"));
    run.args(["--state-dir", "state", "--runtime-dir", "run", "run", "--detach", "--", "sleep", "1000"]);
    let output = run.current_dir(daemon.dir()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let list = daemon.list();
    let cut = list.iter().find(|process| process.exit.is_none()).expect("it is in the table");
    let pid = cut.pid;
    let halves = [daemon.worker(), daemon.keeper()];
    for signal in [Signal::STOP, Signal::KILL] {
        halves.iter().for_each(|half| pidfd::signal(half, signal).unwrap());
    }
    for half in &halves {
        assert!(wait_readable(half, TIMEOUT).unwrap());
    }
    let again = Daemon::start_on_in(Some(kernel), &program("outpost"), daemon.dir());
    assert!(running(&again).is_empty());
    let begun = Instant::now();
    while lives(pid) {
        assert!(begun.elapsed() < TIMEOUT, "an orphan is left; log: {}", again.log());
        pause();
    }
}

/// Below an init that reaps at once, children of a killed keeper end at the same time: how each ended is known.
fn exits_after_the_death_of_a_keeper_are_known(kernel: &'static str, uid: u32) {
    const SIGNALS: [i32; 6] = [1, 9, 10, 12, 14, 15];
    let dir = tempfile::tempdir().unwrap();
    let mut serve = Command::new(program("reaper"));
    if uid != 0 {
        chown(dir.path(), Some(uid), Some(uid)).unwrap();
        serve.args(["setpriv", &format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
        serve.env("HOME", dir.path());
    }
    serve.arg(program("oldkernel")).arg(kernel).arg(program("outpost"));
    let daemon = Daemon::start_by(serve, dir, &[]);
    let gate = daemon.dir().join("gate");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&gate).status().unwrap().success());
    // Code and signal.
    let expected: Vec<(Option<i32>, Option<i32>)> = (0..25)
        .zip(SIGNALS.iter().cycle())
        .flat_map(|(code, signal)| [(Some(code), None), (None, Some(*signal))])
        .collect();
    for (number, (code, signal)) in expected.iter().enumerate() {
        let end = match (code, signal) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("kill -{} $$", signal.unwrap()),
        };
        spawn(&daemon, &number.to_string(), &format!("read line < {}; {end}", gate.display()));
    }
    daemon.kill(Half::Keeper);
    // A child that has not opened the gate yet finds it closed again.
    let begun = Instant::now();
    while !running(&daemon).is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "{:?} do not end: {}", running(&daemon), daemon.log());
        let _no_reader = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&gate);
        pause();
    }
    let list = daemon.list();
    let seen = |number: usize| {
        let exit = list.iter().find(|process| process.id == number.to_string())?.exit.as_ref()?;
        Some((exit.code, exit.signal))
    };
    let wrong: Vec<_> = (0..expected.len())
        .map(|number| (number, seen(number), expected[number]))
        .filter(|(_, seen, expected)| seen.as_ref() != Some(expected))
        .collect();
    assert!(wrong.is_empty(), "number, seen, expected: {wrong:?}; log: {}", daemon.log());
}

fn nemesis_killed_halves_lose_nothing(kernel: &'static str) {
    let report = require!(outpost_testkit::run(&Plan {
        outpost: program("outpost"),
        producer: program("producer"),
        kernel: Some(kernel),
        seed: 20_261_118,
        clients: 3,
        worker_kills: 15,
        keeper_kills: 3,
        upgrades: 1,
        exhaustions: 0,
        duration: Duration::from_secs(4),
    }));
    assert!(report.worker_kills >= 15 && report.keeper_kills >= 3 && report.processes >= 3, "{report:?}");
}

/// Commands with and without a sandbox; where the kernel cannot confine them they are refused, never run unconfined.
fn exec_runs_what_it_can_confine_and_refuses_the_rest(kernel: &'static str) {
    let mut server = AppServer::start(&Options::default().kernel(kernel));
    let params =
        |policy: &str| json!({"command": ["/bin/sh", "-c", "echo ran"], "sandboxPolicy": {"type": policy}});
    for round in 0..2 {
        for _ in 0..4 {
            let done = server.exec(&params("dangerFullAccess"));
            assert_eq!((&done["exitCode"], &done["stdout"]), (&json!(0), &json!("ran\n")), "round {round}");
        }
        for policy in ["readOnly", "workspaceWrite"] {
            let reply: Value = serde_json::from_str(&server.call("command/exec", &params(policy))).unwrap();
            if kernel == "5.10" {
                let message = reply["error"]["message"].as_str().unwrap_or_default();
                assert!(message.contains("lacks mount_setattr (Linux 5.12)"), "{policy}: {reply}");
            } else {
                assert_eq!(reply["result"]["stdout"], "ran\n", "{policy}, round {round}: {reply}");
            }
        }
    }
}

fn broker_runs_what_was_approved_as_root_and_reports_it(kernel: &'static str) {
    let mut broker = Broker::start(&BrokerOptions::default().kernel(kernel));
    for number in 0..6 {
        let request =
            json!({"id": number.to_string(), "time": stamp(0), "pipeline": [["sh", "-c", "id -u; exit 3"]]});
        let answer: Value = serde_json::from_str(&broker.run(&request)).unwrap();
        assert_eq!(answer["status"], "ok", "request {number}: {answer}");
        assert_eq!(answer["stages"][0]["exit_code"], 3, "request {number}: {answer}");
    }
}

/// Each scenario as on each kernel.
macro_rules! as_on {
    ($module:ident, $kernel:literal) => {
        mod $module {
            #[test]
            fn every_process_that_was_started_is_known_and_ends() {
                super::every_process_that_was_started_is_known_and_ends($kernel);
            }

            #[test]
            fn both_halves_killed_at_once_leave_no_orphan() {
                super::both_halves_killed_at_once_leave_no_orphan($kernel);
            }

            #[test]
            fn exits_after_the_death_of_a_keeper_are_known() {
                super::require!(super::root());
                super::require!(super::process_events());
                super::exits_after_the_death_of_a_keeper_are_known($kernel, 0);
            }

            #[test]
            fn nemesis_killed_halves_lose_nothing() {
                super::nemesis_killed_halves_lose_nothing($kernel);
            }

            #[test]
            fn exec_runs_what_it_can_confine_and_refuses_the_rest() {
                super::exec_runs_what_it_can_confine_and_refuses_the_rest($kernel);
            }

            #[test]
            fn broker_runs_what_was_approved_as_root_and_reports_it() {
                super::require!(super::root());
                super::broker_runs_what_was_approved_as_root_and_reports_it($kernel);
            }
        }
    };
}

as_on!(linux_6_8, "6.8");
as_on!(linux_5_10, "5.10");

/// Since Linux 6.6 the kernel reports exits to ordinary users.
#[test]
fn exits_after_the_death_of_a_keeper_are_known_to_a_user() {
    require!(root());
    require!(process_events());
    exits_after_the_death_of_a_keeper_are_known("6.8", 65534);
}

/// What the filter answers, seen by a program that makes the calls itself.
#[test]
fn calls_of_newer_kernels_are_answered_as_the_older_one_does() {
    let script = r#"
        my %call = (close_range => [436, 100, 200, 4], mount_setattr => [442, -1, "", 0, 0, 0], fchmodat2 => [452, -1, "", 0, 0],
            landlock => [444, 0, 0, 1], newest => [467, -1, "", 0, 0, 0], pidfd_flags => [424, -1, 9, 0, 4],
            get_info => [__IOCTL__, 0, 0xC050FF0B, 0], old => [434, 0, 0]);
        for (sort keys %call) { my ($number, @rest) = @{$call{$_}}; $! = 0; my $got = syscall($number, @rest); print "$_ ", $got >= 0 ? 0 : $! + 0, "\n" }"#;
    let ioctl = libc::SYS_ioctl.to_string();
    let said = |kernel: &str, by: &[&str]| {
        let line = [by, &[env!("CARGO_BIN_EXE_oldkernel"), kernel, "perl", "-e"]].concat();
        let (first, rest) = line.split_first().unwrap();
        let output =
            Command::new(first).args(rest).arg(script.replace("__IOCTL__", &ioctl)).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    };
    let [inval, nosys, notty] = [libc::EINVAL, libc::ENOSYS, libc::ENOTTY];
    for (kernel, landlock, close_range, mount_setattr, fchmodat2) in
        [("6.8", false, 0, false, false), ("6.1", false, 0, false, true), ("5.10", true, inval, true, true)]
    {
        let text = said(kernel, &[]);
        let answer = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|errno| errno.parse::<i32>().ok())
                .unwrap_or_else(|| panic!("{name} of {kernel}: {text}"))
        };
        assert_eq!(answer("close_range"), close_range, "{text}");
        assert_eq!(
            (answer("newest"), answer("pidfd_flags"), answer("get_info")),
            (nosys, inval, notty),
            "{text}"
        );
        for (name, is_absent) in
            [("landlock", landlock), ("mount_setattr", mount_setattr), ("fchmodat2", fchmodat2)]
        {
            assert_eq!(answer(name) == nosys, is_absent, "{name} of {kernel}: {text}");
        }
        // pidfd_open(0) is a call of 5.3 and wrong in itself.
        assert_eq!(answer("old"), inval, "{text}");
    }
}

/// As a user, for which the kernel requires no_new_privs before a filter; root does without, for sudo.
#[test]
fn root_keeps_the_right_to_gain_privileges_and_others_give_it_up() {
    let own = Command::new(env!("CARGO_BIN_EXE_oldkernel"))
        .args(["6.8", "grep", "NoNewPrivs", "/proc/self/status"])
        .output();
    let text = String::from_utf8(own.unwrap().stdout).unwrap();
    let expected = if root().is_ok() { "NoNewPrivs:\t0\n" } else { "NoNewPrivs:\t1\n" };
    assert_eq!(text, expected);
    require!(root());
    // The directory of the build may be closed to others.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("oldkernel");
    for (program, arguments) in [
        ("cp", [env!("CARGO_BIN_EXE_oldkernel"), copy.to_str().unwrap()]),
        ("chmod", ["755", dir.path().to_str().unwrap()]),
    ] {
        assert!(Command::new(program).args(arguments).status().unwrap().success());
    }
    let mut user = Command::new("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args([
        "5.10",
        "grep",
        "NoNewPrivs",
        "/proc/self/status",
    ]);
    assert_eq!(String::from_utf8(user.output().unwrap().stdout).unwrap(), "NoNewPrivs:\t1\n");
}
