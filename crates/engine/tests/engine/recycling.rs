//! Recycled pids: in a pid namespace with few pids, signals reach the processes that they are for and no other.

use crate::support::{Host, POLL_INTERVAL, TIMEOUT, shell, within};
use outpost_engine::{Process, Reach, Signal};
use outpost_sys::cgroup::Parent;
use outpost_sys::epoll::wait_readable;
use outpost_sys::identity::Identity;
use outpost_sys::{kernel, pidfd, procfs};
use outpost_testkit::{Lack, no_cgroups, require, root};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The name of the test that runs in the namespace.
const INSIDE: &str = "OUTPOST_TEST_FEW_PIDS";

/// Pids below 300 are used once. So about a hundred are recycled.
const PID_MAX: &str = "400";

/// Runs the calling test again as root of a pid namespace with few pids. True in that run.
fn has_few_pids(test: &str) -> Result<bool, Lack> {
    if std::env::var(INSIDE).is_ok_and(|name| name == test) {
        std::fs::write("/proc/sys/kernel/pid_max", PID_MAX).unwrap();
        return Ok(true);
    }
    root()?;
    if kernel::version_in(&kernel::release()) < (6, 14) {
        return Err(Lack::of_host("before Linux 6.14 pid_max is the whole host's"));
    }
    let exe = std::env::current_exe().unwrap();
    // The shell reaps orphans, as the first process of a pid namespace must.
    let run = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(exe)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
    Ok(false)
}

/// Short unrelated processes.
#[derive(Default)]
struct Strangers {
    stop: AtomicBool,
    ended: AtomicUsize,
    signalled: AtomicUsize,
}

impl Strangers {
    /// Starts one after the other until it is stopped.
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            // All pids may be in use for a moment.
            let Ok(status) = Command::new("/bin/sleep").arg("0.01").status() else { continue };
            self.ended.fetch_add(1, Ordering::Relaxed);
            if status.signal().is_some() {
                self.signalled.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Runs `body` while at least `count` unrelated processes start and end. None of them may get a signal.
fn among_unrelated_processes(count: usize, body: impl FnOnce(&dyn Fn() -> usize)) {
    const THREADS: usize = 6;
    let strangers = Strangers::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| strangers.run());
        }
        body(&|| strangers.ended.load(Ordering::Relaxed));
        while strangers.ended.load(Ordering::Relaxed) < count {
            outpost_testkit::pause();
        }
        strangers.stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(strangers.signalled.load(Ordering::Relaxed), 0, "an unrelated process got a signal");
}

#[test]
fn a_recycled_pid_is_not_signalled_by_an_identity_of_before() {
    if !require!(has_few_pids("recycling::a_recycled_pid_is_not_signalled_by_an_identity_of_before")) {
        return;
    }
    among_unrelated_processes(500, |ended| {
        for _ in 0..6 {
            let own = std::process::id().cast_signed();
            let is_stranger = |stat: &procfs::Stat| stat.parent == own && stat.is_alive();
            let (seen, all) = (ended(), procfs::all());
            let before = all
                .into_iter()
                .filter(is_stranger)
                .filter_map(|stat| Some((stat, pidfd::open(stat.pid).ok()?)));
            let before: Vec<_> = before.collect();
            // Long enough for every pid to be another process's.
            while ended() < seen + 100 {
                outpost_testkit::pause();
            }
            for (stat, opened) in before {
                assert!(wait_readable(&opened, TIMEOUT).unwrap(), "an unrelated process does not end");
                if let Ok(process) = Identity::of(&stat).open() {
                    let _gone = pidfd::signal(&process, Signal::KILL);
                }
            }
        }
    });
}

#[test]
fn a_recycled_pid_is_not_taken_for_a_member_of_a_cgroup() {
    if !require!(has_few_pids("recycling::a_recycled_pid_is_not_taken_for_a_member_of_a_cgroup")) {
        return;
    }
    let parent = Parent::detect(&format!("outpost-recycling-{}", std::process::id()));
    let parent = require!(parent.unwrap().ok_or_else(no_cgroups));
    let group = parent.group("g");
    let dir = group.create().unwrap();
    among_unrelated_processes(500, |ended| {
        for _ in 0..6 {
            let mut members: Vec<_> =
                (0..5).flat_map(|_| Command::new("/bin/sleep").arg("1000").spawn()).collect();
            for member in &members {
                let procs = format!("/proc/self/fd/{}/cgroup.procs", dir.as_raw_fd());
                std::fs::write(procs, member.id().to_string()).unwrap();
            }
            let before = group.members();
            assert_eq!(before.len(), members.len());
            members.iter_mut().for_each(|member| member.kill().unwrap());
            members.iter_mut().for_each(|member| assert!(!member.wait().unwrap().success()));
            let seen = ended();
            while ended() < seen + 100 {
                outpost_testkit::pause();
            }
            for process in before.into_iter().filter_map(|pid| group.open_member(pid).ok()) {
                let _gone = pidfd::signal(&process, Signal::KILL);
            }
        }
    });
    group.destroy(TIMEOUT).unwrap();
    parent.remove().unwrap();
}

/// A shell whose tree changes all the time. It outlives SIGTERM, its children do not. Those of low priority take their
/// time to die, so the others' pids are recycled while the tree is killed.
const TREE: &str = "trap : TERM; for i in 1 2 3 4 5 6; do nice -n 19 sh -c 'while :; do :; done' & done;
    while :; do for i in 1 2 3 4 5; do sleep 0.01 & done; sleep 0.01; done";

async fn start(host: &Host, id: &str) -> Process {
    loop {
        // All pids may be in use for a moment.
        if let Ok(process) = host.engine.spawn(shell(id, TREE)).await {
            return process;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn kill_trees(host: Host) {
    for round in 0..20 {
        let process = start(&host, &format!("tree-{round}")).await;
        let terms = if round % 2 == 0 { 0 } else { 10 };
        for _ in 0..terms {
            let _ended_already = process.signal(Signal::TERM, Reach::Tree).await;
        }
        assert_eq!(process.kill_tree().await, Ok(0));
        within("the end of a tree", process.exited()).await.unwrap();
    }
    host.close().await;
}

fn kills_among_unrelated_processes(cgroups: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    among_unrelated_processes(500, |_| {
        runtime.block_on(kill_trees(Host::with(|config| config.cgroups = cgroups)));
    });
}

#[test]
fn a_tree_kill_without_cgroups_signals_no_process_with_a_recycled_pid() {
    let test = "recycling::a_tree_kill_without_cgroups_signals_no_process_with_a_recycled_pid";
    if require!(has_few_pids(test)) {
        kills_among_unrelated_processes(false);
    }
}

#[test]
fn a_tree_kill_with_cgroups_signals_no_process_with_a_recycled_pid() {
    let test = "recycling::a_tree_kill_with_cgroups_signals_no_process_with_a_recycled_pid";
    if require!(has_few_pids(test)) {
        kills_among_unrelated_processes(true);
    }
}
