//! The end of processes: signals and escalation, trees with and without cgroups, descendants that hold pipes, replaced
//! keys.

use crate::support::{Host, POLL_INTERVAL, Seen, TIMEOUT, read_all, read_until, shell, until, within};
use outpost_engine::{
    Config, Engine, Error, ExitCause, KillReport, Ladder, OnTaken, Process, Reach, Signal, Status,
};
use outpost_sys::procfs;
use std::time::Duration;

fn ladder(signal: Signal, grace_ms: u64, escalate: bool) -> Ladder {
    Ladder { signal, reach: Reach::Group, grace: Duration::from_millis(grace_ms), escalate }
}

const CLEAN: KillReport = KillReport { already_exited: false, died: true, escalated: false, survivors: 0 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_and_wait_reports_the_escalation() {
    let host = Host::new();
    let gentle = host.sh("gentle", "exec sleep 1000").await;
    assert_eq!(gentle.kill_and_wait(ladder(Signal::TERM, 5000, true)).await, Ok(CLEAN));
    assert_eq!(gentle.exited().await.unwrap().cause, ExitCause::Signal(15));
    let again = gentle.kill_and_wait(ladder(Signal::TERM, 5000, true)).await;
    assert_eq!(again, Ok(KillReport { already_exited: true, ..CLEAN }));

    let stubborn = host.sh("stubborn", "trap '' TERM; echo deaf; while :; do sleep 1000; done").await;
    read_until(&mut stubborn.subscribe(0), &mut Seen::default(), |seen| seen.stdout == b"deaf\n").await;
    let left = stubborn.kill_and_wait(ladder(Signal::TERM, 50, false)).await;
    assert_eq!(left, Ok(KillReport { died: false, ..CLEAN }));
    assert_eq!(stubborn.status(), Status::Running);
    let forced = stubborn.kill_and_wait(ladder(Signal::TERM, 50, true)).await;
    assert_eq!(forced, Ok(KillReport { escalated: true, ..CLEAN }));
    assert_eq!(stubborn.exited().await.unwrap().cause, ExitCause::Signal(9));
    assert_eq!(
        stubborn.signal(Signal::TERM, Reach::Group).await,
        Err(Error::NotRunning),
        "never to a recycled number"
    );
    host.close().await;
}

/// Forks twice, enters a new session and writes its pid, as tools of agents do.
const DOUBLE_FORK: &str = "(setsid sh -c 'echo escaped $$; exec sleep 1000' &) ; (env -u NOTHING sh -c 'echo child $$; exec sleep 1000' &); exec sleep 1000";

async fn escaped_pids(process: &Process) -> Vec<i32> {
    let mut seen = Seen::default();
    let lines = |seen: &Seen| String::from_utf8_lossy(&seen.stdout).lines().count();
    read_until(&mut process.subscribe(0), &mut seen, |seen| lines(seen) == 2).await;
    String::from_utf8_lossy(&seen.stdout)
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

fn alive(pid: i32) -> bool {
    procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

async fn tree_dies(host: Host) {
    let process = host.sh("tree", DOUBLE_FORK).await;
    let pids = escaped_pids(&process).await;
    let pidfds: Vec<_> = pids.iter().map(|pid| outpost_testkit::process(*pid).unwrap()).collect();
    assert!(pids.iter().all(|pid| alive(*pid)));
    process.signal(Signal::KILL, Reach::Tree).await.unwrap();
    within("the exit", process.exited()).await.unwrap();
    for (pid, pidfd) in pids.iter().zip(&pidfds) {
        assert!(
            outpost_sys::epoll::wait_readable(pidfd, Duration::from_secs(10)).unwrap(),
            "pid {pid} lives"
        );
    }
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_kill_reaches_double_forked_and_setsid_descendants() {
    tree_dies(Host::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_kill_reaches_them_without_cgroups_too() {
    tree_dies(Host::with(|config| config.cgroups = false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descendant_that_holds_the_pipe_neither_delays_the_exit_nor_dies_of_sigpipe() {
    let host = Host::new();
    let script = "(echo $$; trap 'echo trapped >&2' PIPE; read line < fifo; i=0; while [ $i -lt 1000 ]; do echo late; i=$((i+1)); done; echo survived > proof) & exit 4";
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap();
    assert!(made.success());
    let mut spawn = shell("holder", script);
    spawn.directory = Some(dir.path().to_owned());
    let process = host.engine.spawn(spawn).await.unwrap();
    let exit = within("the exit although the pipe is held", process.finished()).await.unwrap();
    assert_eq!(exit.cause, ExitCause::Code(4));
    let before = read_all(&process, 0).await;
    // Now the descendant writes more than fits into the pipe.
    let fifo = dir.path().join("fifo");
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "go\n")).await.unwrap().unwrap();
    within("the descendant", async {
        while !dir.path().join("proof").exists() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    assert_eq!(read_all(&process, 0).await, before, "nothing follows the exit");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_key_is_refused_or_its_process_is_replaced_and_killed() {
    let host = Host::new();
    let old = host.sh("same", "echo old; exec sleep 1000").await;
    let refused = host.engine.spawn(shell("same", "true")).await.map(|_| ());
    assert_eq!(refused, Err(Error::Taken { id: "same".into() }));
    let mut replacement = shell("same", "echo new; exec sleep 1000");
    replacement.on_taken = OnTaken::Replace;
    let mut reader = old.subscribe(0);
    read_until(&mut reader, &mut Seen::default(), |seen| seen.stdout == b"old\n").await;
    let old_pidfd = outpost_testkit::process(old.pid()).unwrap();
    let new = host.engine.spawn(replacement).await.unwrap();
    assert_eq!(host.engine.find(new.key()).await.unwrap().slot(), new.slot());
    assert!(outpost_sys::epoll::wait_readable(&old_pidfd, Duration::from_secs(10)).unwrap());
    let next = within("the old reader", reader.next(&mut outpost_engine::Batch::default())).await;
    assert_eq!(next, Err(Error::Gone));
    // The key of an ended process is free.
    new.kill_and_wait(ladder(Signal::KILL, 5000, false)).await.unwrap();
    let third = host.sh("same", "exit 0").await;
    assert_eq!(host.engine.list().await.len(), 1);
    within("the third", third.finished()).await.unwrap();
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_has_the_description_and_the_usage_of_each_process() {
    let host = Host::new();
    let mut spawn = shell("one", "echo hello; exec sleep 1000");
    spawn.started_by = "a test".into();
    let process = host.engine.spawn(spawn).await.unwrap();
    let _reader = process.subscribe(0);
    read_until(&mut process.subscribe(0), &mut Seen::default(), |seen| seen.stdout == b"hello\n").await;
    // During exec a process has no memory.
    within("some memory", async {
        while process.info().rss_bytes == 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    let info = host.engine.list().await[0].info();
    assert_eq!((info.pid, info.status, info.readers), (process.pid(), Status::Running, 1));
    assert_eq!((info.bytes_total, info.last_seq, info.started_by.as_str()), (6, 1, "a test"));
    assert!(info.started_ms > 1_600_000_000_000);
    assert_eq!(info.arguments[0], "sh");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_has_ended_when_its_last_member_has() {
    for cgroups in [true, false] {
        let host = Host::with(|config| config.cgroups = cgroups);
        let script =
            "(setsid sh -c 'trap \"\" TERM; echo deaf $$; while :; do sleep 1000; done' &); exec sleep 1000";
        let process = host.sh("tree", script).await;
        let mut seen = Seen::default();
        read_until(&mut process.subscribe(0), &mut seen, |seen| seen.stdout.ends_with(b"\n")).await;
        let deaf: i32 =
            String::from_utf8_lossy(&seen.stdout).trim().rsplit(' ').next().unwrap().parse().unwrap();
        let deaf_pidfd = outpost_testkit::process(deaf).unwrap();
        let climb = Ladder { reach: Reach::Tree, ..ladder(Signal::TERM, 100, true) };
        let report = process.kill_and_wait(climb).await;
        assert_eq!(report, Ok(KillReport { escalated: true, ..CLEAN }), "with cgroups: {cgroups}");
        assert!(outpost_sys::epoll::wait_readable(&deaf_pidfd, Duration::from_secs(10)).unwrap());
        host.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_process_holds_no_descriptor_and_no_terminal() {
    // Prepared slots have descriptors too.
    let host = Host::with(|config| config.prepared_slots_max = 0);
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut spawn = shell("warm", "exit 0");
    spawn.stdio = outpost_engine::Stdio::Terminal(outpost_engine::Size { rows: 24, cols: 80 });
    within("warm", host.engine.spawn(spawn.clone()).await.unwrap().finished()).await.unwrap();
    let before = count();
    for id in 0..20 {
        spawn.key.id = id.to_string();
        let process = host.engine.spawn(spawn.clone()).await.unwrap();
        within("the end", process.finished()).await.unwrap();
    }
    within("all descriptors closed", async {
        while count() > before {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slot_is_prepared_after_all_processes_were_stopped() {
    for _ in 0..50 {
        let host = Host::new();
        // The pool is empty, so slots are being prepared from now on.
        let process = host.sh("p", "exit 0").await;
        within("the end", host.engine.end_processes(TIMEOUT)).await.unwrap();
        drop(process);
        std::fs::remove_dir_all(host.dir()).unwrap();
        within("the keeper's end", host.engine.end_keeper()).await.unwrap();
        assert!(!host.dir().exists());
    }
}

/// The state after a worker died while it killed a tree without a cgroup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_worker_finishes_a_tree_kill() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { cgroups: false, ..Config::new(dir.path()) };
    let engine = Engine::with_keeper_thread(config()).unwrap();
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let process = engine.spawn(shell("cut", script)).await.unwrap();
    let seen = read_all(&process, 0).await;
    let left: i32 = String::from_utf8(seen.stdout).unwrap().trim().parse().unwrap();
    let left = outpost_testkit::process(left).unwrap();
    let note = dir.path().join("processes").join(process.slot().to_string()).join("kill");
    engine.shut_down(TIMEOUT).await.unwrap();
    assert!(!outpost_sys::epoll::is_readable(&left), "what a process left behind lives on");
    std::fs::write(&note, "").unwrap();
    let engine = Engine::with_keeper_thread(config()).unwrap();
    assert!(outpost_sys::epoll::wait_readable(&left, TIMEOUT).unwrap(), "the descendant lives");
    until("the note is removed", || !note.exists()).await;
    engine.shut_down(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_kill_without_cgroups_is_recorded_on_disk_while_it_lasts() {
    let host = Host::with(|config| config.cgroups = false);
    let script = "i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; echo up; wait";
    let process = host.sh("large", script).await;
    read_until(&mut process.subscribe(0), &mut Seen::default(), |seen| seen.stdout == b"up\n").await;
    let note = host.dir().join("processes").join(process.slot().to_string()).join("kill");
    assert!(!note.exists());
    let (killing, killed) = (process.clone(), note.clone());
    let kill = tokio::spawn(async move { killing.kill_tree().await });
    until("the note", || killed.exists() || kill.is_finished()).await;
    assert!(note.exists(), "the kill was not noted");
    assert_eq!(within("the kill", kill).await.unwrap(), Ok(0));
    assert!(!note.exists(), "the kill is done");
    host.close().await;
}
