//! Samples the daemon once a second on a blocking thread and reconnects after an outage.

use crate::approver::printable;
use crate::paths::Paths;
use crate::{connect, explain, lifecycle, sessions};
use outpost_control::client::Client;
use outpost_control::wire::{Kill, Killed, ProcessInfo, Status};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Interval between samples.
const TICK: Duration = Duration::from_secs(1);

/// Interval between connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// How long a reply may take before the daemon counts as unreachable.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Queued events.
const QUEUE_MAX: usize = 4;

/// The state of the daemon at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    /// The same moment in milliseconds since 1970, the clock of `started_ms`.
    pub(super) now_ms: u64,
    pub(super) status: Status,
    pub(super) processes: Vec<ProcessInfo>,
    /// The error if the sessions face cannot be read.
    pub(super) sessions: Result<Vec<[String; 7]>, String>,
}

pub(super) enum SamplerEvent {
    Sample(Box<Sample>),
    Unreachable {
        why: String,
    },
    /// The outcome of a kill.
    KillDone {
        what: String,
    },
}

pub(super) struct Sampler {
    paths: Paths,
    sender: mpsc::Sender<SamplerEvent>,
    pub(super) events: mpsc::Receiver<SamplerEvent>,
}

impl Sampler {
    pub(super) fn start(paths: &Paths) -> std::io::Result<Sampler> {
        let (sender, events) = mpsc::channel(QUEUE_MAX);
        let poller = Poller { paths: paths.clone(), client: None };
        let their_sender = sender.clone();
        std::thread::Builder::new().name("outpost-top".into()).spawn(move || poller.run(&their_sender))?;
        Ok(Sampler { paths: paths.clone(), sender, events })
    }

    /// Kills a process and its descendants on a thread, because it blocks.
    pub(super) fn kill(&self, process: String, name: String) -> std::io::Result<()> {
        let (paths, sender) = (self.paths.clone(), self.sender.clone());
        std::thread::Builder::new().name("outpost-kill".into()).spawn(move || {
            let kill = Kill { process, signal: None, grace_ms: None };
            let killed = connect(&paths)
                .and_then(|mut client| client.call::<Killed>("kill", &kill).map_err(explain))
                .map(|killed| lifecycle::outcome_text(&killed, "TERM"));
            let what = killed.unwrap_or_else(|why| format!("kill failed: {}", printable(first_line(&why))));
            let _closed = sender.blocking_send(SamplerEvent::KillDone { what: format!("{name}: {what}") });
        })?;
        Ok(())
    }
}

struct Poller {
    paths: Paths,
    client: Option<Client>,
}

impl Poller {
    /// Samples until the receiver is dropped.
    fn run(mut self, sender: &mpsc::Sender<SamplerEvent>) {
        loop {
            let (event, pause) = match self.sample() {
                Ok(sample) => (SamplerEvent::Sample(Box::new(sample)), TICK),
                Err(why) => (SamplerEvent::Unreachable { why: first_line(&why).to_owned() }, RETRY_INTERVAL),
            };
            if sender.blocking_send(event).is_err() {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    fn sample(&mut self) -> Result<Sample, String> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => connect(&self.paths)?,
        };
        client.set_timeout(Some(REPLY_TIMEOUT)).map_err(|error| error.to_string())?;
        let status: Status = client.call("status", &()).map_err(explain)?;
        let processes = client.call("list", &()).map_err(explain)?;
        self.client = Some(client);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let at = Instant::now();
        Ok(Sample { at, now_ms, status, processes, sessions: sessions::rows(&self.paths, REPLY_TIMEOUT) })
    }
}

/// An error message without its hint lines.
fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}
