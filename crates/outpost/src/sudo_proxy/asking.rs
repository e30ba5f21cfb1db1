//! The drop-in's own terminal: its questions, how what was approved ended, and the passwords that sudo wants.

use crate::prompt::{self, Asker, Desk, Style};
use crate::tty::{ask_secret, show};
use outpost_approvals::signing::{NAMESPACE, Signed, Signer, Statement};
use outpost_approvals::wire::Answer;
use outpost_approvals::{Decision, Question, Submitter};
use outpost_broker::{Notice, Server, Typed};
use outpost_sys::terminal::Terminal;
use std::sync::Arc;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, oneshot};

type PasswordAsked = (String, oneshot::Sender<Option<Typed>>);

/// The queue of this very process.
struct Own {
    server: Arc<Server>,
    /// Of this terminal, for as long as the process lives.
    signer: Signer,
    events: broadcast::Receiver<Answer>,
}

impl Desk for Own {
    async fn event(&mut self) -> Option<Answer> {
        match self.events.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(_)) => {
                let (questions, events) = self.server.approvals().queue().watch();
                self.events = events;
                Some(Answer::Anew { questions })
            }
            Err(RecvError::Closed) => None,
        }
    }

    fn begin(&mut self, question: Question) -> Option<Question> {
        self.server.put(&question.id)
    }

    async fn decide(&mut self, question: &Question, allow: bool, always: bool) {
        if always {
            self.server.allow_unattended();
        }
        let decision = Decision { allow, note: String::new(), remember: None };
        if let Err(error) = self.submit(question, decision).await {
            tracing::warn!(%error, "an answer does not stand");
        }
    }

    async fn give_up(&mut self, question: &Question, why: &str) {
        self.server.approvals().queue().give_up(&question.id, why).await;
    }
}

impl Own {
    /// Signs what was answered with the terminal's own key.
    async fn submit(&self, question: &Question, decision: Decision) -> outpost_approvals::Result<()> {
        let approvals = self.server.approvals();
        let (host, head) = (approvals.trust().host().blob(), approvals.ledger().head());
        let statement = Statement::about(question, host, head, decision).encode();
        let signed = Signed::new(&statement, &self.signer.sign(NAMESPACE, &statement)?);
        let name = format!("uid {}, the terminal", outpost_sys::limits::effective_uid());
        approvals.queue().decide(signed, &Submitter { name, uid: None }).await.map(|_| ())
    }
}

/// Asks for ever.
pub(super) async fn ask_all(
    server: Arc<Server>,
    signer: Signer,
    mut passwords: mpsc::Receiver<PasswordAsked>,
    eligible: bool,
) {
    let mut notices = server.notices();
    let (waiting, events) = server.approvals().queue().watch();
    let mut asker = Asker::new(Own { server, signer, events }, waiting, eligible);
    loop {
        // Before the next question: what was approved waits for it.
        while let Ok(asked) = passwords.try_recv() {
            ask_password(asked).await;
        }
        asker.ask().await;
        tokio::select! {
            event = asker.desk.event() => match event {
                Some(event) => {
                    asker.note(event, "");
                }
                None => return,
            },
            notice = notices.recv() => show_notice(notice).await,
            Some(asked) = passwords.recv() => ask_password(asked).await,
        }
    }
}

/// What was typed when nobody waits any more goes with the question: it is not there for whoever reads next.
async fn ask_password((what, mut reply): PasswordAsked) {
    let typed = tokio::select! {
        typed = ask_secret(&what) => typed.ok().flatten(),
        () = reply.closed() => {
            let text = Style::of_environment().dimmed("nobody waits for this password any more");
            if let Ok(terminal) = Terminal::open() {
                let _nobody_looks = show(&Arc::new(terminal), format!("\n{text}")).await;
            }
            None
        }
    };
    let _gone = reply.send(typed);
}

async fn show_notice(notice: Result<Notice, RecvError>) {
    let style = Style::of_environment();
    let text = match notice {
        Ok(Notice::Answered { response, title }) => {
            // Who was asked knows what it was.
            let unasked = response.decision.as_deref().is_some_and(|decision| decision != "human");
            let title = if unasked { style.dimmed(&format!("unasked: {title}")) } else { String::new() };
            title + &prompt::result(&response, style)
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
