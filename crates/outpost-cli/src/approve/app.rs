//! The state of `outpost approve`: pending questions, the open question, grants, and updates from the daemon.

use super::page::{self, Row};
use crate::approvals::print::outcome_text;
use crate::fullscreen::Size;
use outpost_approvals::wire::{Grant, Request, ServerMessage};
use outpost_approvals::{Decision, Outcome, Question};
use std::time::{Duration, Instant};

/// Keys within this time after a question appeared are ignored: they cannot be an answer to it.
pub(super) const READING_TIME: Duration = Duration::from_millis(700);

/// Rows besides the body: the title, two status rows, the keys.
pub(super) const ROWS_AROUND: u16 = 4;

/// Smallest screen on which decisions are allowed.
pub(super) const COLUMNS_MIN: u16 = 40;
pub(super) const ROWS_MIN: u16 = 10;

pub(super) struct App {
    /// Oldest first.
    pub(super) questions: Vec<Question>,
    /// An id, so that changes of the list do not move the selection to another question.
    pub(super) selected: Option<String>,
    pub(super) view: View,
    /// The last event or error.
    pub(super) status: String,
    pub(super) grants: Vec<Grant>,
    pub(super) selected_grant: Option<String>,
    pub(super) connected: bool,
    pub(super) size: Size,
    /// Our name in the audit log.
    name: String,
    /// Set when the open question disappears: keys until then were meant for it.
    pub(super) ignore_keys_until: Option<Instant>,
}

pub(super) enum View {
    List,
    Details(Box<Details>),
    Grants,
}

/// The open question. A decision applies to this copy, which is what the screen shows.
pub(super) struct Details {
    pub(super) question: Question,
    pub(super) rows: Vec<Row>,
    /// The first visible row.
    pub(super) top: usize,
    /// The last row has been visible.
    pub(super) end_shown: bool,
    /// When the current layout was first drawn.
    pub(super) shown_at: Option<Instant>,
    pub(super) dialog: Dialog,
    /// Until when a second `y` approves a privileged command.
    pub(super) confirm_until: Option<Instant>,
    /// Our decision is sent and not settled yet.
    pub(super) submitted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialog {
    None,
    /// The typed note of a denial.
    Note(Vec<u8>),
    Remember {
        unit: Unit,
        digits: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Times,
    Minutes,
}

/// A request for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DaemonRequest {
    /// Sign and submit a decision about the question as shown.
    Decide {
        question: Box<Question>,
        decision: Decision,
    },
    Ask(Request),
}

/// Events of the daemon and of the connection to it.
pub(super) enum LinkEvent {
    Connected {
        name: String,
        questions: Vec<Question>,
    },
    Lost {
        why: String,
    },
    Event(ServerMessage),
    Reply(ServerMessage),
    Failed {
        why: String,
    },
    /// The daemon refuses a reconnect.
    Closed {
        why: String,
    },
}

impl App {
    pub(super) fn new(size: Size) -> App {
        App {
            questions: Vec::new(),
            selected: None,
            view: View::List,
            status: String::new(),
            grants: Vec::new(),
            selected_grant: None,
            connected: false,
            size,
            name: String::new(),
            ignore_keys_until: None,
        }
    }

    pub(super) fn is_too_small(&self) -> bool {
        self.size.columns < COLUMNS_MIN || self.size.rows < ROWS_MIN
    }

    /// Rows for the list or the question.
    pub(super) fn body_rows(&self) -> usize {
        usize::from(self.size.rows.saturating_sub(ROWS_AROUND))
    }

    /// A new size changes the layout, so the question counts as unread.
    pub(super) fn resize(&mut self, size: Size) {
        if size == self.size {
            return;
        }
        self.size = size;
        if let View::Details(details) = &mut self.view {
            details.layout(size);
        }
    }

    pub(super) fn open(&mut self) {
        let selected = self.selected.as_deref();
        let Some(question) = self.questions.iter().find(|one| Some(one.id.as_str()) == selected) else {
            return;
        };
        let mut details = Box::new(Details {
            question: question.clone(),
            rows: Vec::new(),
            top: 0,
            end_shown: false,
            shown_at: None,
            dialog: Dialog::None,
            confirm_until: None,
            submitted: false,
        });
        details.layout(self.size);
        self.view = View::Details(details);
    }

    /// Clears an expired confirmation prompt.
    pub(super) fn tick(&mut self, now: Instant) {
        if let View::Details(details) = &mut self.view
            && details.confirm_until.take_if(|until| now > *until).is_some()
        {
            self.status.clear();
        }
    }

    /// Records that the current state was drawn.
    pub(super) fn drawn(&mut self, now: Instant) {
        let (body, too_small) = (self.body_rows(), self.is_too_small());
        if let View::Details(details) = &mut self.view
            && !too_small
        {
            details.shown_at.get_or_insert(now);
            details.end_shown |= details.top + body >= details.rows.len();
        }
    }

