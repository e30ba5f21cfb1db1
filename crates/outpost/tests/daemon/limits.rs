//! A daemon at the limits of its host: full disk, process limit, descriptor limit.

use crate::support::{cli, outpost, read, until};
use outpost_control::client::CallError;
use outpost_control::wire::{Kill, Killed, Problem, Spawn, Spawned};
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use outpost_testkit::{Daemon, Half, SmallDisk, require, root};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A user for these tests only: the kernel counts processes per user.
const UID: u32 = 54_321;

fn sleeper(id: &str) -> Spawn {
    Spawn { id: id.into(), command: ["/bin/sleep", "1000"].map(Into::into).to_vec(), ..Spawn::default() }
}

/// The files of this name in prepared slots.
fn prepared(daemon: &Daemon, name: &str) -> Vec<PathBuf> {
    let slots = std::fs::read_dir(daemon.dir().join("state/processes")).into_iter().flatten().flatten();
    let unused = |slot: &PathBuf| slot.join("process.json").metadata().is_ok_and(|found| found.len() == 0);
    let files = slots.map(|slot| slot.path()).filter(unused).map(|slot| slot.join(name));
    files.filter(|file| file.exists()).collect()
}

/// Starts a process that prints its id. The reply may wait until the disk has space.
fn start_in_background(daemon: &Daemon, id: &str) -> JoinHandle<Result<Spawned, CallError>> {
    let script = format!("echo {id}; exec sleep 1000");
    let command = ["/bin/sh", "-c", &script].map(Into::into).to_vec();
    let spawn = Spawn { id: id.into(), command, ..Spawn::default() };
    let mut client = daemon.connect();
    std::thread::spawn(move || client.call("spawn", &spawn))
}

/// Asserts that the process still runs under the current worker and that its output is kept.
fn assert_runs_on(daemon: &Daemon, id: &str, spawned: &Spawned) {
    let listed = daemon.list();
    let info = listed.iter().find(|info| info.process == spawned.process);
    let info = info.unwrap_or_else(|| panic!("{id} is not listed; log: {}", daemon.log()));
    assert_eq!((info.id.as_str(), info.state.as_str(), info.pid), (id, "running", spawned.pid));
    assert_eq!(read(daemon, &spawned.process, id.len() + 1).0, format!("{id}\n").into_bytes());
}

#[test]
fn a_process_started_on_a_full_disk_survives_the_next_worker() {
    let disk = require!(SmallDisk::mount("size=8m"));
    let daemon = Daemon::start_in(outpost(), disk.path());
    let _first: Spawned = daemon.connect().call("spawn", &sleeper("first")).unwrap();
    until("slots are prepared", || prepared(&daemon, "index").len() > 1);
    disk.fill();
    let mut started = Vec::new();
    for number in 0..12 {
        let id = format!("p{number}");
        let start = start_in_background(&daemon, &id);
        until("an answer to the start", || start.is_finished());
        match start.join().unwrap() {
            Ok(spawned) => started.push((id, spawned)),
            Err(CallError::Refused(failure)) => {
                assert!(failure.message.contains("No space left"), "{failure:?}");
            }
            Err(error) => panic!("{error}; log: {}", daemon.log()),
        }
    }
    assert!(!started.is_empty(), "slots that were prepared before have room for a start");
    disk.empty();
    daemon.kill(Half::Worker);
    started.iter().for_each(|(id, spawned)| assert_runs_on(&daemon, id, spawned));
}

/// Releases the preallocated blocks of this file, as on a copy-on-write file system, and fills the disk.
fn assert_start_waits_for_room(disk: &SmallDisk, file: &str) {
    let daemon = Daemon::start_in(outpost(), disk.path());
    let _first: Spawned = daemon.connect().call("spawn", &sleeper("first")).unwrap();
    until("slots are prepared", || prepared(&daemon, "index").len() > 1);
    for file in prepared(&daemon, file) {
        let file = File::options().write(true).open(file).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0, "its blocks are released");
    }
    disk.fill();
    let start = start_in_background(&daemon, "p");
    let is_reported = || {
        let problems = daemon.status().faces.problems;
        problems.iter().any(|problem| problem.component == "recording")
    };
    until("the start waits for room", || start.is_finished() || is_reported());
    disk.empty();
    until("the start is confirmed", || start.is_finished());
    let spawned = start.join().unwrap().unwrap();
    daemon.kill(Half::Worker);
    assert_runs_on(&daemon, "p", &spawned);
}

#[test]
fn a_start_whose_description_finds_no_room_is_confirmed_when_it_is_written() {
    assert_start_waits_for_room(&require!(SmallDisk::mount("size=8m")), "process.json");
}

#[test]
fn a_start_whose_start_record_finds_no_room_is_confirmed_when_it_is_written() {
    assert_start_waits_for_room(&require!(SmallDisk::mount("size=8m")), "index");
}

