//! What the full screen is about: the questions there are, the one that is looked at, and what the daemon tells.

use super::page::{self, Row};
use crate::cli::approvals::print::ending;
use crate::cli::fullscreen::Size;
use outpost_approvals::wire::{Answer, Grant, Request};
use outpost_approvals::{Decision, Outcome, Question};
use std::time::{Duration, Instant};

/// What is typed before anybody can have read the question is no answer.
pub(super) const KEYS_IGNORED: Duration = Duration::from_millis(700);

/// Rows of the screen that are not the list's or the question's: the head, two for what happened, the keys.
pub(super) const ROWS_AROUND: u16 = 4;

/// On less than this nobody can read what is being decided.
pub(super) const COLUMNS_MIN: u16 = 40;
pub(super) const ROWS_MIN: u16 = 10;

pub(super) struct App {
    /// Oldest first; new ones come at the end.
    pub(super) questions: Vec<Question>,
    /// By id, so that nothing that comes or goes moves it onto another one.
    pub(super) selected: Option<String>,
    pub(super) view: View,
    /// What happened last.
    pub(super) status: String,
    pub(super) grants: Vec<Grant>,
    pub(super) selected_grant: Option<String>,
    pub(super) connected: bool,
    pub(super) size: Size,
    /// What the audit calls us.
    name: String,
    /// What was looked at has vanished: what is typed until then was meant for it.
    pub(super) deaf_until: Option<Instant>,
}

pub(super) enum View {
    List,
    Details(Box<Details>),
    Grants,
}

/// The question that is looked at. What is decided is what stands here, whatever the list says.
pub(super) struct Details {
    pub(super) question: Question,
    pub(super) rows: Vec<Row>,
    /// The first row in sight.
    pub(super) top: usize,
    /// Its last row was on the screen.
    pub(super) end_shown: bool,
    /// Since when it is on the screen as it is now; not at all before it was drawn.
    pub(super) shown_at: Option<Instant>,
    pub(super) dialog: Dialog,
    /// Until when a second `y` approves what is privileged.
    pub(super) confirm_until: Option<Instant>,
    /// The daemon has our decision and has not answered yet.
    pub(super) decided: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialog {
    None,
    /// The note of a denial, as it was typed so far.
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

/// What is to be done at the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// To be signed: the question as it was on the screen.
    Decide {
        question: Box<Question>,
        decision: Decision,
    },
    Ask(Request),
}

/// What the daemon tells, or the way to it.
pub(super) enum News {
    Connected {
        name: String,
        questions: Vec<Question>,
    },
    Lost {
        why: String,
    },
    Event(Answer),
    Answered(Answer),
    Refused {
        why: String,
    },
    /// There is no way back.
    Ended {
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
            deaf_until: None,
        }
    }

    pub(super) fn is_too_small(&self) -> bool {
        self.size.columns < COLUMNS_MIN || self.size.rows < ROWS_MIN
    }

    /// Rows for the list or the question.
    pub(super) fn body_rows(&self) -> usize {
        usize::from(self.size.rows.saturating_sub(ROWS_AROUND))
    }