    /// Handles an event; returns a follow-up request.
    pub(super) fn on_link_event(&mut self, event: LinkEvent, now: Instant) -> Option<DaemonRequest> {
        match event {
            LinkEvent::Connected { name, questions } => {
                self.status = match self.name.is_empty() {
                    true => format!("connected as {name}"),
                    false => format!("reconnected as {name}"),
                };
                (self.name, self.connected) = (name, true);
                self.replace_all(questions, now);
            }
            LinkEvent::Lost { why } | LinkEvent::Closed { why } => {
                self.connected = false;
                let was_submitted = self.clear_submitted();
                let fate = if was_submitted { "; it is unknown whether the answer arrived" } else { "" };
                self.status = format!("no connection: {why}{fate}");
            }
            LinkEvent::Event(event)
            | LinkEvent::Reply(event @ (ServerMessage::Asked { .. } | ServerMessage::Settled { .. })) => {
                self.on_event(event, now);
            }
            LinkEvent::Reply(answer) => return self.on_reply(answer),
            LinkEvent::Failed { why } => {
                self.clear_submitted();
                self.status = why;
            }
        }
        None
    }

    fn on_event(&mut self, event: ServerMessage, now: Instant) {
        match event {
            ServerMessage::Asked { question } => {
                self.questions.retain(|known| known.id != question.id);
                self.questions.push(*question);
                self.keep_selection(0);
            }
            ServerMessage::Settled { id, outcome } => self.settle(&id, &outcome, now),
            ServerMessage::Questions { questions, .. } | ServerMessage::Snapshot { questions } => {
                self.replace_all(questions, now)
            }
            _ => {}
        }
    }

    fn on_reply(&mut self, answer: ServerMessage) -> Option<DaemonRequest> {
        match answer {
            ServerMessage::Grants { grants } => {
                self.grants = grants;
                let selected = self.selected_grant.take();
                let still = |id: &String| self.grants.iter().any(|grant| grant.id == *id);
                self.selected_grant =
                    selected.filter(still).or_else(|| self.grants.first().map(|grant| grant.id.clone()));
                None
            }
            ServerMessage::Revoked { id } => {
                self.status = format!("revoked {}", short(&id));
                Some(DaemonRequest::Ask(Request::Grants))
            }
            // The outcome arrives as an event.
            _ => None,
        }
    }

    fn settle(&mut self, id: &str, outcome: &Outcome, now: Instant) {
        let Some(at) = self.questions.iter().position(|question| question.id == id) else { return };
        let question = self.questions.remove(at);
        // `by` is the signer, followed by the client that submitted the decision.
        let by_us = match outcome {
            Outcome::Decided { by, .. } if by.ends_with(&self.name) => Some(by),
            _ => None,
        };
        let ending = outcome_text(outcome);
        let ending = by_us.map_or(ending.clone(), |by| ending.replacen(by, "you", 1));
        self.status = format!("{} {ending}", short(&question.digest));
        self.close_details(id, now);
        self.keep_selection(at);
    }

    /// Replaces all questions. The open one stays if it is unchanged.
    fn replace_all(&mut self, questions: Vec<Question>, now: Instant) {
        let at = self.selected_at().unwrap_or_default();
        self.questions = questions;
        if let View::Details(details) = &self.view
            && !self.questions.contains(&details.question)
        {
            let (id, digest) = (details.question.id.clone(), short(&details.question.digest));
            self.status = format!("{digest} is no longer pending");
            self.close_details(&id, now);
        }
        self.keep_selection(at);
    }

    /// Closes the details if they show this question.
    fn close_details(&mut self, id: &str, now: Instant) {
        if let View::Details(details) = &self.view
            && details.question.id == id
        {
            self.view = View::List;
            self.ignore_keys_until = Some(now + READING_TIME);
        }
    }

    pub(super) fn selected_at(&self) -> Option<usize> {
        self.questions.iter().position(|question| Some(&question.id) == self.selected.as_ref())
    }

    /// Keeps the selection if it still exists, else selects the question at `at` or the last one.
    fn keep_selection(&mut self, at: usize) {
        if self.selected_at().is_none() {
            let near = self.questions.get(at).or(self.questions.last());
            self.selected = near.map(|question| question.id.clone());
        }
    }

    /// Clears `submitted`; returns its previous value.
    fn clear_submitted(&mut self) -> bool {
        match &mut self.view {
            View::Details(details) => std::mem::take(&mut details.submitted),
            View::List | View::Grants => false,
        }
    }
}

impl Details {
    fn layout(&mut self, size: Size) {
        self.rows = page::rows(&self.question, usize::from(size.columns));
        self.top = 0;
        self.mark_unread();
        self.end_shown = false;
    }

    /// The current layout has not been drawn yet.
    pub(super) fn mark_unread(&mut self) {
        self.shown_at = None;
        self.confirm_until = None;
    }
}

pub(super) fn short(digest: &str) -> String {
    digest.chars().take(8).collect()
}
