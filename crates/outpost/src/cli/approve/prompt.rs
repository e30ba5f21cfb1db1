//! `outpost approve --prompt`: one question at a time, as the drop-in asks, about what waits in the daemon.

use super::Approver;
use crate::cli::Outcome;
use crate::cli::approver::Connected;
use crate::prompt::{Asker, Desk};
use outpost_approvals::wire::{Answer, Request};
use outpost_approvals::{Decision, Question};
use std::process::ExitCode;

/// The daemon's queue.
struct Remote {
    approver: Approver,
    connected: Connected,
}

impl Desk for Remote {
    async fn event(&mut self) -> Option<Answer> {
        self.connected.client.event().await.ok()
    }

    /// Its time has run since it was asked: others see it too.
    fn begin(&mut self, question: Question) -> Option<Question> {
        Some(question)
    }

    /// `always` is not offered here.
    async fn decide(&mut self, question: &Question, allow: bool, _always: bool) {
        let decision = Decision { allow, note: String::new(), remember: None };
        if let Err(error) = self.approver.decide(&mut self.connected, question, decision).await {
            crate::console::complain(&error.to_string());
        }
    }

    /// Somebody else may be able to.
    async fn give_up(&mut self, _question: &Question, why: &str) {
        errln!("outpost: cannot ask on this terminal: {why}");
    }
}

pub(super) async fn work(mut approver: Approver) -> Outcome {
    let mut connected = approver.connect().await?;
    approver.prepare(&mut connected).await?;
    let questions = match connected.client.ask(&Request::Watch).await {
        Ok(Answer::Questions { questions, .. }) => questions,
        Ok(other) => return Err(format!("the daemon answered {other:?}")),
        Err(error) => return Err(error.to_string()),
    };
    let mut asker = Asker::new(Remote { approver, connected }, questions, false);
    loop {
        asker.ask().await;
        match asker.desk.event().await {
            Some(event) => asker.note(event, ""),
            None => {
                errln!("outpost: the daemon has ended; start this again when it runs");
                return Ok(ExitCode::FAILURE);
            }
        };
    }
}
