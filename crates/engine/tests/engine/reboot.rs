//! Records of processes after a restart of the host, in the states that a power failure leaves.

use crate::support::{Seen, TIMEOUT, read_all, shell, until, within};
use outpost_engine::{Config, Engine, ExitCause, ExitUnknown, Process};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The records of one process that ended, and of one that ran when the power failed.
struct Records {
    dir: TempDir,
    ended: PathBuf,
    cut_off: PathBuf,
}

impl Records {
    async fn new() -> Records {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::with_keeper_thread(config(dir.path())).unwrap();
        let ended = engine.spawn(shell("ended", "echo of the ended; exit 7")).await.unwrap();
        within("the end", ended.finished()).await.unwrap();
        let cut_off = engine.spawn(shell("cut off", "echo of the cut off; exec sleep 1000")).await.unwrap();
        until("output", || cut_off.sequence().1 > 0).await;
        let at = |process: &Process| dir.path().join("processes").join(process.slot().to_string());
        let (ended, cut_off) = (at(&ended), at(&cut_off));
        // The record while it runs.
        let copy = dir.path().join("copy");
        copy_files(&cut_off, &copy);
        engine.shut_down(TIMEOUT).await.unwrap();
        copy_files(&copy, &cut_off);
        fs::remove_dir_all(copy).unwrap();
        let records = Records { dir, ended, cut_off };
        records.restart_host();
        records
    }

    /// The descriptions are of another boot.
    fn restart_host(&self) {
        [&self.ended, &self.cut_off].into_iter().for_each(|record| set_another_boot(record));
    }

    fn engine(&self) -> Engine {
        Engine::with_keeper_thread(config(self.dir.path())).unwrap()
    }
}

fn set_another_boot(record: &Path) {
    let path = record.join("process.json");
    let mut description: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(description["boot_id"].as_str().is_some_and(|id| !id.is_empty()));
    description["boot_id"] = "another".into();
    fs::write(&path, serde_json::to_vec(&description).unwrap()).unwrap();
}

fn config(dir: &Path) -> Config {
    Config { prepared_slots_max: 0, cgroups: false, ..Config::new(dir) }
}

