//! What the full screen is about: the processes as they were last seen, how they changed since, and what is looked at.

use super::sampler::{News, Sample};
use crate::cli::fullscreen::Size;
use crate::cli::list;
use outpost_control::wire::{ProcessInfo, Status};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Instant;

pub(super) struct App {
    /// Of the last sample, with what changed since the one before.
    pub(super) rows: Vec<Row>,
    /// Which of them are in the list, in its order.
    pub(super) order: Vec<usize>,
    /// By its number, so that nothing that comes or goes moves it onto another one.
    pub(super) selected: Option<String>,
    pub(super) view: View,
    pub(super) dialog: Dialog,
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) with_ended: bool,
    /// What happened last.
    pub(super) status: String,
    pub(super) daemon: Option<Status>,
    pub(super) sessions: Result<Vec<[String; 7]>, String>,
    pub(super) flow: Option<Flow>,
    pub(super) away: Option<Away>,
    pub(super) size: Size,
    pub(super) now_ms: u64,
    sampled_at: Option<Instant>,
}

pub(super) struct Row {
    pub(super) info: ProcessInfo,
    /// The shortest that other commands take for it; not for a terminal yet.
    pub(super) name: String,
    /// Percent of one CPU since the sample before; none without one.
    pub(super) cpu: Option<u64>,
    /// Bytes of output in a second.
    pub(super) rate: Option<u64>,
}

impl Row {
    pub(super) fn lives(&self) -> bool {
        self.info.exit.is_none()
    }
}

/// All processes together, in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flow {
    pub(super) started: f64,
    pub(super) ended: f64,
    pub(super) bytes: u64,
}

pub(super) struct Away {
    pub(super) since: Instant,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    List,
    /// Of the process that is selected, and the first row in sight.
    Details {
        top: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialog {
    None,
    /// The filter as it was typed so far.
    Filter(Vec<u8>),
    /// Whether to end this one, whatever the list says by now.
    End {
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
    pub(super) fn new(size: Size, with_ended: bool) -> App {
        App {
            rows: Vec::new(),
            order: Vec::new(),
            selected: None,
            view: View::List,
            dialog: Dialog::None,
            filter: String::new(),
            sort: Sort::Cpu,
            reversed: false,
            with_ended,
            status: String::new(),
            daemon: None,
            sessions: Ok(Vec::new()),
            flow: None,
            away: None,
            size,
            now_ms: 0,
            sampled_at: None,
        }
    }

    pub(super) fn hear(&mut self, news: News) {
        match news {
            News::Sample(sample) => self.take(*sample),
            News::Away { why } => {
                let since = self.away.as_ref().map_or_else(Instant::now, |away| away.since);
                self.away = Some(Away { since, why });
            }
            News::Ended { what } => self.status = what,
        }
    }

    fn take(&mut self, sample: Sample) {
        let replaced = self.daemon.as_ref().map(|daemon| daemon.worker_pid);
        if let Some(before) = replaced.filter(|before| *before != sample.status.worker_pid) {
            self.status = format!("worker {before} was replaced by {}", sample.status.worker_pid);
        }
        let elapsed_ms = self.sampled_at.map(|before| sample.at.duration_since(before).as_millis() as u64);
        let before: HashMap<String, Row> =
            self.rows.drain(..).map(|row| (row.info.process.clone(), row)).collect();
        let names = list::names(&sample.processes);
        let since = Since { before, elapsed_ms: elapsed_ms.filter(|elapsed| *elapsed > 0) };
        self.flow = since.flow(&sample.processes);
        self.rows =
            sample.processes.into_iter().zip(names).map(|(info, name)| since.row(info, name)).collect();
        self.sampled_at = Some(sample.at);
        (self.now_ms, self.sessions, self.away) = (sample.now_ms, sample.sessions, None);
        self.daemon = Some(sample.status);
        if self.selected_row().is_none() {
            self.view = View::List;
        }
        self.arrange();
    }

    /// The list anew: what is in it, in which order, and what is selected.
    pub(super) fn arrange(&mut self) {
        let at = self.selected_at().unwrap_or_default();
        let wanted = self.filter.to_lowercase();
        let is_shown = |row: &Row| (self.with_ended || row.lives()) && matches(row, &wanted);
        let mut order: Vec<usize> =
            self.rows.iter().enumerate().filter(|(_, row)| is_shown(row)).map(|(at, _)| at).collect();
        order.sort_by(|one, two| match (self.rows.get(*one), self.rows.get(*two)) {
            (Some(one), Some(two)) => self.compare(one, two),
            _ => Ordering::Equal,
        });
        self.order = order;
        // One that is looked at may have left the list.
        let is_looked_at = self.view != View::List && self.selected_row().is_some();
        if self.selected_at().is_none() && !is_looked_at {
            let near = self.order.get(at).or(self.order.last());
            self.selected = near.and_then(|near| self.rows.get(*near)).map(|row| row.info.process.clone());
        }
    }

    /// What is most of it comes first, and the newest of equals.
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

    /// Where in the list.
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

fn matches(row: &Row, wanted: &str) -> bool {
    let info = &row.info;
    let has = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || has(&row.name)
        || has(&info.face)
        || has(&list::state(info))
        || has(&info.pid.to_string())
        || has(&info.command.join(" "))
}

/// The sample before, and how long ago that was.
struct Since {
    before: HashMap<String, Row>,
    elapsed_ms: Option<u64>,
}

impl Since {
    fn row(&self, info: ProcessInfo, name: String) -> Row {
        let before = self.before.get(&info.process).filter(|_| info.exit.is_none());
        let times = before.map(|row| &row.info).zip(self.elapsed_ms);
        let cpu = times.map(|(before, ms)| info.cpu_ms.saturating_sub(before.cpu_ms) * 100 / ms);
        let rate =
            times.map(|(before, ms)| info.output_bytes.saturating_sub(before.output_bytes) * 1000 / ms);
        Row { info, name, cpu, rate }
    }

    fn flow(&self, now: &[ProcessInfo]) -> Option<Flow> {
        let ms = self.elapsed_ms?;
        let known = |info: &ProcessInfo| self.before.get(&info.process);
        let started = now.iter().filter(|info| known(info).is_none()).count();
        let ended = now.iter().filter(|info| info.exit.is_some() && known(info).is_none_or(Row::lives));
        let grown = |info: &ProcessInfo| {
            info.output_bytes.saturating_sub(known(info).map_or(0, |before| before.info.output_bytes))
        };
        let in_a_second = |count: usize| count as f64 * 1000.0 / ms as f64;
        Some(Flow {
            started: in_a_second(started),
            ended: in_a_second(ended.count()),
            bytes: now.iter().map(grown).sum::<u64>().saturating_mul(1000) / ms,
        })
    }
}