#[test]
fn a_daemon_starts_on_a_full_disk_and_its_faces_follow_when_there_is_space() {
    let disk = require!(SmallDisk::mount("size=16m"));
    disk.fill();
    let daemon = Daemon::start_in(outpost(), disk.path());
    let problems = daemon.status().faces.problems;
    assert!(problems.iter().any(|problem| problem.component == "approvals"), "{problems:?}");
    let refused = daemon.connect().call::<Spawned>("spawn", &sleeper("p"));
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    disk.empty();
    until("every face has started", || daemon.status().faces.problems.is_empty());
    daemon.sessions().result("health.check", serde_json::json!({}));
    let _started: Spawned = daemon.connect().call("spawn", &sleeper("p")).unwrap();
}

#[test]
fn a_process_that_waits_for_room_on_the_disk_is_reported_until_it_goes_on() {
    let disk = require!(SmallDisk::mount("size=16m"));
    let daemon = Daemon::start_in(outpost(), disk.path());
    let script = "while :; do head -c 100000 /dev/zero; sleep 0.01; done";
    let command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
    let _noisy: Spawned =
        daemon.connect().call("spawn", &Spawn { id: "noisy".into(), command, ..Spawn::default() }).unwrap();
    disk.fill();
    let problem =
        || daemon.status().faces.problems.into_iter().find(|problem| problem.component == "recording");
    until("the full disk is reported", || problem().is_some());
    let found = problem().unwrap();
    assert!(
        found.message.contains("1 processes wait") && found.message.contains("No space left"),
        "{found:?}"
    );
    for command in ["status", "ps", "doctor"] {
        let output = cli(&daemon, &[command]).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(
            text.contains("recording fails, 1 processes wait") && text.contains("(for "),
            "{command}: {text}"
        );
    }
    disk.empty();
    until("the process goes on", || problem().is_none());
}

/// A daemon of another user with a process limit.
fn with_few_processes(max: u32) -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(UID), Some(UID)).unwrap();
    let mut serve = Command::new("setpriv");
    serve.args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".into()]);
    serve.args(["prlimit".into(), format!("--nproc={max}:{max}")]).arg(outpost());
    serve.env("HOME", dir.path());
    Daemon::start_by(serve, dir, &[])
}

/// Ignores SIGTERM, forks up to the limit and keeps trying. Prints a line at the first failure.
const FORK_BOMB: &str = "$| = 1; $SIG{TERM} = 'IGNORE'; my $reported; while (1) { my $p = fork(); \
    if (!defined $p) { print \"full\\n\" unless $reported++; select(undef, undef, undef, 0.01); next } \
    if ($p == 0) { setpgrp(0, 0); sleep 1000; exit } }";

/// Longer than tokio keeps idle threads by default.
const THREADS_KEPT: Duration = Duration::from_secs(12);

/// The number of tokio threads in a process.
fn idle_threads(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name =
        |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    threads.map(name).filter(|name| name.starts_with("tokio-")).count()
}

#[test]
fn a_fork_bomb_at_the_process_limit_can_be_killed() {
    require!(root());
    let daemon = with_few_processes(80);
    let worker = daemon.status().worker_pid;
    let command = ["/usr/bin/perl", "-e", FORK_BOMB].map(Into::into).to_vec();
    let bomb: Spawned =
        daemon.connect().call("spawn", &Spawn { id: "bomb".into(), command, ..Spawn::default() }).unwrap();
    assert_eq!(read(&daemon, &bomb.process, 5).0, b"full\n");
    // Idle threads of the worker may exit. A kill must not need a new thread, which cannot be started now.
    let started = Instant::now();
    until("idle threads of the worker have exited or stay", || {
        idle_threads(worker) == 0 || started.elapsed() > THREADS_KEPT
    });
    // The kill sends SIGTERM to the tree and SIGKILL after the grace time. Neither may need a new thread.
    let kill = Kill { process: bomb.process, signal: None, grace_ms: Some(200) };
    let killed: Killed = daemon.connect().call("kill", &kill).unwrap();
    assert!(killed.died && killed.escalated, "{killed:?}");
    until("every process of the bomb has ended", || {
        let alive = procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        !alive.into_iter().any(|stat| {
            let line = std::fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
            line.starts_with(b"/usr/bin/perl\0-e\0$| = 1; $SIG{TERM} = 'IGNORE'; my $reported")
        })
    });
    assert_eq!(daemon.status().worker_pid, worker, "the worker died; log: {}", daemon.log());
    let _again: Spawned = daemon.connect().call("spawn", &sleeper("again")).unwrap();
}

/// A daemon with a low descriptor limit that has started as many processes as possible. Four of them are then killed.
fn near_the_descriptor_limit() -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = Command::new("prlimit");
    serve.arg("--nofile=300:300").arg(outpost());
    let daemon = Daemon::start_by(serve, dir, &[]);
    let refused = (0..300)
        .find_map(|number| daemon.connect().call::<Spawned>("spawn", &sleeper(&format!("p{number}"))).err());
    // The worker reserves descriptors for replies such as this one.
    let Some(CallError::Refused(failure)) = refused else { panic!("{refused:?}; log: {}", daemon.log()) };
    assert!(failure.message.contains("Too many open files"), "{failure:?}");
    let running = running(&daemon);
    assert!(running.len() > 20, "{} started", running.len());
    for pid in &running[..4] {
        end(*pid);
    }
    until("those four are known to have ended", || self::running(&daemon).len() == running.len() - 4);
    daemon
}

