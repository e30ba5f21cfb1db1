//! The settings of a process under a worker that adopts it. The test plays the keeper.

use crate::support::{TIMEOUT, read_all, until, within};
use outpost_engine::{Config, Engine, Key, Lifecycle, Process};
use outpost_keeper::{Event, FdRoles, MESSAGE_BYTES_MAX, ProcessState, Request};
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd;
use outpost_sys::spawn::{self, Child, Executable, Started};
use outpost_sys::{message, pipe};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const SLOT: u64 = 0x001a_1ed8_920d_e001;

/// The role of a child's standard output.
const STDOUT: u8 = 2;

fn start(script: &str, stdout: BorrowedFd<'_>) -> Started {
    let null = file::open("/dev/null", Open::ReadWrite).unwrap();
    let script = CString::new(script).unwrap();
    let (arguments, null) = ([c"sh", c"-c", script.as_c_str()], null.as_fd());
    let descriptors = [(null, 0), (stdout, 1), (null, 2)];
    let program = Executable::Path(c"/bin/sh");
    spawn::spawn(&Child::new(
        program,
        &arguments,
        &[c"PATH=/usr/bin:/bin"],
        spawn::SessionKind::Group,
        &descriptors,
    ))
    .unwrap()
}

fn entry(child: &Started, state: ProcessState, pidfd: bool, held: FdRoles) -> Vec<u8> {
    Event::Entry { slot: SLOT, pid: child.pid, state, pidfd, held }.encode()
}

/// The record of a process with these settings in its description.
fn describe(dir: &Path, settings: &str) -> PathBuf {
    let place = dir.join(format!("processes/{SLOT:x}"));
    std::fs::create_dir_all(&place).unwrap();
    let description = format!(
        r#"{{"key":{{"face":"test","scope":"","id":"p"}},"program":"/bin/sh","arguments":["sh"],"directory":null,
        "terminal":false,"started_ms":1,"started_by":"",{settings}}}"#
    );
    std::fs::write(place.join("process.json"), description).unwrap();
    std::fs::write(place.join("index"), "").unwrap();
    place
}

/// An engine whose keeper holds a process that runs `script`, and the keeper's end of the link.
fn begin(dir: &Path, script: &str) -> (Engine, Started, OwnedFd) {
    let stdout = pipe::pipe().unwrap();
    file::set_nonblocking(&stdout.read).unwrap();
    let child = start(script, stdout.write.as_fd());
    let (keeper, link) = message::pair().unwrap();
    let held = entry(&child, ProcessState::Running, true, FdRoles::new([STDOUT]).unwrap());
    message::send(&keeper, &held, &[child.pidfd.as_fd(), stdout.read.as_fd()]).unwrap();
    message::send(&keeper, &Event::TableEnd.encode(), &[]).unwrap();
    let config = Config { cgroups: false, ..Config::new(dir) };
    let (engine, _) = Engine::start(config, link, Lifecycle::Embedded, |_, _| ()).unwrap();
    (engine, child, keeper)
}

async fn found(engine: &Engine) -> Process {
    within("the adoption", engine.find(&Key::new("test", "", "p"))).await.unwrap()
}

/// An engine that adopts a process with these settings in its description, and the keeper's end of the link.
async fn adopted(dir: &Path, settings: &str, script: &str) -> (Engine, Process, Started, OwnedFd) {
    describe(dir, settings);
    let (engine, child, keeper) = begin(dir, script);
    let process = found(&engine).await;
    (engine, process, child, keeper)
}

fn report_exit(keeper: &OwnedFd, child: &Started) {
    assert!(wait_readable(&child.pidfd, TIMEOUT).unwrap());
    let exit = pidfd::reap(&child.pidfd).unwrap().unwrap();
    message::send(keeper, &entry(child, ProcessState::Ended(exit), false, FdRoles::EMPTY), &[]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cap_of_a_journal_holds_under_the_next_worker() {
    const MIB: u64 = 1024 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let settings = format!(r#""journal_bytes_max":{}"#, 8 * MIB);
    let (_engine, process, child, keeper) =
        adopted(dir.path(), &settings, "head -c 67108864 /dev/zero").await;
    until("all output is recorded", || process.info().bytes_total == 64 * MIB).await;
    report_exit(&keeper, &child);
    within("the end", process.finished()).await.unwrap();
    assert!(process.info().bytes_kept <= 16 * MIB, "{} bytes are kept", process.info().bytes_kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drain_time_holds_under_the_next_worker() {
    let dir = tempfile::tempdir().unwrap();
    let settings = r#""drain":{"quiet":{"secs":15,"nanos":0},"longest":{"secs":15,"nanos":0}}"#;
    let script = "(sleep 0.5; echo late) & echo early";
    let (_engine, process, child, keeper) = adopted(dir.path(), settings, script).await;
    report_exit(&keeper, &child);
    assert_eq!(read_all(&process, 0).await.stdout, b"early\nlate\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_record_cannot_be_opened_is_neither_killed_nor_erased() {
    let dir = tempfile::tempdir().unwrap();
    let index = describe(dir.path(), r#""boot_id":"""#).join("index");
    // A directory in place of the file fails every open.
    std::fs::remove_file(&index).unwrap();
    std::fs::create_dir(&index).unwrap();
    let (engine, child, keeper) = begin(dir.path(), "echo hello");
    let unadopted = engine.lacks().borrow().unadopted;
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    file::set_nonblocking(&keeper).unwrap();
    while let Ok(Some(len)) = message::receive(&keeper, &mut bytes, &mut Vec::new()) {
        let request = Request::decode(&bytes[..len]).unwrap();
        let ends = matches!(request, Request::Signal { .. } | Request::Forget { .. });
        assert!(!ends, "the process is ended: {request:?}");
    }
    assert_eq!(unadopted, 1, "the first attempt fails");
    std::fs::remove_dir(&index).expect("the record is still there");
    std::fs::write(&index, "").unwrap();
    let process = found(&engine).await;
    report_exit(&keeper, &child);
    assert_eq!(read_all(&process, 0).await.stdout, b"hello\n");
}
