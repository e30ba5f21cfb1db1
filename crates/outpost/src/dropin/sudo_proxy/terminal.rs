//! Prompts of sudo-proxy on its terminal: questions, results of approved commands, and passwords for sudo.

use outpost_approvals::signing::{NAMESPACE, Signed, Signer, Statement};
use outpost_approvals::wire::ServerMessage;
use outpost_approvals::{Decision, Question, Submitter};
use outpost_broker::{Notice, Secret, Server};
use outpost_cli::prompt::{self, ApprovalSource, Prompter, Style};
use outpost_cli::tty::{ask_secret, show};
use outpost_sys::terminal::Terminal;
use std::sync::Arc;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{mpsc, oneshot};

type PasswordRequest = (String, oneshot::Sender<Option<Secret>>);

/// The approval queue of this process.
struct LocalApprovals {
    server: Arc<Server>,
    /// The key of this terminal. It exists as long as this process.
    signer: Signer,
    events: broadcast::Receiver<ServerMessage>,
}

impl ApprovalSource for LocalApprovals {
    async fn event(&mut self) -> Option<ServerMessage> {
        match self.events.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(_)) => {
                let (questions, events) = self.server.approvals().queue().watch();
                self.events = events;
                Some(ServerMessage::Snapshot { questions })
            }
            Err(RecvError::Closed) => None,
        }
    }

    fn show(&mut self, question: Question) -> Option<Question> {
        self.server.present_question(&question.id)
    }

    async fn decide(&mut self, question: &Question, allow: bool, always: bool) {
        if always {
            self.server.auto_approve_unprivileged();
        }
        let decision = Decision { allow, note: String::new(), remember: None };
        if let Err(error) = self.submit(question, decision).await {
            tracing::warn!(%error, "cannot submit a decision");
        }
    }

    async fn give_up(&mut self, question: &Question, why: &str) {
        self.server.approvals().queue().mark_unanswerable(&question.id, why).await;
    }
}

impl LocalApprovals {
    /// Signs the decision with the terminal's key and submits it.
    async fn submit(&self, question: &Question, decision: Decision) -> outpost_approvals::Result<()> {
        let approvals = self.server.approvals();
        let (host, head) = (approvals.verifier().host().blob(), approvals.ledger().head());
        let statement = Statement::new(question, host, head, decision).encode();
        let signed = Signed::new(&statement, &self.signer.sign(NAMESPACE, &statement)?);
        let name = format!("uid {}, the terminal", outpost_sys::process::effective_uid());
        approvals.queue().decide(signed, &Submitter { name, uid: None }).await.map(|_| ())
    }
}

/// Shows prompts and results until the queue closes.
pub(super) async fn run_prompts(
    server: Arc<Server>,
    signer: Signer,
    mut passwords: mpsc::Receiver<PasswordRequest>,
    eligible: bool,
) {
    let mut notices = server.notices();
    let (waiting, events) = server.approvals().queue().watch();
    let mut prompter = Prompter::new(LocalApprovals { server, signer, events }, waiting, eligible);
    loop {
        // An approved command waits for its password, so passwords come before the next question.
        while let Ok(request) = passwords.try_recv() {
            ask_password(request).await;
        }
        prompter.run().await;
        tokio::select! {
            event = prompter.source.event() => match event {
                Some(event) => {
                    prompter.on_event(event, "");
                }
                None => return,
            },
            notice = notices.recv() => show_notice(notice).await,
            Some(request) = passwords.recv() => ask_password(request).await,
        }
    }
}

/// Prompts for a password. If the requester disconnects meanwhile, the typed text is discarded, so that the next reader of
/// the terminal does not get it.
async fn ask_password((what, mut reply): PasswordRequest) {
    let typed = tokio::select! {
        typed = ask_secret(&what) => typed.ok().flatten(),
        () = reply.closed() => {
            let text = Style::from_env().dimmed("this password is no longer needed");
            if let Ok(terminal) = Terminal::open() {
                let _terminal_gone = show(&Arc::new(terminal), format!("\n{text}")).await;
            }
            None
        }
    };
    let _client_gone = reply.send(typed);
}

async fn show_notice(notice: Result<Notice, RecvError>) {
    let style = Style::from_env();
    let text = match notice {
        Ok(Notice::Answered { response, title }) => {
            // The user saw the title of a command in its prompt.
            let unasked = response.decision.as_deref().is_some_and(|decision| decision != "human");
            let title = if unasked { style.dimmed(&format!("unasked: {title}")) } else { String::new() };
            title + &prompt::result(&response, style)
        }
        Ok(Notice::StopRequested { session }) => style
            .dimmed(&format!("stopped by {}", outpost_approvals::display::escape_untrusted(&session, 100))),
        Err(_) => return,
    };
    if let Ok(terminal) = Terminal::open() {
        let _terminal_gone = show(&Arc::new(terminal), text).await;
    }
}
