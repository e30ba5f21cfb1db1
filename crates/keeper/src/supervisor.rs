//! Whoever supervises the daemon, systemd mostly: what it is told, and the worker's pulse, which is our own business.
//!
//! A supervisor that hears nothing would end us, and our children with us, for a worker that hangs or that nobody can
//! start. So it hears of us as long as we live, and a worker whose pulse stops is killed: the next one has everything.

use crate::keeper::Keeper;
use crate::log::log;
use crate::message::Said;
use crate::table::{NOTIFY_ROLE, OWN_SLOT};
use crate::worker::Worker;
use outpost_sys::{file, message};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// So many beats may be missed: a host that is busy is no reason to kill.
const MISSED_MAX: u32 = 4;

/// The longest text that a worker may have shown.
const TEXT_BYTES_MAX: u64 = 4096;

#[derive(Clone, Copy)]
pub(crate) struct Pulse {
    every: Duration,
    /// When this worker was last heard; none before its first beat: beginning takes as long as it takes.
    heard: Option<Instant>,
    next: Instant,
}

impl Keeper {
    /// One that does not listen, or is not there, is none of our worries.
    pub(crate) fn notify(&mut self, said: Said) {
        if said == Said::Stopping {
            self.stop_begun();
        }
        self.say(said.words());
    }

    /// No worker serves: why, since when, and when another one is tried.
    pub(crate) fn say_unserved(&mut self, why: std::fmt::Arguments<'_>, pause: Duration) {
        let since = *self.unserved_since.get_or_insert_with(Instant::now);
        let (since_s, pause_ms) = (since.elapsed().as_secs(), pause.as_millis());
        let text =
            format!("STATUS=no worker serves (since {since_s} s): {why}; trying again in {pause_ms} ms");
        self.say(text.as_bytes());
        self.said_unserved = true;
    }

    /// A worker serves again.
    pub(crate) fn say_served(&mut self) {
        self.unserved_since = None;
        if std::mem::take(&mut self.said_unserved) {
            self.say(b"STATUS=serving");
        }
    }

    /// Passes the worker's text on, as one line.
    pub(crate) fn say_text(&mut self, file: Option<OwnedFd>) {
        let text = file.and_then(|file| file::read_whole(file, TEXT_BYTES_MAX).ok()).unwrap_or_default();
        let mut words = b"STATUS=".to_vec();
        words.extend(text.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
        self.say(&words);
    }

    fn say(&self, words: &[u8]) {
        let own = self.table.get(&OWN_SLOT);
        if let Some((_, socket)) = own.and_then(|own| own.held.iter().find(|(role, _)| *role == NOTIFY_ROLE))
        {
            let _unheard = message::send(socket, words, &[]);
        }
    }

    /// Answers a supervisor's watchdog from the start, at twice the rate that it wants: a worker that never sends a pulse must
    /// not cost the keeper its life. A worker that ran before this keeper has its pulse counted from now on.
    pub(crate) fn begin_pulse(&mut self, runs: bool) {
        let ms =
            self.argument("--watchdog-ms=").and_then(|ms| std::str::from_utf8(ms).ok()?.parse::<u64>().ok());
        let Some(every) = ms.filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms.div_ceil(2))) else {
            return;
        };
        let now = Instant::now();
        self.pulse = Some(Pulse { every, heard: runs.then_some(now), next: now });
    }

    /// The worker lives, and will say so again after this time.
    pub(crate) fn worker_beats(&mut self, every_ms: u32) {
        let (now, every) = (Instant::now(), Duration::from_millis(every_ms.into()));
        // The first one is for whoever waits for it; all others come by our own clock.
        let next = self.pulse.map_or(now, |pulse| pulse.next);
        self.pulse = Some(Pulse { every, heard: Some(now), next });
    }

    /// Another worker begins.
    pub(crate) fn forget_pulse(&mut self) {
        if let Some(pulse) = &mut self.pulse {
            pulse.heard = None;
        }
    }

    pub(crate) fn next_beat(&self) -> Option<Instant> {
        self.pulse.map(|pulse| pulse.next)
    }

    pub(crate) fn keep_pulse(&mut self, now: Instant) {
        let Some(pulse) = &mut self.pulse else { return };
        if pulse.next > now {
            return;
        }
        pulse.next = now + pulse.every;
        let silent = pulse.heard.map(|heard| now.saturating_duration_since(heard));
        if let Some(silent) = silent.filter(|silent| *silent > pulse.every * MISSED_MAX) {
            pulse.heard = None;
            log(format_args!("the worker has said nothing for {silent:?}; killing it for another"));
            self.worker.iter().for_each(Worker::kill);
        }
        self.say(b"WATCHDOG=1");
    }
}
