//! Metrics of the whole daemon for Prometheus: numbers only, on loopback, if the operator wants them.

use crate::announced::Announced;
use crate::faces::Board;
use crate::failure::Failure;
use crate::listen::Listen;
use crate::paths::Paths;
use crate::{own_token, roles, socket};
use outpost_engine::Engine;
use outpost_metrics::{Door, Kind, Page};
use outpost_sys::limits::effective_uid;
use outpost_wire::Peers;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::net::TcpListener;

pub(crate) struct MetricsFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) board: &'a Arc<Board>,
    pub(crate) paths: &'a Paths,
    pub(crate) listen: Option<Listen>,
}

impl MetricsFace<'_> {
    /// Begins with the port that the keeper holds, or takes the one that is settled.
    pub(crate) async fn begin(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<(), Failure> {
        let Some(address) = self.listen.and_then(Listen::address) else {
            return match own.remove(&roles::METRICS_PORT) {
                Some(_) => Ok(self.engine.release(roles::METRICS_PORT).await?),
                None => Ok(()),
            };
        };
        let text =
            |error: std::io::Error| Failure::io(format_args!("cannot offer metrics on {address}"), &error);
        let token = own_token::make(&self.paths.metrics_token())?;
        let bind = || StdTcpListener::bind(address).map_err(text);
        let (listener, is_new) = socket::held(self.engine, own, roles::METRICS_PORT, bind).await?;
        let bound = listener.local_addr().map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        let listener = TcpListener::from_std(listener).map_err(text)?;
        own.remove(&roles::METRICS_PORT);
        announced.add(is_new, "metrics", format!("http://{bound}/metrics"), &self.hint(bound));
        let (engine, board) = (self.engine.clone(), self.board.clone());
        let door =
            Door { peers: peers(self.engine), token: token.into_bytes().into(), is_open_to_hosts: false };
        tokio::spawn(outpost_metrics::serve(listener, door, move || render(&engine, &board)));
        Ok(())
    }

    fn hint(&self, bound: SocketAddr) -> String {
        let token = self.paths.metrics_token();
        match effective_uid() {
            0 => {
                format!("curl -H \"Authorization: Bearer $(cat {})\" http://{bound}/metrics", token.display())
            }
            _ => format!("curl http://{bound}/metrics"),
        }
    }
}

/// Clients of the daemon's loopback ports.
pub(crate) fn peers(engine: &Engine) -> Peers {
    let engine = engine.clone();
    Peers::new(move |group| engine.standing_of_group(group))
}

fn render(engine: &Engine, board: &Board) -> String {
    let counts = engine.counts();
    let (all, busy) = board.sessions().map(|sessions| sessions.counts()).unwrap_or_default();
    let questions = board.approvals().map_or(0, |approvals| approvals.queue().len());
    let age = |pid: u32| outpost_sys::procfs::age(pid.cast_signed()).map_or(0.0, |age| age.as_secs_f64());
    let memory = |pid: u32| {
        let pages = outpost_sys::procfs::stat(pid.cast_signed()).map_or(0, |stat| stat.rss_pages);
        pages * outpost_sys::procfs::page_size()
    };
    let mut page = Page::default();
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    page.describe("outpost_build_info", "Which version answers.", Kind::Gauge);
    page.value("outpost_build_info", version, 1);
    let parts = [("keeper", engine.keeper_pid()), ("worker", std::process::id())];
    page.describe("outpost_uptime_seconds", "How long each half of the daemon has run.", Kind::Gauge);
    for (part, pid) in parts {
        page.value("outpost_uptime_seconds", &format!("part=\"{part}\""), age(pid));
    }
    page.describe("outpost_resident_memory_bytes", "Memory of each half.", Kind::Gauge);
    for (part, pid) in parts {
        page.value("outpost_resident_memory_bytes", &format!("part=\"{part}\""), memory(pid));
    }
    for (name, help, value) in [
        ("outpost_processes_running", "Processes that run now.", counts.running as u64),
        ("outpost_processes_ended", "Ended processes whose output can still be read.", counts.ended as u64),
        ("outpost_readers", "Readers of processes' output.", counts.readers as u64),
        ("outpost_journal_bytes", "Bytes of output and index on disk.", counts.journal_bytes),
        ("outpost_questions_waiting", "Questions that wait for a human.", questions as u64),
        (
            "outpost_problems",
            "Parts of the daemon that cannot work now and are retried.",
            board.problems().len() as u64,
        ),
        ("outpost_sessions", "Conversations with agents.", all as u64),
        ("outpost_sessions_busy", "Those of them whose agent is answering.", busy as u64),
    ] {
        page.one(name, help, Kind::Gauge, value);
    }
    let of_worker = [
        ("outpost_output_bytes_total", "Bytes that processes wrote.", counts.output_bytes_total),
        ("outpost_process_exits_total", "Processes that have ended.", counts.exits_total),
    ];
    for (name, help, value) in of_worker {
        page.one(name, help, Kind::Counter, value);
    }
    let turn = "outpost_reactor_turn_max_seconds";
    page.describe(turn, "The longest turn of the event loop that moves all output.", Kind::Gauge);
    page.value(turn, "", counts.longest_turn.as_secs_f64());
    page.into_text()
}
