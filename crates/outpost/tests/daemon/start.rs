//! The start of the daemon: lock, permissions, users other than root, and the limits that children get.

use crate::support::{daemon, exit_code, outpost, read, sh};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Daemon, require};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_second_daemon_names_the_running_keeper_and_exits() {
    let daemon = daemon();
    let second = || {
        let before = daemon.status();
        let second = Command::new(outpost())
            .args(["--state-dir", "state", "--runtime-dir", "run", "serve"])
            .current_dir(daemon.dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(second.status.code(), Some(3));
        let errors = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(errors.contains(&format!("already running here (keeper {})", before.keeper_pid)), "{errors}");
        assert_eq!(daemon.status().worker_pid, before.worker_pid);
    };
    second();
    // The keeper that took the lock is dead, and another one runs.
    daemon.kill(outpost_testkit::Half::Keeper);
    second();
}

#[test]
fn sockets_and_directories_are_for_their_owner_only() {
    let daemon = daemon();
    let mode = |path: &str| daemon.dir().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("run/control.sock"), 0o600);
    assert_eq!(mode("run"), 0o700);
    assert_eq!(mode("state"), 0o700);
    let process = sh(&daemon, "p", "echo secret").process;
    read(&daemon, &process, usize::MAX);
    assert_eq!(mode(&format!("state/processes/{process}")), 0o700);
    assert_eq!(mode(&format!("state/processes/{process}/out.0")), 0o600);
}

#[test]
fn children_get_the_original_limits_and_no_descriptors_of_the_daemon() {
    let daemon = daemon();
    let process =
        sh(&daemon, "p", "ulimit -Sn; ls /proc/self/fd | wc -w; grep -E 'Sig(Blk|Ign)' /proc/self/status")
            .process;
    let (output, exit) = read(&daemon, &process, usize::MAX);
    let text = String::from_utf8_lossy(&output).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let ours =
        outpost_sys::limits::descriptors().soft.map_or("unlimited".to_owned(), |limit| limit.to_string());
    // Three standard descriptors and the directory that ls opens.
    assert_eq!(lines[..2], [ours.as_str(), "4"]);
    assert!(lines[2..].iter().all(|line| line.ends_with("\t0000000000000000")), "{text}");
    assert_eq!(exit_code(exit), Some(0));
}

#[test]
fn records_of_an_earlier_daemon_are_found_and_cut_off_processes_are_marked() {
    let daemon = daemon();
    let done = sh(&daemon, "done", "echo kept; exit 6").process;
    read(&daemon, &done, usize::MAX);
    let cut = sh(&daemon, "cut", "echo cut; exec sleep 1000");
    assert_eq!(read(&daemon, &cut.process, 4).0, b"cut\n");
    let child = outpost_testkit::process(cut.pid).unwrap();
    // Kill both at the same time, as a host crash does.
    let (keeper, worker) = (daemon.keeper(), daemon.worker());
    for half in [&worker, &keeper] {
        pidfd::signal(half, Signal::STOP).unwrap();
    }
    // The worker first: the exit of the keeper would orphan the worker's process group, and the kernel sends SIGHUP and
    // SIGCONT to an orphaned group with a stopped member.
    for half in [&worker, &keeper] {
        pidfd::signal(half, Signal::KILL).unwrap();
        assert!(wait_readable(half, TIMEOUT).unwrap());
    }
    let again = Daemon::start_in(outpost(), daemon.dir());
    let (output, exit) = read(&again, &done, usize::MAX);
    assert_eq!((output.as_slice(), exit_code(exit)), (&b"kept\n"[..], Some(6)));
    let (output, exit) = read(&again, &cut.process, usize::MAX);
    let exit = exit.unwrap();
    assert_eq!((output.as_slice(), exit.code, exit.signal), (&b"cut\n"[..], None, None));
    // The cgroup is empty shortly before the process is a zombie.
    assert!(wait_readable(&child, TIMEOUT).unwrap(), "an orphan of the earlier daemon is left");
}

#[test]
fn it_runs_for_a_user_who_is_not_root() {
    require!(outpost_testkit::root());
    let daemon = Daemon::start_as(outpost(), 65534);
    let process = sh(&daemon, "p", "(setsid sh -c 'echo $$; exec sleep 1000' &); id -u; read line; exit 8");
    let mut output = Vec::new();
    while output.iter().filter(|byte| **byte == b'\n').count() < 2 {
        output = read(&daemon, &process.process, output.len() + 1).0;
    }
    assert!(String::from_utf8_lossy(&output).contains("65534\n"), "{output:?}");
    daemon.kill(outpost_testkit::Half::Worker);
    daemon.kill(outpost_testkit::Half::Keeper);
    let killed: outpost_control::wire::Killed =
        daemon.ask("kill", &serde_json::json!({"process": process.process, "graceMs": 0}));
    assert!(killed.died, "{killed:?}");
    let escaped: i32 = String::from_utf8_lossy(&output)
        .lines()
        .find_map(|line| line.parse().ok().filter(|pid| *pid != 65534))
        .unwrap();
    let alive = outpost_sys::procfs::stat(escaped).filter(|stat| !matches!(stat.state, b'Z' | b'X'));
    assert_eq!(alive, None, "the descendant in a session of its own is dead too");
}

#[test]
fn a_daemon_that_cannot_start_exits_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("state")).unwrap();
    std::fs::write(dir.path().join("state/processes"), "in the way").unwrap();
    let serve = Command::new(outpost())
        .args(["--state-dir", "state", "--runtime-dir", "run", "serve"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&serve.stderr).into_owned();
    assert_eq!(serve.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("state/processes") && errors.contains("there are no children; ending"),
        "{errors}"
    );
}

#[test]
fn completions_and_manual_pages_are_generated_from_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let done = Command::new(outpost()).args(arguments).current_dir(dir.path()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]);
        assert!(text.contains("upgrade") && text.contains("follow"), "{shell}");
    }
    run(&["man", "pages"]);
    let page = std::fs::read_to_string(dir.path().join("pages/outpost-logs.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
    assert!(page.contains("Start after this sequence number"), "{page}");
}