fn running(daemon: &Daemon) -> Vec<i32> {
    let running = daemon.list().into_iter().filter(|info| info.exit.is_none());
    running.map(|info| info.pid).filter(|pid| *pid > 0).collect()
}

fn end(pid: i32) {
    let _ended_already = outpost_testkit::process(pid).and_then(|pidfd| pidfd::signal(pidfd, Signal::KILL));
}

#[test]
fn a_keeper_killed_near_the_descriptor_limit_leaves_no_process_that_never_ends() {
    let daemon = near_the_descriptor_limit();
    let pids = running(&daemon);
    daemon.kill(Half::Keeper);
    assert_eq!(running(&daemon), pids);
    pids.into_iter().for_each(end);
    until("every end is known", || running(&daemon).is_empty());
}

#[test]
fn a_worker_killed_near_the_descriptor_limit_is_replaced_and_takes_over_every_process() {
    let daemon = near_the_descriptor_limit();
    let pids = running(&daemon);
    daemon.kill(Half::Worker);
    let alive = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'));
    assert!(pids.iter().all(alive), "no process may end with the worker");
    // The worker takes over the remaining processes when descriptors become free.
    let listed = running(&daemon);
    listed[..listed.len() / 2].iter().for_each(|pid| end(*pid));
    until("every process that runs is listed", || {
        let alive: Vec<i32> = pids.iter().copied().filter(|pid| alive(pid)).collect();
        running(&daemon) == alive
    });
    pids.into_iter().for_each(end);
    until("every end is known", || running(&daemon).is_empty());
}

/// Sets a limit of a process with the rights of its user, which cannot exceed the hard limit.
fn limit(pid: u32, limit: &str) {
    let user = std::fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    let mut set = Command::new("setpriv");
    set.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
    let set = set.args(["prlimit".into(), format!("--pid={pid}"), limit.to_owned()]).status().unwrap();
    assert!(set.success());
}

fn problem(daemon: &Daemon, component: &str) -> Option<Problem> {
    daemon.status().faces.problems.into_iter().find(|problem| problem.component == component)
}

#[test]
fn a_worker_with_descriptors_for_some_processes_only_serves_and_takes_over_the_others_later() {
    require!(root());
    let daemon = Daemon::start(outpost());
    for number in 0..60 {
        let _started: Spawned = daemon.connect().call("spawn", &sleeper(&format!("p{number}"))).unwrap();
    }
    let pids = running(&daemon);
    // The next worker inherits the keeper's limit.
    let keeper = daemon.status().keeper_pid;
    let held = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
    limit(keeper, &format!("--nofile={0}:{0}", held + 60));
    daemon.kill(Half::Worker);
    let found = problem(&daemon, "processes").expect("status shows that processes are missing");
    assert!(found.message.contains("cannot be taken over yet"), "{found:?}");
    let listed = running(&daemon);
    assert!(!listed.is_empty() && listed.len() < pids.len(), "{} of {}", listed.len(), pids.len());
    let clients: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    assert_eq!(running(&daemon).len(), listed.len());
    drop(clients);
    listed.into_iter().for_each(end);
    let alive = |pid: &i32| procfs::stat(*pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'));
    until("every process that runs is taken over", || {
        let alive: Vec<i32> = pids.iter().copied().filter(|pid| alive(pid)).collect();
        !alive.is_empty() && running(&daemon) == alive
    });
    until("status shows no problem", || daemon.status().faces.problems.is_empty());
}

#[test]
fn a_worker_without_a_keeper_is_reported_until_one_can_be_started() {
    require!(root());
    let daemon = Daemon::start_as(outpost(), UID + 1);
    let process: Spawned = daemon.connect().call("spawn", &sleeper("p")).unwrap();
    let status = daemon.status();
    limit(status.worker_pid, "--nproc=1:");
    pidfd::signal(daemon.keeper(), Signal::KILL).unwrap();
    until("the lack of a keeper is reported", || problem(&daemon, "keeper").is_some());
    let found = problem(&daemon, "keeper").unwrap();
    assert!(found.message.contains("if the worker is killed before, every process is lost"), "{found:?}");
    for command in ["status", "doctor"] {
        let output = cli(&daemon, &[command]).uid(UID + 1).gid(UID + 1).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("keeper cannot be started"), "{command}: {text}");
    }
    limit(status.worker_pid, "--nproc=1000:");
    until("a keeper is there again", || daemon.status().faces.problems.is_empty());
    assert_ne!(daemon.status().keeper_pid, status.keeper_pid);
    daemon.kill(Half::Worker);
    assert_eq!(running(&daemon), [process.pid]);
}
