//! `outpost attach`: a process on this terminal, for a while.

use super::run::{exit_code, leave};
use super::view::{self, Begin, DetachKeys, Ended, Feed, InputEnd, OnSignal, View};
use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::wire::{ProcessInfo, Which, Write};
use std::io::IsTerminal;

/// Have a process on this terminal: what it writes, and what is typed as its input.
///
/// Everybody may watch; the first who attaches has the input, if the command line started the process. Who comes later sees
/// the screen as it is now.
#[derive(Args)]
pub(super) struct Attach {
    /// The id, the number or the address (FACE/SCOPE/ID) of the process
    process: String,
    /// Only watch
    #[arg(long, conflicts_with = "steal")]
    read_only: bool,
    /// Take the input over from whoever has it
    #[arg(long)]
    steal: bool,
    /// Keys that leave a process on a terminal, as `ctrl-a,d`; pipes are left with ctrl-c
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    detach_keys: DetachKeys,
}

const DETACH_KEYS: &str = "ctrl-\\";

impl Attach {
    /// As without flags.
    pub(super) fn to(process: String) -> Result<Attach, String> {
        Ok(Attach { process, read_only: false, steal: false, detach_keys: DETACH_KEYS.parse()? })
    }
}

pub(super) fn attach(paths: &Paths, options: Attach) -> Outcome {
    let which = Which { process: options.process };
    let process: ProcessInfo = connect(paths)?.call("describe", &which).map_err(explain)?;
    let feed = match (options.read_only, options.steal) {
        (true, _) => Feed::Nothing,
        (false, steal) => Feed::Stdin {
            write: if steal { Write::Steal } else { Write::IfFree },
            // A key that was pressed means it; that a file has ended does not.
            end: if std::io::stdin().is_terminal() { InputEnd::Closes } else { InputEnd::Nothing },
        },
    };
    let keys = (process.terminal && view::has_terminal()).then_some(options.detach_keys);
    let ended = View {
        paths,
        process: process.process.clone(),
        begin: Begin::Recent,
        feed,
        keys,
        on_signal: OnSignal::Leave,
        owns: false,
        until_now: false,
    }
    .run()?;
    match ended {
        Ended::Exited(exit) => Ok(exit_code(Some(exit))),
        ended => leave(ended, &process.process),
    }
}
