//! An engine for tests, in a directory of its own, that kills its processes at the end.

use outpost_engine::{Batch, Config, Ended, Engine, Key, Process, Spawn, Stream, Subscription};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Host {
    pub(crate) engine: Engine,
    dir: TempDir,
}

/// The interval in which a condition is polled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The longest wait of a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        change(&mut config);
        Host { engine: Engine::with_keeper_thread(config).unwrap(), dir }
    }

    /// The directory of the journals.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn sh(&self, id: &str, script: &str) -> Process {
        self.engine.spawn(shell(id, script)).await.unwrap()
    }

    /// Stops the engine. The last call of a test.
    pub(crate) async fn close(self) {
        self.engine.shut_down(TIMEOUT).await.unwrap();
    }
}

/// A shell that runs `script`.
pub(crate) fn shell(id: &str, script: &str) -> Spawn {
    let mut spawn = Spawn::new(Key::new("test", "", id), ["sh", "-c", script]);
    spawn.program = "/bin/sh".into();
    spawn
}

/// The result of a reader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) seqs: Vec<u64>,
    pub(crate) first_kept: Option<u64>,
    pub(crate) ended: Option<Ended>,
}

impl Seen {
    pub(crate) fn take(&mut self, batch: &Batch) {
        self.first_kept = self.first_kept.or(batch.first_kept);
        for (frame, bytes) in batch.frames() {
            assert!(bytes.len() <= 32 * 1024 && !bytes.is_empty());
            self.seqs.push(frame.seq);
            match frame.stream {
                Stream::Stdout => self.stdout.extend_from_slice(bytes),
                Stream::Stderr => self.stderr.extend_from_slice(bytes),
            }
        }
        if let Some(ended) = batch.ended {
            assert_eq!(self.ended.replace(ended), None, "the exit comes once");
            self.seqs.push(ended.seq);
        }
    }
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took too long"),
    }
}

/// Reads until `enough`.
pub(crate) async fn read_until(
    subscription: &mut Subscription,
    seen: &mut Seen,
    enough: impl Fn(&Seen) -> bool,
) {
    let mut batch = Batch::default();
    while !enough(seen) {
        within("reading", subscription.next(&mut batch)).await.unwrap();
        seen.take(&batch);
    }
}

/// Reads a process from `after` to its end.
pub(crate) async fn read_all(process: &Process, after: u64) -> Seen {
    let mut seen = Seen::default();
    read_until(&mut process.subscribe(after), &mut seen, |seen| seen.ended.is_some()).await;
    seen
}

/// Waits until a condition holds that no event reports.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
