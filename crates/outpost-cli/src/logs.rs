//! `outpost logs`: prints the recorded output of a process.

use super::run::finish;
use super::view::{InputSource, OnSignal, ProcessView, StartAt};
use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Attached, ProcessInfo, ProcessRef};
use outpost_wire::base64;
use std::collections::VecDeque;

/// Print the output of a process.
#[derive(Args)]
pub(super) struct Logs {
    /// Id, number or address (FACE/SCOPE/ID) of the process
    process: String,
    /// Follow new output until the process ends
    #[arg(short, long)]
    follow: bool,
    /// Start after this sequence number
    #[arg(long, default_value_t = 0, conflicts_with = "tail")]
    since: u64,
    /// Start with the last LINES lines
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    tail: Option<u32>,
}

pub(super) fn logs(paths: &Paths, options: &Logs) -> Outcome {
    let which = ProcessRef { process: options.process.clone() };
    let process: ProcessInfo = connect(paths)?.call("describe", &which).map_err(explain)?;
    let start = match options.tail {
        None => StartAt::After { seq: options.since, skip: 0 },
        Some(lines) => last_lines(paths, &process, lines as usize)?,
    };
    let ended = ProcessView {
        paths,
        process: process.process.clone(),
        start,
        input: InputSource::None,
        detach_keys: None,
        on_signal: OnSignal::Detach,
        owns: false,
        stop_at_end: !options.follow,
    }
    .run()?;
    if let Some(because) = &process.exit_unknown_because {
        let missing = match because.as_str() {
            "keeper died" => "",
            _ => "; the end of its output may be missing",
        };
        errln!(
            "outpost: the exit status of {} is unknown: {}{missing}",
            process.process,
            because.escape_debug()
        );
    }
    finish(ended, &process.process)
}

/// The position of the last `lines` lines. Scans the whole output and keeps only positions.
fn last_lines(paths: &Paths, process: &ProcessInfo, lines: usize) -> Result<StartAt, String> {
    let lost = |error: std::io::Error| explain(CallError::Lost(error));
    let mut client = connect(paths)?;
    let attach = wire::Attach { process: process.process.clone(), ..wire::Attach::default() };
    let attached: Attached = client.call("attach", &attach).map_err(explain)?;
    // Line starts, as a sequence number and an offset in its frame. An empty last line does not count.
    let mut starts = VecDeque::from([(1, 0)]);
    let mut at_line_start = true;
    let mut last = 0;
    while last < attached.last_seq {
        let message = client.receive().map_err(lost)?;
        let seq = message.seq.unwrap_or(last);
        last = seq.max(message.first_seq.map_or(0, |first| first - 1));
        let bytes = message.data.as_deref().and_then(|data| base64::decode(data.as_bytes()));
        for (at, byte) in bytes.iter().flatten().enumerate() {
            if std::mem::replace(&mut at_line_start, *byte == b'\n') {
                starts.push_back((seq, at));
                if starts.len() > lines {
                    starts.pop_front();
                }
            }
        }
    }
    let (seq, skip) = starts.front().copied().filter(|_| lines > 0).unwrap_or((last + 1, 0));
    Ok(StartAt::After { seq: seq - 1, skip })
}
