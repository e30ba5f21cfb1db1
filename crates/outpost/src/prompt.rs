//! One question at a time on the terminal, answered with one key: `y` approves, every other denies.

mod screen;

pub(crate) use screen::{Style, result};

use crate::tty::keys::{Key, Reader};
use crate::tty::show;
use outpost_approvals::wire::Answer;
use outpost_approvals::{Outcome, Question, unix_ms};
use outpost_sys::terminal::Terminal;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What is typed before anybody can have read the question is no answer.
const KEYS_IGNORED: Duration = Duration::from_millis(700);

/// Where questions come from and answers go.
pub(crate) trait Desk {
    /// What happens next; `Anew` has all there are. None when there will be nothing any more. Safe to cancel.
    async fn event(&mut self) -> Option<Answer>;
    /// A question is shown now; it comes back with the time it has. None when it has ended meanwhile.
    fn begin(&mut self, question: Question) -> Option<Question>;
    /// What the human says. `always` when everything without root's rights is to run unasked from now on.
    async fn decide(&mut self, question: &Question, allow: bool, always: bool);
    /// There is no terminal to ask on.
    async fn give_up(&mut self, question: &Question, why: &str);
}

/// Who asks.
pub(crate) struct Asker<D> {
    pub(crate) desk: D,
    waiting: VecDeque<Question>,
    /// Whether `a` is offered.
    eligible: bool,
    style: Style,
}

/// What came of a question on the terminal.
enum Said {
    Approve,
    Always,
    Deny,
    /// It ended without us.
    Ended(Option<Outcome>),
}

impl<D: Desk> Asker<D> {
    pub(crate) fn new(desk: D, waiting: Vec<Question>, eligible: bool) -> Asker<D> {
        Asker { desk, waiting: waiting.into(), eligible, style: Style::of_environment() }
    }

    /// Asks about everything that waits.
    pub(crate) async fn ask(&mut self) {
        while let Some(question) = self.waiting.pop_front() {
            let Some(question) = self.desk.begin(question) else { continue };
            match self.put(&question).await {
                Ok(Said::Ended(_)) => {}
                Ok(Said::Deny) => self.desk.decide(&question, false, false).await,
                Ok(Said::Approve) => self.desk.decide(&question, true, false).await,
                Ok(Said::Always) => self.desk.decide(&question, true, true).await,
                Err(error) => self.desk.give_up(&question, &error.to_string()).await,
            }
        }
    }

    /// Notes what has happened. How a question of this id ended, if it was that.
    pub(crate) fn note(&mut self, event: Answer, id: &str) -> Option<Outcome> {
        match event {
            Answer::Asked { question } => self.waiting.push_back(*question),
            Answer::Anew { questions } => {
                let still = questions.iter().any(|question| question.id == id);
                self.waiting = questions.into_iter().filter(|question| question.id != id).collect();
                return (!still && !id.is_empty()).then_some(Outcome::Expired);
            }
            Answer::Settled { id: settled, outcome } => {
                self.waiting.retain(|question| question.id != settled);
                return (settled == id).then_some(outcome);
            }
            _ => {}
        }
        None
    }

    /// Shows a question, waits for a key, and says what it was taken for.
    async fn put(&mut self, question: &Question) -> io::Result<Said> {
        let terminal = Arc::new(Terminal::open()?);
        let mode = terminal.keys()?;
        let mut keys = Reader::new(terminal.clone())?;
        let columns = terminal.size().map(|size| size.cols);
        let offers_always = self.eligible && !question.privileged;
        let left = question.deadline_ms.saturating_sub(unix_ms()).div_ceil(1000);
        let text = screen::question(question, columns, self.style);
        let asked = screen::ask(question, left, offers_always, self.style);
        show(&terminal, text + &asked).await?;
        let deaf_until = Instant::now() + KEYS_IGNORED;
        let said = loop {
            tokio::select! {
                key = keys.next() => match key? {
                    _ if Instant::now() < deaf_until => {}
                    Key::Move(_) | Key::Escape | Key::Sequence => {}
                    Key::Byte(byte) | Key::Pasted(byte) => break taken_for(byte, question, offers_always),
                },
                event = self.desk.event() => match event {
                    None => break Said::Ended(None),
                    Some(event) => if let Some(outcome) = self.note(event, &question.id) {
                        break Said::Ended(Some(outcome));
                    },
                },
            }
        };
        let label = match &said {
            Said::Approve => "Approved",
            Said::Always => "Approved (unattended until this process ends)",
            Said::Deny => "Denied",
            Said::Ended(Some(Outcome::Expired)) => "Timeout",
            Said::Ended(Some(Outcome::Withdrawn)) => "Withdrawn: the client left",
            Said::Ended(_) => "Answered elsewhere",
        };
        show(&terminal, format!("\n-> {label}\n")).await?;
        drop((keys, mode));
        Ok(said)
    }
}

/// As the original takes them: `a` where it is not offered approves once, and never for root's rights.
fn taken_for(key: u8, question: &Question, offers_always: bool) -> Said {
    match key {
        b'y' | b'Y' => Said::Approve,
        b'a' | b'A' if offers_always => Said::Always,
        b'a' | b'A' if !question.privileged => Said::Approve,
        _ => Said::Deny,
    }
}
