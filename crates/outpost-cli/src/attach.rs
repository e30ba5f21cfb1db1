//! `outpost attach`: connects this terminal to a running process.

use super::run::{exit_code, finish};
use super::view::{self, DetachKeys, InputSource, OnEof, OnSignal, ProcessView, StartAt, ViewEnd};
use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::wire::{InputClaim, ProcessInfo, ProcessRef};
use std::io::IsTerminal;

/// Attach your terminal to a running process.
///
/// Any number of terminals can watch. The first one that attaches controls the input, if the command line started the
/// process. The current screen is redrawn.
#[derive(Args)]
pub(super) struct Attach {
    /// Id, number or address (FACE/SCOPE/ID) of the process
    process: String,
    /// Watch without sending input
    #[arg(long, conflicts_with = "steal")]
    read_only: bool,
    /// Take over the input from another terminal
    #[arg(long)]
    steal: bool,
    /// Key sequence that detaches from a process with a terminal, such as `ctrl-a,d`; Ctrl-C detaches from one with pipes
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: DetachKeys,
}

const DETACH_KEYS: &str = "ctrl-\\";

impl Attach {
    /// The default options for a process.
    pub(super) fn to(process: String) -> Result<Attach, String> {
        Ok(Attach { process, read_only: false, steal: false, detach_keys: DETACH_KEYS.parse()? })
    }
}

pub(super) fn attach(paths: &Paths, options: Attach) -> Outcome {
    let which = ProcessRef { process: options.process };
    let process: ProcessInfo = connect(paths)?.call("describe", &which).map_err(explain)?;
    let input = match (options.read_only, options.steal) {
        (true, _) => InputSource::None,
        (false, steal) => InputSource::Stdin {
            claim: if steal { InputClaim::Steal } else { InputClaim::IfFree },
            // Ctrl-D on a terminal is intended. The end of a redirected file is not.
            on_eof: if std::io::stdin().is_terminal() { OnEof::CloseStdin } else { OnEof::Ignore },
        },
    };
    let detach_keys = (process.terminal && view::has_terminal()).then_some(options.detach_keys);
    let ended = ProcessView {
        paths,
        process: process.process.clone(),
        start: StartAt::Recent,
        input,
        detach_keys,
        on_signal: OnSignal::Detach,
        owns: false,
        stop_at_end: false,
    }
    .run()?;
    match ended {
        ViewEnd::Exited(exit) => Ok(exit_code(Some(exit))),
        ended => finish(ended, &process.process),
    }
}
