//! What can be measured from outside: the contract's counters, and gauges and latencies of ours, as Prometheus reads them.

use outpost_engine::Engine;
use outpost_metrics::{Kind, Page};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of a histogram's buckets, in microseconds.
const BUCKETS_US: [u64; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000];

const NAMESPACES: [&str; 4] = ["server", "files", "git", "process"];

#[derive(Default)]
struct Latencies {
    buckets: [AtomicU64; BUCKETS_US.len()],
    sum_us: AtomicU64,
    count: AtomicU64,
}

pub struct Metrics {
    engine: Engine,
    connections: AtomicU64,
    disconnections: AtomicU64,
    /// Of those that ended, the ones that never said anything: somebody looked whether we are here.
    silent: AtomicU64,
    spawns: AtomicU64,
    reattaches: AtomicU64,
    stdin_bytes: AtomicU64,
    latencies: [Latencies; NAMESPACES.len()],
}

impl Metrics {
    pub(crate) fn new(engine: Engine) -> Metrics {
        Metrics {
            engine,
            connections: AtomicU64::new(0),
            disconnections: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            spawns: AtomicU64::new(0),
            reattaches: AtomicU64::new(0),
            stdin_bytes: AtomicU64::new(0),
            latencies: Default::default(),
        }
    }

    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn disconnected(&self, has_spoken: bool) {
        self.disconnections.fetch_add(1, Ordering::Relaxed);
        self.silent.fetch_add(u64::from(!has_spoken), Ordering::Relaxed);
    }

    pub(crate) fn spawned(&self) {
        self.spawns.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reattached(&self) {
        self.reattaches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fed(&self, bytes: u64) {
        self.stdin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, namespace: &str, took: Duration) {
        let index = NAMESPACES.iter().position(|known| *known == namespace);
        let Some(latencies) = index.and_then(|index| self.latencies.get(index)) else { return };
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BUCKETS_US.iter().position(|bound| took_us <= *bound) {
            latencies.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        latencies.sum_us.fetch_add(took_us, Ordering::Relaxed);
        latencies.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The contract's counters first, in its order, then ours.
    pub fn render(&self) -> String {
        let counts = self.engine.counts();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connected = read(&self.connections);
        let contract = [
            (
                "connections_total",
                "Client connections accepted.",
                connected.saturating_sub(read(&self.silent)),
            ),
            ("process_spawns_total", "Processes started via process.spawn.", read(&self.spawns)),
            ("process_exits_total", "Managed processes that have exited.", counts.exits_total),
            ("reattaches_total", "process.reattach calls that found their process.", read(&self.reattaches)),
            (
                "stream_bytes_total",
                "Process stdout/stderr bytes streamed to clients.",
                counts.output_bytes_total,
            ),
            ("stdin_bytes_total", "Bytes accepted for child stdin.", read(&self.stdin_bytes)),
        ];
        let mut page = Page::default();
        for (name, help, value) in contract {
            page.one(&format!("claustrum_{name}"), help, Kind::Counter, value);
        }
        let open = connected.saturating_sub(read(&self.disconnections));
        let gauges = [
            ("connections", "Client connections open now.", open),
            ("processes_running", "Processes that run now.", counts.running as u64),
            ("processes_ended", "Ended processes whose output can still be read.", counts.ended as u64),
            (
                "subscribers",
                "Connections that follow a process, once for each process.",
                counts.readers as u64,
            ),
            ("journal_bytes", "Bytes of output and index on disk.", counts.journal_bytes),
        ];
        for (name, help, value) in gauges {
            page.one(&format!("outpost_relay_{name}"), help, Kind::Gauge, value);
        }
        self.append_latencies(&mut page);
        page.into_text()
    }

    fn append_latencies(&self, page: &mut Page) {
        let name = "outpost_relay_request_seconds";
        let help = "From a request's last byte to its answer in the connection's buffer.";
        page.describe(name, help, Kind::Histogram);
        for (namespace, latencies) in NAMESPACES.iter().zip(&self.latencies) {
            let count = latencies.count.load(Ordering::Relaxed);
            let mut below = 0;
            for (bound, bucket) in BUCKETS_US.iter().zip(&latencies.buckets) {
                below += bucket.load(Ordering::Relaxed);
                let bound = *bound as f64 / 1e6;
                let labels = format!("namespace=\"{namespace}\",le=\"{bound}\"");
                page.value(&format!("{name}_bucket"), &labels, below);
            }
            let sum = latencies.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
            let labels = format!("namespace=\"{namespace}\"");
            page.value(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), count);
            page.value(&format!("{name}_sum"), &labels, sum);
            page.value(&format!("{name}_count"), &labels, count);
        }
    }
}