fn copy_files(from: &Path, to: &Path) {
    let _there = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

async fn of_slot(engine: &Engine, record: &Path) -> Option<Process> {
    let slot = record.file_name().unwrap().to_str().unwrap().parse().unwrap();
    engine.get(slot).await
}

/// The output of a record.
async fn seen(engine: &Engine, record: &Path) -> (Process, Seen) {
    let process = of_slot(engine, record).await.expect("the record is listed");
    let seen = read_all(&process, 0).await;
    (process, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ran_at_the_restart_has_an_unknown_exit_with_that_reason() {
    let records = Records::new().await;
    // File systems leave zeros where the last block was never written.
    for record in [&records.ended, &records.cut_off] {
        let mut bytes = fs::read(record.join("out.0")).unwrap();
        bytes.resize(4096, 0);
        fs::write(record.join("out.0"), bytes).unwrap();
    }
    let engine = records.engine();
    let (process, read) = seen(&engine, &records.cut_off).await;
    assert_eq!(read.stdout, b"of the cut off\n");
    assert_eq!(read.ended.unwrap().exit.cause, ExitCause::Unknown);
    assert_eq!(process.info().exit_unknown, Some(ExitUnknown::HostRestarted));
    assert_eq!(process.info().arguments[2], "echo of the cut off; exec sleep 1000");
    let (process, read) = seen(&engine, &records.ended).await;
    assert_eq!(read.stdout, b"of the ended\n");
    assert_eq!(read.ended.unwrap().exit.cause, ExitCause::Code(7));
    assert_eq!(process.info().exit_unknown, None);
    engine.shut_down(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_without_its_index_is_not_erased() {
    for index in [None, Some(0), Some(4096)] {
        let records = Records::new().await;
        for record in [&records.ended, &records.cut_off] {
            match index {
                None => fs::remove_file(record.join("index")).unwrap(),
                Some(zeros) => fs::write(record.join("index"), vec![0; zeros]).unwrap(),
            }
        }
        let engine = records.engine();
        for (record, text) in [(&records.ended, "of the ended\n"), (&records.cut_off, "of the cut off\n")] {
            let (process, read) = seen(&engine, record).await;
            assert_eq!(String::from_utf8_lossy(&read.stdout), text, "{index:?}");
            assert_eq!(process.info().exit_unknown, Some(ExitUnknown::HostRestarted));
        }
        engine.shut_down(TIMEOUT).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_description_loses_neither_output_nor_exit_and_expires() {
    for description in [None, Some(&[][..]), Some(&[0; 4096]), Some(b"{\"key\":")] {
        let records = Records::new().await;
        for record in [&records.ended, &records.cut_off] {
            match description {
                None => fs::remove_file(record.join("process.json")).unwrap(),
                Some(bytes) => fs::write(record.join("process.json"), bytes).unwrap(),
            }
        }
        let engine = records.engine();
        let (process, read) = seen(&engine, &records.ended).await;
        assert_eq!(
            (&read.stdout[..], read.ended.unwrap().exit.cause),
            (&b"of the ended\n"[..], ExitCause::Code(7))
        );
        assert!(process.info().arguments.is_empty());
        let age_ms =
            process.started_ms().abs_diff(records.dir.path().metadata().unwrap().created().map_or_else(
                |_| process.started_ms(),
                |time| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64,
            ));
        assert!(age_ms < 60_000, "{age_ms} ms");
        let (process, read) = seen(&engine, &records.cut_off).await;
        assert_eq!(
            (&read.stdout[..], read.ended.unwrap().exit.cause),
            (&b"of the cut off\n"[..], ExitCause::Unknown)
        );
        assert_eq!(process.info().exit_unknown, Some(ExitUnknown::RecordDamaged));
        engine.configure(|config| config.exited_kept = Duration::ZERO);
        until("retention", || !records.ended.exists() && !records.cut_off.exists()).await;
        engine.shut_down(TIMEOUT).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unused_slot_is_removed_and_a_lost_process_is_not() {
    let records = Records::new().await;
    let place = |name: &str, files: &[(&str, &[u8])]| {
        let dir = records.dir.path().join("processes").join(name);
        fs::create_dir(&dir).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
        dir
    };
    let unused = [
        place("1001", &[]),
        place("1002", &[("process.json", b"")]),
        place("1003", &[("process.json", b""), ("index", b"")]),
    ];
    let lost = [
        place("1004", &[("process.json", &[0; 100]), ("index", b"")]),
        place("1005", &[("process.json", b""), ("index", &[0; 64])]),
        place("1006", &[("out.0", b"bytes")]),
        place("1007", &[("process.json", b""), ("index", b""), ("stdin", b"input")]),
    ];
    let engine = records.engine();
    engine.list().await;
    until("places to be removed", || unused.iter().all(|dir| !dir.exists())).await;
    for record in &lost {
        let (process, read) = seen(&engine, record).await;
        assert_eq!(read.ended.unwrap().exit.cause, ExitCause::Unknown, "{}", record.display());
        assert_eq!(process.info().exit_unknown, Some(ExitUnknown::RecordDamaged));
    }
    assert_eq!(seen(&engine, &lost[2]).await.1.stdout, b"bytes");
    engine.shut_down(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_record_is_kept_for_its_retention_time() {
    let records = Records::new().await;
    fs::remove_file(records.ended.join("index")).unwrap();
    fs::create_dir(records.ended.join("index")).unwrap();
    let engine = records.engine();
    engine.list().await;
    assert!(of_slot(&engine, &records.ended).await.is_none() && records.ended.join("out.0").exists());
    engine.shut_down(TIMEOUT).await.unwrap();
    let config = Config { exited_kept: Duration::ZERO, ..config(records.dir.path()) };
    let engine = Engine::with_keeper_thread(config).unwrap();
    until("its removal", || !records.ended.exists()).await;
    engine.shut_down(TIMEOUT).await.unwrap();
}

/// The file `synced` is written after each sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_synced_within_the_interval_unless_that_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let interval = Duration::from_millis(30);
    let engine =
        Engine::with_keeper_thread(Config { sync_interval: Duration::ZERO, ..config(dir.path()) }).unwrap();
    let process = engine.spawn(shell("writer", "echo one; read line; echo two; sleep 1000")).await.unwrap();
    until("output", || process.sequence().1 == 1).await;
    let note = dir.path().join("processes").join(process.slot().to_string()).join("synced");
    assert!(!note.exists());
    engine.configure(|config| config.sync_interval = interval);
    until("the first sync", || note.exists()).await;
    let first = fs::read(&note).unwrap();
    process.write_stdin(None, b"\n".to_vec()).await.unwrap();
    until("the second sync", || fs::read(&note).unwrap() != first).await;
    // For many journals the whole file system is synced.
    let mut notes = Vec::new();
    for number in 0..40 {
        let process = engine.spawn(shell(&number.to_string(), "echo one")).await.unwrap();
        notes.push(dir.path().join("processes").join(process.slot().to_string()).join("synced"));
    }
    until("all to be synced", || notes.iter().all(|note| note.exists())).await;
    engine.shut_down(TIMEOUT).await.unwrap();
}

/// With the same boot id the record names the process. So the other half of this test detects a missing check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_boot_does_not_name_a_process_of_this_boot() {
    for is_of_another_boot in [true, false] {
        let (today, earlier) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = Engine::with_keeper_thread(config(today.path())).unwrap();
        let process = engine.spawn(shell("p", "echo here; exec sleep 1000")).await.unwrap();
        until("output", || process.sequence().1 > 0).await;
        let record = |dir: &Path| dir.join("processes").join(process.slot().to_string());
        fs::create_dir(earlier.path().join("processes")).unwrap();
        copy_files(&record(today.path()), &record(earlier.path()));
        if is_of_another_boot {
            set_another_boot(&record(earlier.path()));
        }
        let later = Engine::with_keeper_thread(config(earlier.path())).unwrap();
        let found = later.get(process.slot()).await.expect("the record is listed");
        assert_eq!(found.pid(), process.pid());
        within("the kill", found.kill_tree()).await.unwrap();
        if is_of_another_boot {
            process.signal(outpost_engine::Signal::CONT, outpost_engine::Reach::Leader).await.unwrap();
            assert_eq!(process.status(), outpost_engine::Status::Running);
        } else {
            within("the end", process.finished()).await.unwrap();
        }
        later.shut_down(TIMEOUT).await.unwrap();
        engine.shut_down(TIMEOUT).await.unwrap();
    }
}
