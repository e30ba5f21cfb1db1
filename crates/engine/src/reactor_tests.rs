//! Steps of the reactor whose timing only a unit test can control.

use crate::adoption::{self, handle};
use crate::link::KeeperLink;
use crate::prepare::{self, Prepared};
use crate::process::Status;
use crate::process_dir::Description;
use crate::reactor::{self, Reactor, outpost_now_ms};
use crate::{Config, Engine, Exit, Key, Lifecycle, OnTaken, Spawn, prepared_slots};
use outpost_journal::Writer;
use outpost_keeper::ProcessState::Running;
use outpost_keeper::{Event, FdRoles, MESSAGE_BYTES_MAX, Request, SLOT_MIN};
use outpost_sys::file::{self, Open};
use outpost_sys::{message, procfs};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;
use tokio::sync::mpsc;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The interval in which a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A turn that drops this many records delays other processes little.
const DROPPED_IN_A_TURN_MAX: usize = 64;

/// A reactor that the test drives, with the table and the link of an idle engine.
fn second_reactor(engine: &Engine) -> Reactor {
    let (_no_commands, receiver) = mpsc::channel(1);
    Reactor::new(engine.shared.clone(), receiver, Lifecycle::Embedded).unwrap()
}

fn add_ended_process(engine: &Engine) {
    let shared = &engine.shared;
    let slot = shared.next_slot();
    let (dir, _description) = shared.process_dirs.create(slot).unwrap();
    let writer = Writer::create(&dir, 1 << 20).unwrap();
    let (description, status) = (Description::lost(slot), Status::Finished(Exit::UNKNOWN));
    let process = handle(shared, slot, description, writer.journal().clone(), None, status);
    process.set_ended_ms(outpost_now_ms());
    shared.table().insert(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_the_reactor_drops_few_of_many_expired_records() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { cgroups: false, exited_max: 0, ..Config::new(dir.path()) };
    let engine = Engine::with_keeper_thread(config).unwrap();
    (0..5 * DROPPED_IN_A_TURN_MAX).for_each(|_| add_ended_process(&engine));
    let mut driven = second_reactor(&engine);
    let kept = || engine.shared.table().len();
    let mut step = |step: &mut dyn FnMut(&mut Reactor)| {
        let before = kept();
        step(&mut driven);
        let dropped = before - kept();
        assert!((1..=DROPPED_IN_A_TURN_MAX).contains(&dropped), "one turn dropped {dropped} of {before}");
    };
    step(&mut |reactor| reactor.handle_command(reactor::Command::Configured));
    while kept() > 0 {
        step(&mut Reactor::retain);
    }
}

/// A start under the key `id` that is in the table and that the reactor has not received. Another start has taken its
/// key.
async fn replaced_start(engine: &Engine, id: &str) -> Prepared {
    let shared = &engine.shared;
    let key = Key::new("test", "", id);
    let spawn = Spawn { program: "/bin/sleep".into(), ..Spawn::new(key.clone(), ["sleep", "1000"]) };
    let slot = prepared_slots::prepare(shared).unwrap();
    shared.prepared_slots.skip_to(slot.slot);
    let prepared = prepare::prepare(shared, &spawn, slot).unwrap();
    let second = engine.spawn(Spawn { on_taken: OnTaken::Replace, ..spawn }).await.unwrap();
    let listed = engine.list().await.into_iter().filter(|process| *process.key() == key);
    assert_eq!(listed.map(|process| process.slot()).collect::<Vec<_>>(), [second.slot()]);
    prepared
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_replaced_before_the_reactor_receives_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::with_keeper_thread(Config { cgroups: false, ..Config::new(dir.path()) }).unwrap();
    let Prepared { child, .. } = replaced_start(&engine, "replaced").await;
    let process = child.process.clone();
    engine.shared.command(reactor::Command::Start { child }).await.unwrap();
    let lives = |pid| procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'));
    let has_ended = async {
        while process.pid() == 0 || lives(process.pid()) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, has_ended).await.expect("the process runs on");
    engine.shut_down(TIMEOUT).await.unwrap();
}

/// Set in the process that has few descriptors.
const FEW_DESCRIPTORS: &str = "OUTPOST_TEST_FEW_DESCRIPTORS";
const DESCRIPTORS_MAX: usize = 256;

/// The descriptors that a worker needs for connections and files of clients.
const CLIENTS_NEED: usize = 40;

/// Opens descriptors until this many are left.
fn take_descriptors(left: usize) -> Vec<File> {
    let mut all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(all.len() >= left, "{} descriptors could be taken", all.len());
    all.truncate(all.len() - left);
    all
}

#[test]
fn a_worker_leaves_enough_descriptors_for_clients_when_it_adopts_processes() {
    const TEST: &str =
        "reactor_tests::a_worker_leaves_enough_descriptors_for_clients_when_it_adopts_processes";
    if std::env::var_os(FEW_DESCRIPTORS).is_some() {
        receive_a_table_that_does_not_fit();
        return ask_again_when_descriptors_are_left();
    }
    let mut again = Command::new("prlimit");
    again.arg(format!("--nofile={DESCRIPTORS_MAX}:{DESCRIPTORS_MAX}")).arg(std::env::current_exe().unwrap());
    let output = again.args(["--exact", TEST]).env(FEW_DESCRIPTORS, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn receive_a_table_that_does_not_fit() {
    const PROCESSES: usize = 60;
    let (keeper, link) = message::pair().unwrap();
    let null = file::open("/dev/null", Open::ReadWrite).unwrap();
    let roles = FdRoles::new([1, 2, 3]).unwrap();
    for slot in 1..=PROCESSES as u64 {
        let slot = SLOT_MIN + slot;
        let entry = Event::Entry { slot, pid: 1, state: Running, pidfd: false, held: roles };
        message::send(&keeper, &entry.encode(), &[null.as_fd(); 3]).unwrap();
    }
    message::send(&keeper, &Event::TableEnd.encode(), &[]).unwrap();
    let table = adoption::receive_table(&KeeperLink::new(link)).unwrap();
    let (taken, missing) = (table.entries.len(), table.missing.len());
    assert_eq!(taken + missing, PROCESSES);
    // Each opens an index and a segment too.
    assert!(taken > 20 && taken * 5 + CLIENTS_NEED <= DESCRIPTORS_MAX, "{taken} were adopted");
}

fn ask_again_when_descriptors_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::with_keeper_thread(Config { cgroups: false, ..Config::new(dir.path()) }).unwrap();
    let mut reactor = second_reactor(&engine);
    // The test plays the keeper of both reactors.
    let (keeper, link) = message::pair().unwrap();
    engine.shared.link.connect(link);
    let missing = BTreeSet::from([SLOT_MIN + 1, SLOT_MIN + 2]);
    reactor.lack_descriptors(missing.clone());
    let asked = || {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let received = message::receive(&keeper, &mut bytes, &mut Vec::new());
        received.ok().flatten().and_then(|len| Request::decode(&bytes[..len]))
    };
    let taken = take_descriptors(CLIENTS_NEED);
    reactor.ask_for_missing();
    assert_eq!(asked(), None, "too few are left");
    drop(taken);
    // One at a time, since the descriptors of one may be the last that are left.
    for slot in missing {
        reactor.ask_for_missing();
        assert_eq!(asked(), Some(Request::Resend { slot }));
        reactor.ask_for_missing();
        assert_eq!(asked(), None);
        reactor.no_longer_missing(slot);
    }
}
