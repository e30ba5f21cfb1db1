//! Children that wait to become processes: who is started by one, and what becomes of them when either half dies.

use crate::support::{daemon, exit_code, outpost, read, sh};
use outpost_control::wire::{Spawn, Spawned, Stdin, StdinApplied, Which as Process};
use outpost_sys::epoll::{self, wait_readable};
use outpost_sys::pidfd::Pidfd;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{Daemon, Which};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again, for what cannot be waited for otherwise.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        outpost_testkit::pause();
    }
}

/// A daemon that has started something: before that nobody waits.
fn used() -> Daemon {
    let daemon = daemon();
    sh(&daemon, "first", "exit 0");
    daemon
}

/// Copies of the keeper below it.
fn waiting(daemon: &Daemon) -> Vec<i32> {
    let keeper = daemon.status().keeper_pid.cast_signed();
    let line = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let of_keeper = line(keeper);
    let lives = |stat: &procfs::Stat| !matches!(stat.state, b'Z' | b'X');
    let below = procfs::all().into_iter().filter(|stat| stat.parent == keeper && lives(stat));
    below.map(|stat| stat.pid).filter(|pid| line(*pid) == of_keeper).collect()
}

/// Those who wait soon after something was started, and their pidfds.
fn all_waiting(daemon: &Daemon) -> (Vec<i32>, Vec<Pidfd>) {
    let begun = Instant::now();
    loop {
        let pids = waiting(daemon);
        let pidfds: Vec<Pidfd> = pids.iter().flat_map(|pid| outpost_testkit::process(*pid)).collect();
        if pidfds.len() == 3 {
            return (pids, pidfds);
        }
        assert!(begun.elapsed() < PATIENCE, "three never wait");
        // On a slow machine a while may have gone by since.
        if pids.len() == 1 {
            sh(daemon, "", "exit 0");
        }
        outpost_testkit::pause();
    }
}

/// A process that one of those who waited has become. The worker may not have heard of them yet, so a few are started.
fn started(daemon: &Daemon, script: &str) -> Spawned {
    for _ in 0..10 {
        let (waiting, _) = all_waiting(daemon);
        // Those before may still run.
        let process = sh(daemon, "", script);
        if waiting.contains(&process.pid) {
            return process;
        }
    }
    panic!("nobody who waited has become a process");
}

fn feed(daemon: &Daemon, process: &Spawned) {
    let stdin = Stdin { process: process.process.clone(), offset: None, data: "Cg==".into() };
    let _applied: StdinApplied = daemon.ask("stdin", &stdin);
}

fn all_end(pidfds: &[Pidfd], what: &str) {
    for pidfd in pidfds {
        assert!(wait_readable(pidfd, PATIENCE).unwrap(), "{what}");
    }
}

#[test]
fn who_waits_becomes_the_process_and_another_takes_the_place() {
    let daemon = used();
    let process = started(&daemon, "read line; exit 4");
    let (after, _) = all_waiting(&daemon);
    assert!(!after.contains(&process.pid), "{after:?}");
    feed(&daemon, &process);
    assert_eq!(exit_code(read(&daemon, &process.process, usize::MAX).1), Some(4));
}

#[test]
fn when_nothing_was_started_for_a_while_one_waits_and_then_as_many_as_before() {
    let daemon = used();
    let the_one_who_waits_is_taken = || {
        let (_, pidfds) = all_waiting(&daemon);
        until("only one waits", || waiting(&daemon).len() == 1);
        assert_eq!(pidfds.iter().filter(|pidfd| !epoll::is_readable(pidfd)).count(), 1, "one of them");
        let last = waiting(&daemon);
        let process = sh(&daemon, "", "exit 4");
        assert_eq!(exit_code(read(&daemon, &process.process, usize::MAX).1), Some(4));
        last == [process.pid]
    };
    // A place that a start has passed over is not used any more, and one may wait there.
    assert!((0..5).any(|_| the_one_who_waits_is_taken()));
    all_waiting(&daemon);
}

#[test]
fn what_cannot_be_executed_is_refused_by_one_who_waited_too() {
    let daemon = used();
    for _ in 0..5 {
        let (before, _) = all_waiting(&daemon);
        let missing = Spawn { id: "p".into(), command: vec!["/no/such/program".into()], ..Spawn::default() };
        let refused = daemon.connect().call::<Spawned>("spawn", &missing).unwrap_err().to_string();
        assert!(refused.contains("/no/such/program") && refused.contains("No such file"), "{refused}");
        until("another waits", || waiting(&daemon).iter().any(|pid| !before.contains(pid)));
    }
    assert_eq!(exit_code(read(&daemon, &sh(&daemon, "p", "exit 4").process, usize::MAX).1), Some(4));
}

#[test]
fn one_who_was_killed_while_waiting_is_made_up_for() {
    let daemon = used();
    let (_, pidfds) = all_waiting(&daemon);
    pidfds.iter().for_each(|pidfd| pidfd::signal(pidfd, Signal::KILL).unwrap());
    all_end(&pidfds, "it was killed");
    for name in ["a", "b", "c", "d"] {
        let process = sh(&daemon, name, "echo here").process;
        let (output, exit) = read(&daemon, &process, usize::MAX);
        assert_eq!((output.as_slice(), exit_code(exit)), (&b"here\n"[..], Some(0)));
    }
}

#[test]
fn who_waits_ends_with_the_worker_and_with_the_keeper() {
    let daemon = used();
    for which in [Which::Worker, Which::Keeper] {
        let (_, pidfds) = all_waiting(&daemon);
        daemon.kill(which);
        all_end(&pidfds, "there is nobody who could tell it anything");
        sh(&daemon, "next", "exit 0");
    }
    started(&daemon, "exit 0");
}

#[test]
fn what_became_of_one_outlives_a_keeper_that_is_killed_at_once() {
    let daemon = used();
    for _ in 0..5 {
        let process = started(&daemon, "echo begun; read line; echo over; exit 0");
        daemon.kill(Which::Keeper);
        feed(&daemon, &process);
        let (output, _) = read(&daemon, &process.process, usize::MAX);
        assert_eq!(String::from_utf8_lossy(&output), "begun\nover\n");
        let _gone: serde_json::Value = daemon.ask("forget", &Process { process: process.process });
    }
}

#[test]
fn after_an_upgrade_others_wait() {
    let daemon = used();
    let (before, pidfds) = all_waiting(&daemon);
    daemon.upgrade(outpost());
    all_end(&pidfds, "the worker that they waited for is gone");
    sh(&daemon, "next", "exit 0");
    let process = started(&daemon, "exit 0");
    assert!(!before.contains(&process.pid));
}
