//! A killed worker, a killed keeper, and workers or faces that cannot start.

use crate::support::{daemon, exit_code, read, sh};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::Half;
use std::time::{Duration, Instant};

#[test]
fn a_killed_worker_loses_neither_output_nor_input_nor_the_exit() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo \"got $line\"; exit 9").process;
    assert_eq!(read(&daemon, &process, 7).0, b"before\n");
    daemon.kill(Half::Worker);
    let stdin =
        outpost_control::wire::Stdin { process: process.clone(), offset: Some(0), data: "aGVsbG8K".into() };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    daemon.kill(Half::Worker);
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot hello\n");
    assert_eq!(exit_code(exit), Some(9));
}

#[test]
fn a_killed_keeper_loses_no_child_and_the_exit_is_still_known() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo \"got $line\"; exit 9").process;
    assert_eq!(read(&daemon, &process, 7).0, b"before\n");
    daemon.kill(Half::Keeper);
    daemon.kill(Half::Worker);
    daemon.kill(Half::Keeper);
    let stdin =
        outpost_control::wire::Stdin { process: process.clone(), offset: Some(0), data: "aGVsbG8K".into() };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(String::from_utf8_lossy(&output), "before\ngot hello\n");
    let exit = exit.unwrap();
    // Before Linux 6.15 it depends on the host whether the exit is known. It must never be wrong.
    assert!(exit.code == Some(9) || (exit.code.is_none() && exit.signal.is_none()), "{exit:?}");
}

#[test]
fn an_exit_without_a_worker_is_recorded_by_the_next_one() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "read line; head -c 300000 /dev/zero; exit 3");
    let child = outpost_testkit::process(process.pid).unwrap();
    let worker = daemon.worker();
    pidfd::signal(&worker, Signal::STOP).unwrap();
    // The worker is stopped and then killed while the request is in its socket, so nothing accepts it.
    let mut client = daemon.connect();
    client.send("stdin", &serde_json::json!({"process": process.process, "data": "Z28K"})).unwrap();
    pidfd::signal(&worker, Signal::KILL).unwrap();
    let stdin = outpost_control::wire::Stdin {
        process: process.process.clone(),
        offset: Some(0),
        data: "Z28K".into(),
    };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process.process, usize::MAX);
    assert_eq!((output.len(), exit_code(exit)), (300_000, Some(3)));
    assert!(wait_readable(&child, Duration::from_secs(10)).unwrap());
}

#[test]
fn a_worker_that_cannot_start_is_retried() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; read line; echo after; exit 0");
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
    let worker = daemon.worker();
    // A file in place of the journal directory keeps every worker from starting.
    let journals = daemon.dir().join("state/processes");
    let aside = daemon.dir().join("state/aside");
    std::fs::rename(&journals, &aside).unwrap();
    std::fs::write(&journals, "in the way").unwrap();
    pidfd::signal(&worker, Signal::KILL).unwrap();
    wait_for(|| daemon.log().contains("before it served; trying again in 1s"), "the keeper slows down");
    assert_eq!(daemon.log().matches("; starting another").count(), 5, "one kill and four failures");
    let child = outpost_testkit::process(process.pid).unwrap();
    assert!(!wait_readable(&child, Duration::ZERO).unwrap(), "the child lives on");
    std::fs::remove_file(&journals).unwrap();
    std::fs::rename(&aside, &journals).unwrap();
    let stdin =
        outpost_control::wire::Stdin { process: process.process.clone(), offset: None, data: "Z28K".into() };
    let _applied: outpost_control::wire::StdinApplied = daemon.ask("stdin", &stdin);
    let (output, exit) = read(&daemon, &process.process, usize::MAX);
    assert_eq!((output.as_slice(), exit_code(exit)), (&b"before\nafter\n"[..], Some(0)));
}

/// Polls the condition, since there is no event for a log line.
fn wait_for(mut condition: impl FnMut() -> bool, what: &str) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}: never happened");
        outpost_testkit::pause();
    }
}

#[test]
fn the_keeper_reaps_orphans_and_reports_only_the_exit_of_the_child() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "(sh -c 'echo $$; read line < fifo; exit 5' &) ; exit 2");
    let (output, exit) = read(&daemon, &process.process, usize::MAX);
    assert_eq!(exit_code(exit), Some(2));
    let _pid_line = output;
    let keeper = daemon.status().keeper_pid.cast_signed();
    wait_for(
        || {
            let zombies = outpost_sys::procfs::all()
                .into_iter()
                .filter(|stat| stat.parent == keeper && stat.state == b'Z');
            zombies.count() == 0
        },
        "no zombie below the keeper",
    );
}

