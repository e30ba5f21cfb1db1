//! `outpost top`: a full-screen process monitor, refreshed once a second.

mod app;
mod draw;
mod input;
mod sampler;
mod table;
#[cfg(test)]
mod tests;

use super::attach::{Attach, attach};
use super::fullscreen::{Screen, Signals, Theme};
use super::{Outcome, connect};
use crate::paths::Paths;
use crate::tty::keys::Reader;
use app::App;
use clap::Args;
use input::Action;
use sampler::Sampler;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Monitor processes, sessions, pending approvals and the daemon on a full screen.
#[derive(Args)]
pub(super) struct Top {
    /// Show ended processes too
    #[arg(short, long)]
    all: bool,
}

/// Why the screen was closed.
enum ScreenEnd {
    Quit,
    BySignal(u8),
    /// To attach to this process.
    Attach(String),
}

pub(super) fn top(paths: &Paths, options: &Top) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("`outpost top` needs a terminal\nhint: use `outpost ps --json` in scripts".into());
    }
    // Fail early without a daemon; later outages are shown on the screen.
    drop(connect(paths)?);
    match super::block_on(run_screen(paths, options))? {
        ScreenEnd::Quit => Ok(ExitCode::SUCCESS),
        ScreenEnd::BySignal(number) => Ok(ExitCode::from(128 + number)),
        ScreenEnd::Attach(process) => attach(paths, Attach::to(process)?),
    }
}

async fn run_screen(paths: &Paths, options: &Top) -> Result<ScreenEnd, String> {
    let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
    // Before raw mode, so that no signal ends the program with the terminal in raw mode.
    let signals = Signals::new()?;
    let sampler = Sampler::start(paths).map_err(|error| format!("cannot start a thread: {error}"))?;
    let mut screen = Screen::enter().map_err(fail)?;
    let mut keys = Reader::new(screen.tty()).map_err(fail)?;
    let left = event_loop(&mut screen, &mut keys, signals, sampler, options).await;
    drop((keys, screen));
    left.map_err(fail)
}

async fn event_loop(
    screen: &mut Screen,
    keys: &mut Reader,
    mut signals: Signals,
    mut sampler: Sampler,
    options: &Top,
) -> std::io::Result<ScreenEnd> {
    let theme = Theme::from_env();
    let mut app = App::new(screen.size()?, options.all);
    loop {
        app.size = screen.size()?;
        screen.terminal.draw(|frame| draw::draw(frame, &app, theme))?;
        tokio::select! {
            key = keys.next() => match app.key(key?) {
                Some(Action::Quit) => return Ok(ScreenEnd::Quit),
                Some(Action::Attach { process }) => return Ok(ScreenEnd::Attach(process)),
                Some(Action::Kill { process, name }) => sampler.kill(process, name)?,
                None => {}
            },
            Some(event) = sampler.events.recv() => app.on_event(event),
            number = signals.next() => if let Some(number) = number {
                return Ok(ScreenEnd::BySignal(number));
            },
        }
    }
}
