//! One download into a staged file: on a thread of its own, so that progress is told also while nothing comes.

use super::Limits;
use super::agent::{self, Trouble};
use super::staging::Staging;
use super::unpack::Checksum;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = 64 << 10;

/// How a download went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// The longest time that was waited for something to come: the response, or more of it.
    pub(super) longest_pause: Duration,
}

/// Downloads `url` into `blob` and returns its checksum.
pub(super) fn download(
    url: &str,
    blob: &mut Staging,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> (Fetch, Result<String, String>) {
    let begun = Instant::now();
    let state = State::default();
    let outcome = thread::scope(|scope| {
        let (done, wait) = mpsc::sync_channel::<()>(0);
        let worker = thread::Builder::new().name("download".to_owned()).spawn_scoped(scope, || {
            let _ended_with_the_thread = done;
            transfer(url, blob, limits, &state)
        });
        let worker = worker.map_err(|error| format!("download failed: {}", crate::go::io_text(&error)))?;
        while wait.recv_timeout(limits.tick) == Err(RecvTimeoutError::Timeout) {
            progress(state.bytes.load(Ordering::Relaxed), state.total());
        }
        worker.join().unwrap_or_else(|_| Err("download failed: internal error".to_owned()))
    });
    let longest_pause = Duration::from_micros(state.longest_pause_us.load(Ordering::Relaxed));
    let bytes = state.bytes.load(Ordering::Relaxed);
    (Fetch { bytes, elapsed: begun.elapsed(), longest_pause }, outcome)
}

/// What both threads see.
struct State {
    bytes: AtomicU64,
    /// `u64::MAX` until, or unless, the server tells it.
    total: AtomicU64,
    longest_pause_us: AtomicU64,
}

impl Default for State {
    fn default() -> State {
        State { bytes: 0.into(), total: u64::MAX.into(), longest_pause_us: 0.into() }
    }
}

impl State {
    fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total != u64::MAX)
    }

    /// Measures a wait, whatever comes of it.
    fn paused<T>(&self, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let came = wait();
        let pause_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest_pause_us.fetch_max(pause_us, Ordering::Relaxed);
        came
    }

    /// What the client reads; it takes some of these as a reason to try again.
    fn text(&self, trouble: Trouble, limits: &Limits) -> String {
        match trouble {
            Trouble::Failed(text) => format!("download failed: {text}"),
            Trouble::Status(code) => format!("download failed with status {code}"),
            Trouble::Stalled => {
                let total = self.total().map_or_else(|| "unknown".to_owned(), |total| total.to_string());
                let (bytes, limit) = (self.bytes.load(Ordering::Relaxed), limit_text(limits.stall));
                format!("download stalled: no data for {limit} after {bytes}/{total} bytes")
            }
        }
    }
}

fn limit_text(limit: Duration) -> String {
    if limit.subsec_nanos() == 0 {
        format!("{}s", limit.as_secs())
    } else {
        format!("{}ms", limit.as_millis())
    }
}

fn transfer(url: &str, blob: &mut Staging, limits: &Limits, state: &State) -> Result<String, String> {
    let bytes_max = limits.download_bytes_max;
    let too_much = || format!("download failed: response exceeds {bytes_max} bytes");
    let response = state.paused(|| agent::get(url, limits)).map_err(|trouble| state.text(trouble, limits))?;
    let total = response.body().content_length();
    if total.is_some_and(|total| total > bytes_max) {
        return Err(too_much());
    }
    state.total.store(total.unwrap_or(u64::MAX), Ordering::Relaxed);
    let mut body = response.into_body().into_reader();
    let mut checksum = Checksum::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let len = match state.paused(|| body.read(&mut buffer)) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(state.text(agent::body_trouble(error), limits)),
        };
        bytes += len as u64;
        if bytes > bytes_max {
            return Err(too_much());
        }
        let chunk = buffer.get(..len).unwrap_or_default();
        checksum.add(chunk);
        blob.write(chunk).map_err(|text| format!("download failed: {text}"))?;
        state.bytes.store(bytes, Ordering::Relaxed);
    }
    // The library refuses a body that is shorter than announced; that must not depend on the library.
    if total.is_some_and(|total| total != bytes) {
        return Err("download failed: unexpected EOF".to_owned());
    }
    Ok(checksum.hex())
}
