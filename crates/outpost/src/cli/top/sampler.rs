//! The way to the daemon: asked once a second, on a thread that may wait, and found again as often as it goes away.

use crate::cli::approver::printable;
use crate::cli::{connect, explain, manage, sessions};
use crate::paths::Paths;
use outpost_control::client::Client;
use outpost_control::wire::{Kill, Killed, ProcessInfo, Status};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);

/// Between two attempts to find a daemon that is away.
const AGAIN: Duration = Duration::from_millis(200);

/// How long an answer may take before the daemon counts as away.
const PATIENCE: Duration = Duration::from_secs(5);

/// What may wait to be drawn.
const NEWS_MAX: usize = 4;

/// Everything, at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    /// The same by the clock that processes are dated with.
    pub(super) now_ms: u64,
    pub(super) status: Status,
    pub(super) processes: Vec<ProcessInfo>,
    /// Or why they are not known.
    pub(super) sessions: Result<Vec<[String; 7]>, String>,
}

pub(super) enum News {
    Sample(Box<Sample>),
    Away {
        why: String,
    },
    /// What came of ending a process.
    Ended {
        what: String,
    },
}

pub(super) struct Sampler {
    paths: Paths,
    tell: mpsc::Sender<News>,
    pub(super) news: mpsc::Receiver<News>,
}

impl Sampler {
    pub(super) fn begin(paths: &Paths) -> std::io::Result<Sampler> {
        let (tell, news) = mpsc::channel(NEWS_MAX);
        let looker = Looker { paths: paths.clone(), client: None };
        let its_tell = tell.clone();
        std::thread::Builder::new().name("outpost-top".into()).spawn(move || looker.look(&its_tell))?;
        Ok(Sampler { paths: paths.clone(), tell, news })
    }

    /// Ends a process with everything it started, which takes a while.
    pub(super) fn end(&self, process: String, name: String) -> std::io::Result<()> {
        let (paths, tell) = (self.paths.clone(), self.tell.clone());
        std::thread::Builder::new().name("outpost-end".into()).spawn(move || {
            let kill = Kill { process, signal: None, grace_ms: None };
            let killed = connect(&paths)
                .and_then(|mut client| client.call::<Killed>("kill", &kill).map_err(explain))
                .map(|killed| manage::ending(&killed));
            let what = killed.unwrap_or_else(|why| format!("not known to have ended: {}", printable(&why)));
            let _alone = tell.blocking_send(News::Ended { what: format!("{name}: {what}") });
        })?;
        Ok(())
    }
}

struct Looker {
    paths: Paths,
    client: Option<Client>,
}

impl Looker {
    /// Until nobody wants to know any more.
    fn look(mut self, tell: &mpsc::Sender<News>) {
        loop {
            let (news, pause) = match self.sample() {
                Ok(sample) => (News::Sample(Box::new(sample)), TICK),
                Err(why) => (News::Away { why }, AGAIN),
            };
            if tell.blocking_send(news).is_err() {
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
        client.set_patience(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let status: Status = client.call("status", &()).map_err(explain)?;
        let processes = client.call("list", &()).map_err(explain)?;
        self.client = Some(client);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let at = Instant::now();
        Ok(Sample { at, now_ms, status, processes, sessions: sessions::rows(&self.paths, PATIENCE) })
    }
}
