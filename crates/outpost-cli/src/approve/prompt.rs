//! `outpost approve --prompt`: prompts for the daemon's questions one at a time, as the drop-in broker does.

use super::Approver;
use crate::Outcome;
use crate::approver::{Connected, unexpected};
use crate::prompt::{ApprovalSource, Prompter};
use outpost_approvals::wire::{Request, ServerMessage};
use outpost_approvals::{Decision, Question};
use std::process::ExitCode;

/// The daemon's queue.
struct DaemonQueue {
    approver: Approver,
    connected: Connected,
}

impl ApprovalSource for DaemonQueue {
    async fn event(&mut self) -> Option<ServerMessage> {
        self.connected.client.event().await.ok()
    }

    /// The deadline counts from the request, because other approvers see the question too.
    fn show(&mut self, question: Question) -> Option<Question> {
        Some(question)
    }

    /// `always` is not offered here.
    async fn decide(&mut self, question: &Question, allow: bool, _always: bool) {
        let decision = Decision { allow, note: String::new(), remember: None };
        if let Err(error) = self.approver.decide(&mut self.connected, question, decision).await {
            crate::console::print_error(&error.to_string());
        }
    }

    /// The question stays pending for other approvers.
    async fn give_up(&mut self, _question: &Question, why: &str) {
        crate::console::print_error(&format!("cannot prompt on this terminal: {why}"));
    }
}

pub(super) async fn run(mut approver: Approver) -> Outcome {
    let mut connected = approver.connect().await?;
    approver.prepare(&mut connected).await?;
    let questions = match connected.client.ask(&Request::Watch).await {
        Ok(ServerMessage::Questions { questions, .. }) => questions,
        Ok(other) => return Err(unexpected(&other)),
        Err(error) => return Err(error.to_string()),
    };
    let mut prompter = Prompter::new(DaemonQueue { approver, connected }, questions, false);
    loop {
        prompter.run().await;
        match prompter.source.event().await {
            Some(event) => prompter.on_event(event, ""),
            None => {
                crate::console::print_error(
                    "the daemon has stopped\nhint: run `outpost approve --prompt` again when it runs",
                );
                return Ok(ExitCode::FAILURE);
            }
        };
    }
}
