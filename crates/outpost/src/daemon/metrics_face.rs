//! The optional metrics face: gauges and counters of the whole daemon for Prometheus, on a loopback port.

use super::faces::ComponentRegistry;
use super::fd_roles;
use super::listeners::Listeners;
use super::socket::{self, Port};
use crate::failure::Failure;
use crate::port_token;
use outpost_cli::listen::ListenAddress;
use outpost_cli::paths::Paths;
use outpost_engine::Engine;
use outpost_sys::process::effective_uid;
use outpost_wire::metrics::{self, Kind, Page};
use outpost_wire::{Peers, TokenCheck};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) struct MetricsFace<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) registry: &'a Arc<ComponentRegistry>,
    pub(crate) paths: &'a Paths,
    pub(crate) listen: Option<ListenAddress>,
}

impl MetricsFace<'_> {
    /// Starts the face on the inherited port or the configured one.
    pub(crate) async fn start(
        &self,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<(), Failure> {
        let Some(address) = self.listen.and_then(ListenAddress::address) else {
            return socket::release(self.engine, inherited, fd_roles::METRICS_PORT).await;
        };
        let token = port_token::load_or_create(&self.paths.metrics_token())?;
        let role = fd_roles::METRICS_PORT;
        let Port { listener, bound, is_new } =
            socket::acquire_port(self.engine, inherited, role, address, socket::bind_port).await?;
        inherited.remove(&fd_roles::METRICS_PORT);
        listeners.add(is_new, "metrics", format!("http://{bound}/metrics"), &self.hint(bound));
        let (engine, registry) = (self.engine.clone(), self.registry.clone());
        let (peers, token) = (peers(self.engine), TokenCheck::of(token.into_bytes()));
        tokio::spawn(metrics::serve(listener, peers, token, move || render(&engine, &registry)));
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

/// The access check for clients of the daemon's loopback ports.
pub(crate) fn peers(engine: &Engine) -> Peers {
    let engine = engine.clone();
    Peers::new(move |group| engine.standing_of_group(group))
}

fn render(engine: &Engine, registry: &ComponentRegistry) -> String {
    let counts = engine.counts();
    let (all, busy) = registry.sessions().map(|sessions| sessions.counts()).unwrap_or_default();
    let questions = registry.approvals().map_or(0, |approvals| approvals.queue().len());
    let age = |pid: u32| outpost_sys::procfs::age(pid.cast_signed()).map_or(0.0, |age| age.as_secs_f64());
    let memory = |pid: u32| {
        let pages = outpost_sys::procfs::stat(pid.cast_signed()).map_or(0, |stat| stat.rss_pages);
        pages * outpost_sys::procfs::page_size()
    };
    let mut page = Page::default();
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    page.describe("outpost_build_info", "Version of the daemon.", Kind::Gauge);
    page.value("outpost_build_info", version, 1);
    let parts = [("keeper", engine.keeper_pid()), ("worker", std::process::id())];
    page.describe("outpost_uptime_seconds", "Time since the start of keeper and worker.", Kind::Gauge);
    for (part, pid) in parts {
        page.value("outpost_uptime_seconds", &format!("part=\"{part}\""), age(pid));
    }
    page.describe("outpost_resident_memory_bytes", "Resident memory of keeper and worker.", Kind::Gauge);
    for (part, pid) in parts {
        page.value("outpost_resident_memory_bytes", &format!("part=\"{part}\""), memory(pid));
    }
    for (name, help, value) in [
        ("outpost_processes_running", "Running processes.", counts.running as u64),
        ("outpost_processes_ended", "Exited processes whose output is kept.", counts.ended as u64),
        ("outpost_readers", "Open readers of process output.", counts.readers as u64),
        ("outpost_journal_bytes", "Bytes of output and index on disk.", counts.journal_bytes),
        ("outpost_questions_waiting", "Questions that wait for an approver.", questions as u64),
        ("outpost_problems", "Components that fail now and are retried.", registry.problems().len() as u64),
        ("outpost_sessions", "Conversations with agents.", all as u64),
        ("outpost_sessions_busy", "Sessions with a running turn.", busy as u64),
    ] {
        page.one(name, help, Kind::Gauge, value);
    }
    let counters = [
        ("outpost_output_bytes_total", "Bytes that processes wrote.", counts.output_bytes_total),
        ("outpost_process_exits_total", "Processes that exited.", counts.exits_total),
    ];
    for (name, help, value) in counters {
        page.one(name, help, Kind::Counter, value);
    }
    let turn = "outpost_reactor_turn_max_seconds";
    page.describe(turn, "Longest iteration of the reactor thread's event loop.", Kind::Gauge);
    page.value(turn, "", counts.longest_turn.as_secs_f64());
    page.into_text()
}
