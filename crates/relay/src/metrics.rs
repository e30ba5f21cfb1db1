//! Prometheus metrics: the contract's counters, and Outpost's own gauges and latency histograms.

use crate::methods::Namespace;
use outpost_engine::Engine;
use outpost_wire::metrics::{Kind, Page};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the histogram buckets, in microseconds.
const BUCKETS_US: [u64; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000];

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
    /// Closed connections that sent no line: liveness probes. `connections_total` does not count them.
    probe_connections: AtomicU64,
    spawns: AtomicU64,
    reattaches: AtomicU64,
    stdin_bytes: AtomicU64,
    latencies: [Latencies; Namespace::ALL.len()],
}

impl Metrics {
    pub(crate) fn new(engine: Engine) -> Metrics {
        Metrics {
            engine,
            connections: AtomicU64::new(0),
            disconnections: AtomicU64::new(0),
            probe_connections: AtomicU64::new(0),
            spawns: AtomicU64::new(0),
            reattaches: AtomicU64::new(0),
            stdin_bytes: AtomicU64::new(0),
            latencies: Default::default(),
        }
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self, has_received_line: bool) {
        self.disconnections.fetch_add(1, Ordering::Relaxed);
        self.probe_connections.fetch_add(u64::from(!has_received_line), Ordering::Relaxed);
    }

    pub(crate) fn process_spawned(&self) {
        self.spawns.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn process_reattached(&self) {
        self.reattaches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stdin_accepted(&self, bytes: u64) {
        self.stdin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn request_completed(&self, namespace: Namespace, latency: Duration) {
        let Some(latencies) = self.latencies.get(namespace as usize) else { return };
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BUCKETS_US.iter().position(|bound| latency_us <= *bound) {
            latencies.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        latencies.sum_us.fetch_add(latency_us, Ordering::Relaxed);
        latencies.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The page has the contract's counters first, in the contract's order.
    pub fn render(&self) -> String {
        let counts = self.engine.counts();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connected = read(&self.connections);
        let contract = [
            (
                "connections_total",
                "Client connections accepted.",
                connected.saturating_sub(read(&self.probe_connections)),
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
        for ((namespace, _), latencies) in Namespace::ALL.iter().zip(&self.latencies) {
            let count = latencies.count.load(Ordering::Relaxed);
            let mut cumulative = 0;
            for (bound, bucket) in BUCKETS_US.iter().zip(&latencies.buckets) {
                cumulative += bucket.load(Ordering::Relaxed);
                let bound = *bound as f64 / 1e6;
                let labels = format!("namespace=\"{namespace}\",le=\"{bound}\"");
                page.value(&format!("{name}_bucket"), &labels, cumulative);
            }
            let sum = latencies.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
            let labels = format!("namespace=\"{namespace}\"");
            page.value(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), count);
            page.value(&format!("{name}_sum"), &labels, sum);
            page.value(&format!("{name}_count"), &labels, count);
        }
    }
}