    /// Everything is where it was not before: it has to be read anew.
    pub(super) fn resize(&mut self, size: Size) {
        if size == self.size {
            return;
        }
        self.size = size;
        if let View::Details(details) = &mut self.view {
            details.lay_out(size);
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
            decided: false,
        });
        details.lay_out(self.size);
        self.view = View::Details(details);
    }

    /// Time has passed: what is not offered any more is not said any more.
    pub(super) fn tick(&mut self, now: Instant) {
        if let View::Details(details) = &mut self.view
            && details.confirm_until.take_if(|until| now > *until).is_some()
        {
            self.status.clear();
        }
    }

    /// The screen shows what we are now.
    pub(super) fn drawn(&mut self, now: Instant) {
        let (body, too_small) = (self.body_rows(), self.is_too_small());
        if let View::Details(details) = &mut self.view
            && !too_small
        {
            details.shown_at.get_or_insert(now);
            details.end_shown |= details.top + body >= details.rows.len();
        }
    }

    /// What follows from what the daemon tells, if that is another request.
    pub(super) fn hear(&mut self, news: News, now: Instant) -> Option<Order> {
        match news {
            News::Connected { name, questions } => {
                self.status = match self.name.is_empty() {
                    true => format!("connected as {name}"),
                    false => format!("connected again as {name}"),
                };
                (self.name, self.connected) = (name, true);
                self.replace_all(questions, now);
            }
            News::Lost { why } | News::Ended { why } => {
                self.connected = false;
                let lost_decision = self.take_decided();
                let fate = if lost_decision { "; whether the answer arrived is not known" } else { "" };
                self.status = format!("no connection: {why}{fate}");
            }
            News::Event(event) | News::Answered(event @ (Answer::Asked { .. } | Answer::Settled { .. })) => {
                self.hear_event(event, now);
            }
            News::Answered(answer) => return self.hear_answer(answer),
            News::Refused { why } => {
                self.take_decided();
                self.status = why;
            }
        }
        None
    }

    fn hear_event(&mut self, event: Answer, now: Instant) {
        match event {
            Answer::Asked { question } => {
                self.questions.retain(|known| known.id != question.id);
                self.questions.push(*question);
                self.select_something(0);
            }
            Answer::Settled { id, outcome } => self.settle(&id, &outcome, now),
            Answer::Questions { questions, .. } | Answer::Anew { questions } => {
                self.replace_all(questions, now)
            }
            _ => {}
        }
    }

    fn hear_answer(&mut self, answer: Answer) -> Option<Order> {
        match answer {
            Answer::Grants { grants } => {
                self.grants = grants;
                let selected = self.selected_grant.take();
                let still = |id: &String| self.grants.iter().any(|grant| grant.id == *id);
                self.selected_grant =
                    selected.filter(still).or_else(|| self.grants.first().map(|grant| grant.id.clone()));
                None
            }
            Answer::Revoked { id } => {
                self.status = format!("revoked {}", short(&id));
                Some(Order::Ask(Request::Grants))
            }
            // How it ended is told as an event, to everybody alike.
            _ => None,
        }
    }

    fn settle(&mut self, id: &str, outcome: &Outcome, now: Instant) {
        let Some(at) = self.questions.iter().position(|question| question.id == id) else { return };
        let question = self.questions.remove(at);
        // The signer, and behind it the client that has submitted the decision.
        let by_us = match outcome {
            Outcome::Decided { by, .. } if by.ends_with(&self.name) => Some(by),
            _ => None,
        };
        let ending = ending(outcome);
        let ending = by_us.map_or(ending.clone(), |by| ending.replacen(by, "you", 1));
        self.status = format!("{} {ending}", short(&question.digest));
        self.leave(id, now);
        self.select_something(at);
    }

    /// Everything anew. What was looked at stays if it is there as it was.
    fn replace_all(&mut self, questions: Vec<Question>, now: Instant) {
        let at = self.selected_at().unwrap_or_default();
        self.questions = questions;
        if let View::Details(details) = &self.view
            && !self.questions.contains(&details.question)
        {
            let (id, digest) = (details.question.id.clone(), short(&details.question.digest));
            self.status = format!("{digest} does not wait any more");
            self.leave(&id, now);
        }
        self.select_something(at);
    }

    /// Away from a question that has ended.
    fn leave(&mut self, id: &str, now: Instant) {
        if let View::Details(details) = &self.view
            && details.question.id == id
        {
            self.view = View::List;
            self.deaf_until = Some(now + KEYS_IGNORED);
        }
    }

    pub(super) fn selected_at(&self) -> Option<usize> {
        self.questions.iter().position(|question| Some(&question.id) == self.selected.as_ref())
    }

    /// What is at this place or before it, unless what was selected is still there.
    fn select_something(&mut self, at: usize) {
        if self.selected_at().is_none() {
            let near = self.questions.get(at).or(self.questions.last());
            self.selected = near.map(|question| question.id.clone());
        }
    }

    /// Whether a decision was under way; it is not any more.
    fn take_decided(&mut self) -> bool {
        match &mut self.view {
            View::Details(details) => std::mem::take(&mut details.decided),
            View::List | View::Grants => false,
        }
    }
}

impl Details {
    fn lay_out(&mut self, size: Size) {
        self.rows = page::rows(&self.question, usize::from(size.columns));
        self.top = 0;
        self.appear();
        self.end_shown = false;
    }

    /// It is not on the screen as it is now, and has not been read.
    pub(super) fn appear(&mut self) {
        self.shown_at = None;
        self.confirm_until = None;
    }
}

pub(super) fn short(digest: &str) -> String {
    digest.chars().take(8).collect()
}