#[test]
fn sigterm_to_the_keeper_stops_the_daemon_in_order() {
    let daemon = daemon();
    let process = sh(&daemon, "p", "echo before; exec sleep 1000");
    assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
    let ends = [daemon.keeper(), daemon.worker(), outpost_testkit::process(process.pid).unwrap()];
    pidfd::signal(&ends[0], Signal::TERM).unwrap();
    for end in &ends {
        assert!(wait_readable(end, Duration::from_secs(20)).unwrap(), "log: {}", daemon.log());
    }
    assert!(!daemon.socket().exists(), "the socket went with the daemon");
    let again = outpost_testkit::Daemon::start_in(crate::support::outpost(), daemon.dir());
    let (output, exit) = read(&again, &process.process, usize::MAX);
    assert_eq!(
        (output.as_slice(), exit.unwrap().signal),
        (&b"before\n"[..], Some(15)),
        "the end was recorded"
    );
}

/// As with `pkill -f`: the daemon stops in whichever order keeper and worker handle the signal.
#[test]
fn a_signal_to_worker_and_keeper_at_the_same_time_stops_the_daemon() {
    for signal in [Signal::TERM, Signal::INT] {
        for worker_first in [true, false] {
            let daemon = daemon();
            let process = sh(&daemon, "p", "echo before; exec sleep 1000");
            assert_eq!(read(&daemon, &process.process, 7).0, b"before\n");
            let child = outpost_testkit::process(process.pid).unwrap();
            let (keeper, worker) = (daemon.keeper(), daemon.worker());
            let both = if worker_first { [&worker, &keeper] } else { [&keeper, &worker] };
            both.iter().for_each(|half| pidfd::signal(*half, signal).unwrap());
            for end in [&keeper, &child] {
                let ended = wait_readable(end, Duration::from_secs(20)).unwrap();
                assert!(ended, "{signal:?}, worker first: {worker_first}, log: {}", daemon.log());
            }
            assert!(!daemon.socket().exists(), "in order, so the socket went with the daemon");
        }
    }
}

#[test]
fn a_face_that_cannot_restart_is_retried_and_the_others_serve() {
    let daemon = daemon();
    let approvals =
        std::fs::read_dir(daemon.dir()).unwrap().flatten().map(|entry| entry.path().join("approvals"));
    let approvals = approvals.into_iter().find(|path| path.is_dir()).expect("the directory of the approvals");
    let aside = approvals.with_extension("aside");
    std::fs::rename(&approvals, &aside).unwrap();
    std::fs::write(&approvals, "in the way").unwrap();
    daemon.kill(Half::Worker);
    let status = daemon.status();
    let components: Vec<&str> =
        status.faces.problems.iter().map(|problem| problem.component.as_str()).collect();
    assert_eq!(components, ["approvals"], "{:?}", status.faces.problems);
    assert!(status.faces.problems[0].since_ms > 0);
    let process = sh(&daemon, "p", "echo served").process;
    assert_eq!(read(&daemon, &process, usize::MAX).0, b"served\n");
    std::fs::remove_file(&approvals).unwrap();
    std::fs::rename(&aside, &approvals).unwrap();
    wait_for(|| daemon.status().faces.problems.is_empty(), "all faces have started without a restart");
    let faces = daemon.status().faces.listening;
    // The sessions face has a socket and a port.
    for (face, rows) in [("control", 1), ("exec", 1), ("broker", 1), ("sessions", 2), ("approve", 1)] {
        assert_eq!(faces.iter().filter(|row| row.face == face).count(), rows, "{face}: {faces:?}");
    }
}

/// A server that an exited command left running deliberately ends only at an explicit kill.
#[test]
fn a_background_descendant_of_an_exited_process_survives_a_killed_worker() {
    let daemon = daemon();
    let script = "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!; exit 0";
    let process = sh(&daemon, "p", script).process;
    let (output, exit) = read(&daemon, &process, usize::MAX);
    assert_eq!(exit_code(exit), Some(0));
    let background =
        outpost_testkit::process(String::from_utf8_lossy(&output).trim().parse().unwrap()).unwrap();
    daemon.kill(Half::Worker);
    // The list is complete only after the new worker has taken over every process.
    assert_eq!(daemon.list().len(), 1);
    assert!(!wait_readable(&background, Duration::ZERO).unwrap(), "it was killed with the worker");
    pidfd::signal(&background, Signal::KILL).unwrap();
}
