//! `outpost top`: what runs, on a full screen, once a second.

mod app;
mod draw;
mod input;
mod sampler;
mod table;
#[cfg(test)]
mod tests;

use super::attach::{Attach, attach};
use super::fullscreen::{Looks, Screen, Signals};
use super::{Outcome, connect};
use crate::paths::Paths;
use crate::tty::keys::Reader;
use app::App;
use clap::Args;
use input::Action;
use sampler::Sampler;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Show what runs, on a full screen: processes of every face, sessions, what waits for a human, and the daemon itself.
#[derive(Args)]
pub(super) struct Top {
    /// Begin with those that ended, too
    #[arg(short, long)]
    all: bool,
}

/// How the screen was left.
enum Left {
    Quit,
    BySignal(u8),
    /// For a process.
    Attach(String),
}

pub(super) fn top(paths: &Paths, options: &Top) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("this needs a terminal; scripts use `outpost ps --json`".into());
    }
    // Later it may come and go.
    drop(connect(paths)?);
    match super::block_on(work(paths, options))? {
        Left::Quit => Ok(ExitCode::SUCCESS),
        Left::BySignal(number) => Ok(ExitCode::from(128 + number)),
        Left::Attach(process) => attach(paths, Attach::to(process)?),
    }
}

async fn work(paths: &Paths, options: &Top) -> Result<Left, String> {
    let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
    // First of all, so that none of them finds the terminal in our hands.
    let signals = Signals::new()?;
    let sampler = Sampler::begin(paths).map_err(|error| format!("cannot start a thread: {error}"))?;
    let mut screen = Screen::enter().map_err(fail)?;
    let mut keys = Reader::new(screen.tty()).map_err(fail)?;
    let left = converse(&mut screen, &mut keys, signals, sampler, options).await;
    drop((keys, screen));
    left.map_err(fail)
}

async fn converse(
    screen: &mut Screen,
    keys: &mut Reader,
    mut signals: Signals,
    mut sampler: Sampler,
    options: &Top,
) -> std::io::Result<Left> {
    let looks = Looks::of_environment();
    let mut app = App::new(screen.size()?, options.all);
    loop {
        app.size = screen.size()?;
        screen.terminal.draw(|frame| draw::draw(frame, &app, looks))?;
        tokio::select! {
            key = keys.next() => match app.key(key?) {
                Some(Action::Quit) => return Ok(Left::Quit),
                Some(Action::Attach { process }) => return Ok(Left::Attach(process)),
                Some(Action::End { process, name }) => sampler.end(process, name)?,
                None => {}
            },
            Some(news) = sampler.news.recv() => app.hear(news),
            number = signals.next() => if let Some(number) = number {
                return Ok(Left::BySignal(number));
            },
        }
    }
}
