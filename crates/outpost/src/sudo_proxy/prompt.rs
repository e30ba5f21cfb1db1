//! One question at a time on the terminal, answered with one key: `y` approves, every other denies.

use super::keys::{Key, Reader};
use super::screen::{self, Style};
use outpost_approvals::wire::Answer;
use outpost_approvals::{Decision, Outcome, Question};
use outpost_broker::{Notice, Server, Typed};
use outpost_sys::terminal::Terminal;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// What is typed before anybody can have read the question is no answer.
const KEYS_IGNORED: Duration = Duration::from_millis(700);

/// A terminal that takes nothing for this long is no place to ask.
const TERMINAL_PATIENCE: Duration = Duration::from_secs(10);

/// The longest password that is typed here.
const PASSWORD_BYTES_MAX: usize = 1024;

type PasswordAsked = (String, oneshot::Sender<Option<Typed>>);

/// Asks for ever.
pub(crate) async fn ask_all(
    server: Arc<Server>,
    mut passwords: mpsc::Receiver<PasswordAsked>,
    patience: Duration,
    eligible: bool,
) {
    let mut notices = server.notices();
    let (waiting, mut events) = server.approvals().queue().watch();
    let mut waiting: VecDeque<Question> = waiting.into();
    let style = Style::of_environment();
    loop {
        while let Some(question) = waiting.pop_front() {
            // It may have ended while another was being asked.
            if server.approvals().queue().show(&question.id).is_ok() {
                let asking = Asking { server: &server, question: &question, patience, eligible, style };
                asking.ask(&mut events, &mut waiting).await;
            }
        }
        tokio::select! {
            event = events.recv() => match event {
                Ok(Answer::Asked { question }) => waiting.push_back(*question),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => waiting = server.approvals().queue().list().into(),
                Err(RecvError::Closed) => return,
            },
            notice = notices.recv() => show_notice(notice, style).await,
            Some((what, mut reply)) = passwords.recv() => {
                // What was typed so far goes with the question: it is not there for whoever reads next.
                let typed = tokio::select! {
                    typed = ask_password(&what) => typed.ok().flatten(),
                    () = reply.closed() => {
                        let _nobody_looks = say("nobody waits for this password any more", style).await;
                        None
                    }
                };
                let _gone = reply.send(typed);
            }
        }
    }
}

async fn show_notice(notice: Result<Notice, RecvError>, style: Style) {
    let text = match notice {
        Ok(Notice::Answered { response, title, .. }) => {
            // Who was asked knows what it was.
            let unasked = response.decision.as_deref().is_some_and(|decision| decision != "human");
            let title = if unasked { style.dimmed(&format!("unasked: {title}")) } else { String::new() };
            title + &screen::result(&response, style)
        }
        Ok(Notice::Stopped { session }) => {
            style.dimmed(&format!("stopped by {}", outpost_approvals::display::claim(&session, 100)))
        }
        Err(_) => return,
    };
    if let Ok(terminal) = Terminal::open() {
        let _nobody_looks = show(&Arc::new(terminal), text).await;
    }
}

async fn say(text: &str, style: Style) -> io::Result<()> {
    show(&Arc::new(Terminal::open()?), format!("\n{}", style.dimmed(text))).await
}

/// All of it, before anything else is done: what was not shown cannot be approved.
async fn show(terminal: &Arc<Terminal>, text: String) -> io::Result<()> {
    let terminal = terminal.clone();
    let written = tokio::task::spawn_blocking(move || terminal.write_all(text.as_bytes(), TERMINAL_PATIENCE));
    Ok(written.await.map_err(io::Error::other)??)
}

struct Asking<'a> {
    server: &'a Server,
    question: &'a Question,
    patience: Duration,
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

impl Asking<'_> {
    async fn ask(&self, events: &mut broadcast::Receiver<Answer>, waiting: &mut VecDeque<Question>) {
        let said = match self.put(events, waiting).await {
            Ok(said) => said,
            Err(error) => {
                self.server.approvals().queue().give_up(&self.question.id, &error.to_string()).await;
                return;
            }
        };
        let allow = matches!(said, Said::Approve | Said::Always);
        if let Said::Always = said
            && self.offers_always()
        {
            self.server.allow_unattended();
        }
        if let Said::Approve | Said::Always | Said::Deny = said {
            let decision = Decision { allow, note: String::new(), remember: None };
            let by = format!("uid {}, the terminal", outpost_sys::limits::effective_uid());
            let Question { id, digest, .. } = self.question;
            if let Err(error) = self.server.approvals().queue().decide(id, digest, decision, &by).await {
                tracing::warn!(%error, "an answer does not stand");
            }
        }
    }

    fn offers_always(&self) -> bool {
        self.eligible && !self.question.privileged
    }

    /// Shows the question, waits for a key, and says what it was taken for.
    async fn put(
        &self,
        events: &mut broadcast::Receiver<Answer>,
        waiting: &mut VecDeque<Question>,
    ) -> io::Result<Said> {
        let terminal = Arc::new(Terminal::open()?);
        let mode = terminal.keys()?;
        let mut keys = Reader::new(terminal.clone())?;
        let columns = terminal.size().map(|size| size.cols);
        let text = screen::question(self.question, columns, self.style);
        let question = screen::ask(self.question, self.patience.as_secs(), self.offers_always(), self.style);
        show(&terminal, text + &question).await?;
        let deaf_until = Instant::now() + KEYS_IGNORED;
        let said = loop {
            tokio::select! {
                key = keys.next() => match key? {
                    _ if Instant::now() < deaf_until => {}
                    Key::Escape => {}
                    Key::Byte(b'y' | b'Y') => break Said::Approve,
                    Key::Byte(b'a' | b'A') if self.offers_always() => break Said::Always,
                    Key::Byte(b'a' | b'A') if !self.question.privileged => break Said::Approve,
                    Key::Byte(_) => break Said::Deny,
                },
                event = events.recv() => match event {
                    Ok(Answer::Settled { id, outcome }) if id == self.question.id => break Said::Ended(Some(outcome)),
                    Ok(Answer::Asked { question }) => waiting.push_back(*question),
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => {
                        *waiting = self.server.approvals().queue().list().into();
                        waiting.retain(|other| other.id != self.question.id);
                    }
                    Err(RecvError::Closed) => break Said::Ended(None),
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

/// Reads a line that is not shown.
async fn ask_password(what: &str) -> io::Result<Option<Typed>> {
    let terminal = Arc::new(Terminal::open()?);
    let mode = terminal.keys()?;
    let mut keys = Reader::new(terminal.clone())?;
    show(&terminal, format!("\n{what} ")).await?;
    let mut typed = Zeroizing::new(Vec::with_capacity(PASSWORD_BYTES_MAX));
    let done = loop {
        match keys.next().await? {
            Key::Byte(b'\r' | b'\n') => break true,
            Key::Byte(0x03 | 0x04) => break false,
            Key::Byte(0x7f | 0x08) => {
                typed.pop();
            }
            Key::Byte(0x15) => typed.clear(),
            Key::Byte(byte) if typed.len() < PASSWORD_BYTES_MAX => typed.push(byte),
            Key::Byte(_) | Key::Escape => {}
        }
    };
    show(&terminal, "\n".into()).await?;
    drop((keys, mode));
    let text = std::str::from_utf8(&typed).ok().filter(|_| done);
    Ok(text.map(|text| Zeroizing::new(text.to_owned())))
}
