//! Line-based approval prompt: one question at a time, answered with one key. `y` approves, any other key denies.

mod screen;

pub use screen::{Style, result};

use crate::tty::keys::{Key, Reader};
use crate::tty::show;
use outpost_approvals::wire::ServerMessage;
use outpost_approvals::{Outcome, Question};
use outpost_ledger::unix_ms;
use outpost_sys::terminal::Terminal;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Keys within this time after a question appeared are ignored: they cannot be an answer to it.
const READING_TIME: Duration = Duration::from_millis(700);

/// The queue behind a prompt: the daemon's, or that of this process.
pub trait ApprovalSource {
    /// The next event; `Snapshot` carries all pending questions. `None` when the source ends. Cancel-safe.
    fn event(&mut self) -> impl Future<Output = Option<ServerMessage>>;
    /// Marks a question as shown and returns it with its deadline. `None` if it was settled meanwhile.
    fn show(&mut self, question: Question) -> Option<Question>;
    /// Submits the decision. With `always`, later unprivileged commands run without a question.
    fn decide(&mut self, question: &Question, allow: bool, always: bool) -> impl Future<Output = ()>;
    /// Reports that the terminal is unusable.
    fn give_up(&mut self, question: &Question, why: &str) -> impl Future<Output = ()>;
}

/// Shows the questions of a source one by one.
pub struct Prompter<D> {
    pub source: D,
    waiting: VecDeque<Question>,
    /// Whether `a` (always) is offered for unprivileged commands.
    may_offer_always: bool,
    style: Style,
}

/// How a prompt ended.
enum PromptEnd {
    Approve,
    Always,
    Deny,
    /// The question was settled elsewhere.
    Settled(Option<Outcome>),
}

impl<D: ApprovalSource> Prompter<D> {
    pub fn new(source: D, waiting: Vec<Question>, may_offer_always: bool) -> Prompter<D> {
        Prompter { source, waiting: waiting.into(), may_offer_always, style: Style::from_env() }
    }

    /// Prompts for all pending questions.
    pub async fn run(&mut self) {
        while let Some(question) = self.waiting.pop_front() {
            let Some(question) = self.source.show(question) else { continue };
            match self.prompt(&question).await {
                Ok(PromptEnd::Settled(_)) => {}
                Ok(PromptEnd::Deny) => self.source.decide(&question, false, false).await,
                Ok(PromptEnd::Approve) => self.source.decide(&question, true, false).await,
                Ok(PromptEnd::Always) => self.source.decide(&question, true, true).await,
                Err(error) => self.source.give_up(&question, &error.to_string()).await,
            }
        }
    }

    /// Updates the pending questions. Returns the outcome if the event settles the question with this id.
    pub fn on_event(&mut self, event: ServerMessage, id: &str) -> Option<Outcome> {
        match event {
            ServerMessage::Asked { question } => self.waiting.push_back(*question),
            ServerMessage::Snapshot { questions } => {
                let still = questions.iter().any(|question| question.id == id);
                self.waiting = questions.into_iter().filter(|question| question.id != id).collect();
                return (!still && !id.is_empty()).then_some(Outcome::Expired);
            }
            ServerMessage::Settled { id: settled, outcome } => {
                self.waiting.retain(|question| question.id != settled);
                return (settled == id).then_some(outcome);
            }
            _ => {}
        }
        None
    }

    /// Shows a question and waits for a key or for its settlement.
    async fn prompt(&mut self, question: &Question) -> io::Result<PromptEnd> {
        let terminal = Arc::new(Terminal::open()?);
        let mode = terminal.cbreak()?;
        let mut keys = Reader::new(terminal.clone())?;
        let columns = terminal.size().map(|size| size.cols);
        let offers_always = self.may_offer_always && !question.privileged;
        let left = question.deadline_ms.saturating_sub(unix_ms()).div_ceil(1000);
        let text = screen::question(question, columns, self.style);
        let asked = screen::ask(question, left, offers_always, self.style);
        show(&terminal, text + &asked).await?;
        let ignore_until = Instant::now() + READING_TIME;
        let end = loop {
            tokio::select! {
                key = keys.next() => match key? {
                    _ if Instant::now() < ignore_until => {}
                    Key::Move(_) | Key::Escape | Key::Sequence => {}
                    Key::Byte(byte) | Key::Pasted(byte) => break answer_to_key(byte, question, offers_always),
                },
                event = self.source.event() => match event {
                    None => break PromptEnd::Settled(None),
                    Some(event) => if let Some(outcome) = self.on_event(event, &question.id) {
                        break PromptEnd::Settled(Some(outcome));
                    },
                },
            }
        };
        let label = match &end {
            PromptEnd::Approve => "Approved",
            PromptEnd::Always => "Approved (unattended until this process ends)",
            PromptEnd::Deny => "Denied",
            PromptEnd::Settled(Some(Outcome::Expired)) => "Timeout",
            PromptEnd::Settled(Some(Outcome::Withdrawn)) => "Withdrawn: the client left",
            PromptEnd::Settled(_) => "Answered elsewhere",
        };
        show(&terminal, format!("\n-> {label}\n")).await?;
        drop((keys, mode));
        Ok(end)
    }
}

/// Like the original: where `a` is not offered, it approves once, but never a privileged command.
fn answer_to_key(key: u8, question: &Question, offers_always: bool) -> PromptEnd {
    match key {
        b'y' | b'Y' => PromptEnd::Approve,
        b'a' | b'A' if offers_always => PromptEnd::Always,
        b'a' | b'A' if !question.privileged => PromptEnd::Approve,
        _ => PromptEnd::Deny,
    }
}
