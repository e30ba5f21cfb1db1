//! `outpost logs`: what a process wrote.

use super::run::leave;
use super::view::{Begin, Feed, OnSignal, View};
use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Attached, ProcessInfo, Which};
use outpost_wire::base64;
use std::collections::VecDeque;

/// Show what a process wrote, from the beginning or as it comes.
#[derive(Args)]
pub(super) struct Logs {
    /// The id, the number or the address (FACE/SCOPE/ID) of the process
    process: String,
    /// Go on as more comes, until it ends
    #[arg(short, long)]
    follow: bool,
    /// Begin behind this sequence number
    #[arg(long, default_value_t = 0, conflicts_with = "tail")]
    since: u64,
    /// Begin with the last so many lines
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    tail: Option<u32>,
}

pub(super) fn logs(paths: &Paths, options: &Logs) -> Outcome {
    let which = Which { process: options.process.clone() };
    let process: ProcessInfo = connect(paths)?.call("describe", &which).map_err(explain)?;
    let begin = match options.tail {
        None => Begin::After { seq: options.since, skip: 0 },
        Some(lines) => last_lines(paths, &process, lines as usize)?,
    };
    let ended = View {
        paths,
        process: process.process.clone(),
        begin,
        feed: Feed::Nothing,
        keys: None,
        on_signal: OnSignal::Leave,
        owns: false,
        until_now: !options.follow,
    }
    .run()?;
    if let Some(because) = &process.exit_unknown_because {
        let missing = match because.as_str() {
            "keeper died" => "",
            _ => "; the end of its output may be missing",
        };
        errln!(
            "outpost: the exit status of {} is not known: {}{missing}",
            process.process,
            because.escape_debug()
        );
    }
    leave(ended, &process.process)
}

/// Where the last lines begin. All is looked at once, and nothing of it kept.
fn last_lines(paths: &Paths, process: &ProcessInfo, lines: usize) -> Result<Begin, String> {
    let lost = |error: std::io::Error| explain(CallError::Lost(error));
    let mut client = connect(paths)?;
    let attach = wire::Attach { process: process.process.clone(), ..wire::Attach::default() };
    let attached: Attached = client.call("attach", &attach).map_err(explain)?;
    // Where lines begin: a frame, and a place in it. A line counts once it has a byte.
    let mut begins = VecDeque::from([(1, 0)]);
    let mut at_begin = true;
    let mut last = 0;
    while last < attached.last_seq {
        let message = client.receive().map_err(lost)?;
        let seq = message.seq.unwrap_or(last);
        last = seq.max(message.first_seq.map_or(0, |first| first - 1));
        let bytes = message.data.as_deref().and_then(|data| base64::decode(data.as_bytes()));
        for (at, byte) in bytes.iter().flatten().enumerate() {
            if std::mem::replace(&mut at_begin, *byte == b'\n') {
                begins.push_back((seq, at));
                if begins.len() > lines {
                    begins.pop_front();
                }
            }
        }
    }
    let (seq, skip) = begins.front().copied().filter(|_| lines > 0).unwrap_or((last + 1, 0));
    Ok(Begin::After { seq: seq - 1, skip })
}
