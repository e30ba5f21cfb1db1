//! `outpost approve`: what waits for a human, on a full screen.

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
use super::fullscreen::{Looks, Screen, Signals};
use crate::paths::Paths;
use crate::tty::keys::Reader;
use app::{App, News};
use clap::Args;
use input::Action;
use link::Link;
use outpost_approvals::unix_ms;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often the time that is left is drawn anew.
const TICK: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Approve {
    #[command(flatten)]
    approver: approver::Options,
    /// One question at a time instead of a full screen; one key, `y` approves
    #[arg(long)]
    prompt: bool,
}

pub(super) fn run(paths: &Paths, options: &Approve) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err("this needs a terminal; scripts use `outpost approvals`".into());
    }
    let approver = options.approver.approver(paths, "outpost approve")?;
    match options.prompt {
        true => super::block_on(prompt::work(approver)),
        false => super::block_on(work(approver)),
    }
}

async fn work(mut approver: Approver) -> Outcome {
    let mut connected = approver.connect().await?;
    approver.prepare(&mut connected).await?;
    let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
    // First of all, so that none of them finds the terminal in our hands.
    let signals = Signals::new()?;
    let mut screen = Screen::enter().map_err(fail)?;
    let mut keys = Reader::new(screen.tty()).map_err(fail)?;
    let link = Link::begin(approver, connected);
    let ended = converse(&mut screen, &mut keys, signals, link).await;
    drop((keys, screen));
    ended.map_err(fail)?
}

/// The outer error is the terminal's.
async fn converse(
    screen: &mut Screen,
    keys: &mut Reader,
    mut signals: Signals,
    mut link: Link,
) -> std::io::Result<Outcome> {
    let looks = Looks::of_environment();
    let mut app = App::new(screen.size()?);
    let mut tick = tokio::time::interval(TICK);
    loop {
        app.resize(screen.size()?);
        app.tick(Instant::now());
        screen.terminal.draw(|frame| draw::draw(frame, &app, unix_ms(), looks))?;
        app.drawn(Instant::now());
        let order = tokio::select! {
            key = keys.next() => match app.key(key?, Instant::now()) {
                Some(Action::Quit) => return Ok(Ok(ExitCode::SUCCESS)),
                Some(Action::Do(order)) => Some(order),
                None => None,
            },
            Some(news) = link.news.recv() => match news {
                News::Ended { why } => return Ok(Err(why)),
                news => app.hear(news, Instant::now()),
            },
            _ = tick.tick() => None,
            number = signals.next() => match number {
                Some(number) => return Ok(Ok(ExitCode::from(128 + number))),
                None => None,
            },
        };
        // Not waited for: the other side may be waiting for us to hear its news.
        if let Some(order) = order
            && link.orders.try_send(order).is_err()
        {
            app.hear(News::Refused { why: "the daemon is too slow: not done".into() }, Instant::now());
        }
    }
}
