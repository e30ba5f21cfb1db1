//! `outpost approve`: the full-screen program for approvers.

mod app;
mod draw;
mod input;
mod link;
mod page;
mod prompt;
#[cfg(test)]
mod tests;

use super::Outcome;
use super::approver::{self, Approver};
use super::fullscreen::{Screen, Signals, Theme};
use crate::paths::Paths;
use crate::tty::keys::Reader;
use app::{App, LinkEvent};
use clap::Args;
use input::Action;
use link::Link;
use outpost_ledger::unix_ms;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Refresh interval of the remaining times.
const TICK: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Approve {
    #[command(flatten)]
    approver: approver::Options,
    /// Prompt for one question at a time instead of a full screen; `y` approves
    #[arg(long)]
    prompt: bool,
}

pub(super) fn run(paths: &Paths, options: &Approve) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("`outpost approve` needs a terminal\nhint: use `outpost approvals` in scripts".into());
    }
    let approver = options.approver.approver(paths, "outpost approve")?;
    match options.prompt {
        true => super::block_on(prompt::run(approver)),
        false => super::block_on(run_screen(approver)),
    }
}

async fn run_screen(mut approver: Approver) -> Outcome {
    let mut connected = approver.connect().await?;
    approver.prepare(&mut connected).await?;
    let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
    // Before raw mode, so that no signal ends the program with the terminal in raw mode.
    let signals = Signals::new()?;
    let mut screen = Screen::enter().map_err(fail)?;
    let mut keys = Reader::new(screen.tty()).map_err(fail)?;
    let link = Link::start(approver, connected);
    let ended = event_loop(&mut screen, &mut keys, signals, link).await;
    drop((keys, screen));
    ended.map_err(fail)?
}

/// The outer error is the terminal's.
async fn event_loop(
    screen: &mut Screen,
    keys: &mut Reader,
    mut signals: Signals,
    mut link: Link,
) -> std::io::Result<Outcome> {
    let theme = Theme::from_env();
    let mut app = App::new(screen.size()?);
    let mut tick = tokio::time::interval(TICK);
    loop {
        app.resize(screen.size()?);
        app.tick(Instant::now());
        screen.terminal.draw(|frame| draw::draw(frame, &app, unix_ms(), theme))?;
        app.drawn(Instant::now());
        let request = tokio::select! {
            key = keys.next() => match app.key(key?, Instant::now()) {
                Some(Action::Quit) => return Ok(Ok(ExitCode::SUCCESS)),
                Some(Action::Send(request)) => Some(request),
                None => None,
            },
            Some(event) = link.events.recv() => match event {
                LinkEvent::Closed { why } => return Ok(Err(why)),
                event => app.on_link_event(event, Instant::now()),
            },
            _ = tick.tick() => None,
            number = signals.next() => match number {
                Some(number) => return Ok(Ok(ExitCode::from(128 + number))),
                None => None,
            },
        };
        // `try_send`, because a blocking send could deadlock with a full event queue.
        if let Some(request) = request
            && link.requests.try_send(request).is_err()
        {
            app.on_link_event(
                LinkEvent::Failed { why: "not sent: too many requests are pending".into() },
                Instant::now(),
            );
        }
    }
}
