//! The state of `outpost top`: the last sample, the changes since the previous one, selection, filter and sort order.

use super::sampler::{Sample, SamplerEvent};
use crate::fullscreen::Size;
use crate::ps;
use outpost_control::wire::{ProcessInfo, Status};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Instant;

pub(super) struct App {
    /// The processes of the last sample, with changes since the previous one.
    pub(super) rows: Vec<Row>,
    /// Indexes of the visible rows, in display order.
    pub(super) order: Vec<usize>,
    /// A slot number, so that changes of the list do not move the selection to another process.
    pub(super) selected: Option<String>,
    pub(super) view: View,
    pub(super) dialog: Dialog,
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) show_ended: bool,
    /// The last event or error.
    pub(super) status: String,
    pub(super) daemon: Option<Status>,
    pub(super) sessions: Result<Vec<[String; 7]>, String>,
    pub(super) throughput: Option<Throughput>,
    pub(super) outage: Option<Outage>,
    pub(super) size: Size,
    pub(super) now_ms: u64,
    sampled_at: Option<Instant>,
}

pub(super) struct Row {
    pub(super) info: ProcessInfo,
    /// The shortest unambiguous reference, unescaped.
    pub(super) name: String,
    /// Percent of one CPU since the previous sample.
    pub(super) cpu: Option<u64>,
    /// Output in bytes per second.
    pub(super) rate: Option<u64>,
}

impl Row {
    pub(super) fn is_running(&self) -> bool {
        self.info.exit.is_none()
    }
}

/// Totals of all processes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Throughput {
    pub(super) started: f64,
    pub(super) ended: f64,
    pub(super) bytes: u64,
}

pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    List,
    /// Details of the selected process, from row `top` on.
    Details {
        top: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialog {
    None,
    /// The filter while it is typed.
    Filter(Vec<u8>),
    /// Keeps its process even if the list changes.
    ConfirmKill {
        process: String,
        name: String,
        pid: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Age,
    Cpu,
    Memory,
    Rate,
}

impl App {
    pub(super) fn new(size: Size, show_ended: bool) -> App {
        App {
            rows: Vec::new(),
            order: Vec::new(),
            selected: None,
            view: View::List,
            dialog: Dialog::None,
            filter: String::new(),
            sort: Sort::Cpu,
            reversed: false,
            show_ended,
            status: String::new(),
            daemon: None,
            sessions: Ok(Vec::new()),
            throughput: None,
            outage: None,
            size,
            now_ms: 0,
            sampled_at: None,
        }
    }

    pub(super) fn on_event(&mut self, event: SamplerEvent) {
        match event {
            SamplerEvent::Sample(sample) => self.on_sample(*sample),
            SamplerEvent::Unreachable { why } => {
                let since = self.outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
                self.outage = Some(Outage { since, why });
            }
            SamplerEvent::KillDone { what } => self.status = what,
        }
    }

    fn on_sample(&mut self, sample: Sample) {
        let replaced = self.daemon.as_ref().map(|daemon| daemon.worker_pid);
        if let Some(before) = replaced.filter(|before| *before != sample.status.worker_pid) {
            self.status = format!("worker {before} was replaced by {}", sample.status.worker_pid);
        }
        let elapsed_ms = self.sampled_at.map(|before| sample.at.duration_since(before).as_millis() as u64);
        let before: HashMap<String, Row> =
            self.rows.drain(..).map(|row| (row.info.process.clone(), row)).collect();
        let names = ps::names(&sample.processes);
        let since = PreviousSample { before, elapsed_ms: elapsed_ms.filter(|elapsed| *elapsed > 0) };
        self.throughput = since.throughput(&sample.processes);
        self.rows =
            sample.processes.into_iter().zip(names).map(|(info, name)| since.row(info, name)).collect();
        self.sampled_at = Some(sample.at);
        (self.now_ms, self.sessions, self.outage) = (sample.now_ms, sample.sessions, None);
        self.daemon = Some(sample.status);
        if self.selected_row().is_none() {
            self.view = View::List;
        }
        self.update_order();
    }

    /// Updates filter result, order and selection.
    pub(super) fn update_order(&mut self) {
        let at = self.selected_at().unwrap_or_default();
        let wanted = self.filter.to_lowercase();
        let is_shown = |row: &Row| (self.show_ended || row.is_running()) && matches_filter(row, &wanted);
        let mut order: Vec<usize> =
            self.rows.iter().enumerate().filter(|(_, row)| is_shown(row)).map(|(at, _)| at).collect();
        order.sort_by(|one, two| match (self.rows.get(*one), self.rows.get(*two)) {
            (Some(one), Some(two)) => self.compare(one, two),
            _ => Ordering::Equal,
        });
        self.order = order;
        // The process of the details view may have left the list.
        let is_open = self.view != View::List && self.selected_row().is_some();
        if self.selected_at().is_none() && !is_open {
            let near = self.order.get(at).or(self.order.last());
            self.selected = near.and_then(|near| self.rows.get(*near)).map(|row| row.info.process.clone());
        }
    }

    /// The largest value first, then the newest process.
    fn compare(&self, one: &Row, two: &Row) -> Ordering {
        let by = match self.sort {
            Sort::Name => one.name.cmp(&two.name),
            Sort::Age => Ordering::Equal,
            Sort::Cpu => two.cpu.cmp(&one.cpu),
            Sort::Memory => two.info.rss_bytes.cmp(&one.info.rss_bytes),
            Sort::Rate => two.rate.cmp(&one.rate),
        };
        let by = by.then_with(|| two.info.started_ms.cmp(&one.info.started_ms));
        let by = by.then_with(|| one.info.process.cmp(&two.info.process));
        if self.reversed { by.reverse() } else { by }
    }

    /// Index of the selected process in the visible list.
    pub(super) fn selected_at(&self) -> Option<usize> {
        let is_selected = |row: &Row| Some(&row.info.process) == self.selected.as_ref();
        self.order.iter().position(|at| self.rows.get(*at).is_some_and(is_selected))
    }

    pub(super) fn selected_row(&self) -> Option<&Row> {
        self.rows.iter().find(|row| Some(&row.info.process) == self.selected.as_ref())
    }

    pub(super) fn select(&mut self, at: usize) {
        let row = self.order.get(at).and_then(|at| self.rows.get(*at));
        self.selected = row.map(|row| row.info.process.clone());
    }
}

fn matches_filter(row: &Row, wanted: &str) -> bool {
    let info = &row.info;
    let has = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || has(&row.name)
        || has(&info.face)
        || has(&ps::state(info))
        || has(&info.pid.to_string())
        || has(&info.command.join(" "))
}

/// The previous sample and the time since then.
struct PreviousSample {
    before: HashMap<String, Row>,
    elapsed_ms: Option<u64>,
}

impl PreviousSample {
    fn row(&self, info: ProcessInfo, name: String) -> Row {
        let before = self.before.get(&info.process).filter(|_| info.exit.is_none());
        let times = before.map(|row| &row.info).zip(self.elapsed_ms);
        let cpu = times.map(|(before, ms)| info.cpu_ms.saturating_sub(before.cpu_ms) * 100 / ms);
        let rate =
            times.map(|(before, ms)| info.output_bytes.saturating_sub(before.output_bytes) * 1000 / ms);
        Row { info, name, cpu, rate }
    }

    fn throughput(&self, now: &[ProcessInfo]) -> Option<Throughput> {
        let ms = self.elapsed_ms?;
        let known = |info: &ProcessInfo| self.before.get(&info.process);
        let started = now.iter().filter(|info| known(info).is_none()).count();
        let ended = now.iter().filter(|info| info.exit.is_some() && known(info).is_none_or(Row::is_running));
        let grown = |info: &ProcessInfo| {
            info.output_bytes.saturating_sub(known(info).map_or(0, |before| before.info.output_bytes))
        };
        let in_a_second = |count: usize| count as f64 * 1000.0 / ms as f64;
        Some(Throughput {
            started: in_a_second(started),
            ended: in_a_second(ended.count()),
            bytes: now.iter().map(grown).sum::<u64>().saturating_mul(1000) / ms,
        })
    }
}
