//! Downloads a URL into a staged file. A separate thread transfers, so that progress lines continue during a stall.

use super::Limits;
use super::decompress::Checksum;
use super::http::{self, DownloadError};
use super::staging::StagedFile;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = 64 << 10;

/// Measurements of a download.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DownloadStats {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// The longest wait for the response or for more data.
    pub(super) longest_pause: Duration,
}

/// Downloads `url` into `blob` and returns its checksum.
pub(super) fn download(
    url: &str,
    blob: &mut StagedFile,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> (DownloadStats, Result<String, String>) {
    let begun = Instant::now();
    let state = State::default();
    let outcome = thread::scope(|scope| {
        let (alive, ended) = mpsc::sync_channel::<()>(0);
        let worker = thread::Builder::new().name("download".to_owned()).spawn_scoped(scope, || {
            // Dropped at the end of the thread, which wakes the receiver.
            let _alive = alive;
            transfer(url, blob, limits, &state)
        });
        let worker = worker
            .map_err(|error| format!("download failed: {}", outpost_relay::go_compat::io_text(&error)))?;
        while ended.recv_timeout(limits.progress_interval) == Err(RecvTimeoutError::Timeout) {
            progress(state.bytes.load(Ordering::Relaxed), state.total());
        }
        worker.join().unwrap_or_else(|_| Err("download failed: internal error".to_owned()))
    });
    let longest_pause = Duration::from_micros(state.longest_pause_us.load(Ordering::Relaxed));
    let bytes = state.bytes.load(Ordering::Relaxed);
    (DownloadStats { bytes, elapsed: begun.elapsed(), longest_pause }, outcome)
}

/// State that both threads share.
struct State {
    bytes: AtomicU64,
    /// `u64::MAX` if the server has not sent a length.
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

    /// Measures the duration of a blocking call.
    fn measure_pause<T>(&self, blocking: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = blocking();
        let pause_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest_pause_us.fetch_max(pause_us, Ordering::Relaxed);
        result
    }

    /// The `cliError` text. Clients retry on some of these texts.
    fn error_text(&self, error: DownloadError, limits: &Limits) -> String {
        match error {
            DownloadError::Failed(text) => format!("download failed: {text}"),
            DownloadError::Status(code) => format!("download failed with status {code}"),
            DownloadError::Stalled => {
                let total = self.total().map_or_else(|| "unknown".to_owned(), |total| total.to_string());
                let (bytes, limit) =
                    (self.bytes.load(Ordering::Relaxed), duration_text(limits.stall_timeout));
                format!("download stalled: no data for {limit} after {bytes}/{total} bytes")
            }
        }
    }
}

fn duration_text(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

fn transfer(url: &str, blob: &mut StagedFile, limits: &Limits, state: &State) -> Result<String, String> {
    let bytes_max = limits.download_bytes_max;
    let too_large = || format!("download failed: response exceeds {bytes_max} bytes");
    let response = state.measure_pause(|| http::get(url, limits));
    let response = response.map_err(|error| state.error_text(error, limits))?;
    let total = response.body().content_length();
    if total.is_some_and(|total| total > bytes_max) {
        return Err(too_large());
    }
    state.total.store(total.unwrap_or(u64::MAX), Ordering::Relaxed);
    let mut body = response.into_body().into_reader();
    let mut checksum = Checksum::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let len = match state.measure_pause(|| body.read(&mut buffer)) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(state.error_text(http::body_error(error), limits)),
        };
        bytes += len as u64;
        if bytes > bytes_max {
            return Err(too_large());
        }
        let chunk = buffer.get(..len).unwrap_or_default();
        checksum.add(chunk);
        blob.write(chunk).map_err(|text| format!("download failed: {text}"))?;
        state.bytes.store(bytes, Ordering::Relaxed);
    }
    // ureq reports a truncated body as an error, but this check must not depend on ureq.
    if total.is_some_and(|total| total != bytes) {
        return Err("download failed: unexpected EOF".to_owned());
    }
    Ok(checksum.hex())
}
