//! Notifications to the supervisor (mostly systemd), and its watchdog.
//!
//! The supervisor kills a daemon that misses its watchdog, and the children with it. So the keeper answers the watchdog
//! as long as the keeper lives, and kills a worker that sends no heartbeat. The next worker takes over everything.

use crate::keeper::Keeper;
use crate::log::log;
use crate::message::Readiness;
use crate::table::{NOTIFY_ROLE, OWN_SLOT};
use outpost_sys::{file, message};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum number of missed heartbeats: a busy host is no reason to kill the worker.
const MISSED_MAX: u32 = 4;

/// The longest status text of a worker.
const TEXT_BYTES_MAX: u64 = 4096;

/// The state of the notifications.
#[derive(Default)]
pub(crate) struct Supervisor {
    /// Where the supervisor has a watchdog.
    watchdog: Option<Watchdog>,
    /// Since when no worker has served.
    unserved_since: Option<Instant>,
    /// The status shows that no worker serves.
    shows_unserved: bool,
}

impl Supervisor {
    /// No worker serves from now on, if one did.
    pub(crate) fn note_unserved(&mut self) {
        self.unserved_since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.watchdog.map(|watchdog| watchdog.next)
    }
}

#[derive(Clone, Copy)]
struct Watchdog {
    interval: Duration,
    /// The last heartbeat of this worker. None before its first one, since its start may take any time.
    last_heartbeat: Option<Instant>,
    next: Instant,
}

impl Keeper {
    pub(crate) fn notify(&mut self, readiness: Readiness) {
        if readiness == Readiness::Stopping {
            self.stop_begun();
        }
        self.send_notification(readiness.notification());
    }

    /// Shows that no worker serves: the reason, since when, and when the next one is started.
    pub(crate) fn notify_unserved(&mut self, reason: std::fmt::Arguments<'_>, pause: Duration) {
        let since = *self.supervisor.unserved_since.get_or_insert_with(Instant::now);
        let (since_s, pause_ms) = (since.elapsed().as_secs(), pause.as_millis());
        let text =
            format!("STATUS=no worker serves (since {since_s} s): {reason}; trying again in {pause_ms} ms");
        self.send_notification(text.as_bytes());
        self.supervisor.shows_unserved = true;
    }

    /// A worker serves again.
    pub(crate) fn notify_serving(&mut self) {
        self.supervisor.unserved_since = None;
        if std::mem::take(&mut self.supervisor.shows_unserved) {
            self.send_notification(b"STATUS=serving");
        }
    }

    /// Passes the worker's text on, as one line.
    pub(crate) fn show_status(&mut self, file: Option<OwnedFd>) {
        let text = file.and_then(|file| file::read_whole(file, TEXT_BYTES_MAX).ok()).unwrap_or_default();
        let mut status = b"STATUS=".to_vec();
        status.extend(text.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
        self.send_notification(&status);
    }

    /// Best effort: without a supervisor, or with one that does not read, nothing happens.
    fn send_notification(&self, text: &[u8]) {
        if let Some(socket) = self.table.get(&OWN_SLOT).and_then(|own| own.held(NOTIFY_ROLE)) {
            let _unread = message::send(socket, text, &[]);
        }
    }

    /// Answers the supervisor's watchdog from the start, at twice the wanted rate: a worker that never sends a
    /// heartbeat must not get the keeper killed. The heartbeats of a worker that `runs` already are expected from now
    /// on.
    pub(crate) fn start_watchdog(&mut self, runs: bool) {
        let ms =
            self.argument("--watchdog-ms=").and_then(|ms| std::str::from_utf8(ms).ok()?.parse::<u64>().ok());
        let Some(interval) = ms.filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms.div_ceil(2))) else {
            return;
        };
        let now = Instant::now();
        self.supervisor.watchdog =
            Some(Watchdog { interval, last_heartbeat: runs.then_some(now), next: now });
    }

    /// The worker is alive and will repeat this within the interval.
    pub(crate) fn on_heartbeat(&mut self, interval_ms: u32) {
        let (now, interval) = (Instant::now(), Duration::from_millis(interval_ms.into()));
        // The first one is passed on at once, the others by our own timer.
        let next = self.supervisor.watchdog.map_or(now, |watchdog| watchdog.next);
        self.supervisor.watchdog = Some(Watchdog { interval, last_heartbeat: Some(now), next });
    }

    /// Another worker starts.
    pub(crate) fn reset_heartbeat(&mut self) {
        if let Some(watchdog) = &mut self.supervisor.watchdog {
            watchdog.last_heartbeat = None;
        }
    }

    /// Answers the supervisor's watchdog when that is due, and kills a worker without heartbeats.
    pub(crate) fn handle_watchdog(&mut self, now: Instant) {
        let Some(watchdog) = &mut self.supervisor.watchdog else { return };
        if watchdog.next > now {
            return;
        }
        watchdog.next = now + watchdog.interval;
        let silence = watchdog.last_heartbeat.map(|last| now.saturating_duration_since(last));
        if let Some(silence) = silence.filter(|silence| *silence > watchdog.interval * MISSED_MAX) {
            watchdog.last_heartbeat = None;
            log(format_args!("no heartbeat from the worker for {silence:?}; killing it"));
            self.worker.kill();
        }
        self.send_notification(b"WATCHDOG=1");
    }
}
