//! Key handling of `outpost approve`. A key decides only about a question that was visible long enough to be read.

use super::app::{App, DaemonRequest, Details, Dialog, READING_TIME, Unit, View};
use crate::fullscreen::{CONTROL_C, ENTER, ESCAPE, Pressed, moved, pop_character, pressed};
use crate::tty::keys::{Key, Move};
use outpost_approvals::wire::Request;
use outpost_approvals::{Decision, Remember};
use std::time::{Duration, Instant};

/// Time for the second `y`.
const CONFIRM: Duration = Duration::from_secs(3);

const NOTE_BYTES_MAX: usize = 500;
const DIGITS_MAX: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Send(DaemonRequest),
    Quit,
}

impl App {
    pub(super) fn key(&mut self, key: Key, now: Instant) -> Option<Action> {
        if key == Key::Byte(CONTROL_C) {
            return Some(Action::Quit);
        }
        if self.ignore_keys_until.is_some_and(|until| now < until) {
            return None;
        }
        let in_note =
            matches!(&self.view, View::Details(details) if matches!(details.dialog, Dialog::Note(_)));
        // Pasted text is accepted in a note, but the Enter that sends it must be pressed.
        let byte = match pressed(key, in_note)? {
            Pressed::Move(to) => {
                self.move_by(to);
                return None;
            }
            Pressed::Byte(byte) => byte,
        };
        match &self.view {
            View::List => self.key_in_list(byte),
            View::Grants => self.key_in_grants(byte),
            View::Details(_) => self.key_in_details(byte, now),
        }
    }

    fn move_by(&mut self, to: Move) {
        let body = self.body_rows();
        match &mut self.view {
            View::Details(details) if details.dialog == Dialog::None => {
                self.status.clear();
                details.scroll(to, body);
            }
            View::Details(_) => {}
            View::List => {
                let at = moved(self.selected_at(), to, self.questions.len(), body);
                self.selected = at.and_then(|at| self.questions.get(at)).map(|question| question.id.clone());
            }
            View::Grants => {
                let at = self.grants.iter().position(|grant| Some(&grant.id) == self.selected_grant.as_ref());
                let at = moved(at, to, self.grants.len(), body);
                self.selected_grant = at.and_then(|at| self.grants.get(at)).map(|grant| grant.id.clone());
            }
        }
    }

    fn key_in_list(&mut self, byte: u8) -> Option<Action> {
        match byte {
            ENTER => self.open(),
            b'g' => {
                self.view = View::Grants;
                return Some(Action::Send(DaemonRequest::Ask(Request::Grants)));
            }
            b'q' => return Some(Action::Quit),
            _ => {}
        }
        None
    }

    fn key_in_grants(&mut self, byte: u8) -> Option<Action> {
        match byte {
            b'g' => return Some(Action::Send(DaemonRequest::Ask(Request::Grants))),
            b'x' => {
                let id = self.selected_grant.clone()?;
                return Some(Action::Send(DaemonRequest::Ask(Request::Revoke { id })));
            }
            b'q' => return Some(Action::Quit),
            ESCAPE => self.view = View::List,
            _ => {}
        }
        None
    }

    fn key_in_details(&mut self, byte: u8, now: Instant) -> Option<Action> {
        let too_small = self.is_too_small();
        let View::Details(details) = &mut self.view else { return None };
        self.status.clear();
        let confirm_until = details.confirm_until.take();
        if details.dialog == Dialog::None && byte == ESCAPE {
            self.view = View::List;
            return None;
        }
        if details.dialog == Dialog::None && byte == b'q' {
            return Some(Action::Quit);
        }
        let decides = match details.dialog {
            Dialog::None => true,
            Dialog::Remember { .. } => byte == b'y',
            Dialog::Note(_) => false,
        };
        if decides && (details.submitted || !details.had_reading_time(now)) {
            return None;
        }
        if !self.connected {
            self.status = "no connection: decisions are not possible".into();
            return None;
        }
        if too_small {
            return None;
        }
        let done = match &details.dialog {
            Dialog::None => details.key(byte, confirm_until, now),
            Dialog::Note(_) => Ok(details.key_in_note(byte)),
            Dialog::Remember { .. } => details.key_in_remember(byte, confirm_until, now),
        };
        match done {
            Ok(request) => request.map(Action::Send),
            Err(why) => {
                self.status = why;
                None
            }
        }
    }
}

/// A request for the daemon, or a message for the status row.
type KeyResult = Result<Option<DaemonRequest>, String>;

impl Details {
    /// Whether the question has been visible for `READING_TIME`.
    fn had_reading_time(&self, now: Instant) -> bool {
        self.shown_at.is_some_and(|since| now >= since + READING_TIME)
    }

    fn scroll(&mut self, to: Move, body: usize) {
        let last = self.rows.len().saturating_sub(body);
        // A page overlaps by one row, so that no row is skipped.
        let page = body.saturating_sub(1).max(1);
        self.top = match to {
            Move::Up => self.top.saturating_sub(1),
            Move::Down => self.top + 1,
            Move::PageUp => self.top.saturating_sub(page),
            Move::PageDown => self.top + page,
            Move::Home => 0,
            Move::End => last,
        }
        .min(last);
        self.confirm_until = None;
    }

    fn key(&mut self, byte: u8, confirm_until: Option<Instant>, now: Instant) -> KeyResult {
        match byte {
            b'y' => self.approve(None, confirm_until, now),
            b'n' => Ok(Some(self.decide(false, String::new(), None))),
            b'd' => {
                self.dialog = Dialog::Note(Vec::new());
                Ok(None)
            }
            b'r' if !self.question.rememberable => {
                Err("an approval of this question cannot be remembered".into())
            }
            b'r' => {
                self.require_end_shown()?;
                self.dialog = Dialog::Remember { unit: Unit::Times, digits: String::new() };
                self.mark_unread();
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn key_in_note(&mut self, byte: u8) -> Option<DaemonRequest> {
        let Dialog::Note(note) = &mut self.dialog else { return None };
        match byte {
            ESCAPE => self.close_dialog(),
            ENTER => {
                let note = String::from_utf8_lossy(note).into_owned();
                self.close_dialog();
                return Some(self.decide(false, note, None));
            }
            0x7f | 0x08 => pop_character(note),
            b' '.. if note.len() < NOTE_BYTES_MAX => note.push(byte),
            _ => {}
        }
        None
    }

    fn key_in_remember(&mut self, byte: u8, confirm_until: Option<Instant>, now: Instant) -> KeyResult {
        let Dialog::Remember { unit, digits } = &mut self.dialog else { return Ok(None) };
        match byte {
            ESCAPE => self.close_dialog(),
            b't' => *unit = Unit::Times,
            b'm' => *unit = Unit::Minutes,
            b'0'..=b'9' if digits.len() < DIGITS_MAX => digits.push(char::from(byte)),
            0x7f | 0x08 => {
                digits.pop();
            }
            b'y' => {
                let number = digits.parse().ok().filter(|number| *number > 0);
                let number = number.ok_or("type a number of times or minutes first")?;
                let remember = match unit {
                    Unit::Times => Remember::Times(number),
                    Unit::Minutes => Remember::Minutes(number),
                };
                return self.approve(Some(remember), confirm_until, now);
            }
            _ => {}
        }
        Ok(None)
    }

    fn close_dialog(&mut self) {
        self.dialog = Dialog::None;
        self.mark_unread();
    }

    fn require_end_shown(&self) -> Result<(), String> {
        match self.end_shown {
            true => Ok(()),
            false => Err("more below: press End, then y".into()),
        }
    }

    fn approve(
        &mut self,
        remember: Option<Remember>,
        confirm_until: Option<Instant>,
        now: Instant,
    ) -> KeyResult {
        self.require_end_shown()?;
        if self.question.privileged && confirm_until.is_none_or(|until| now > until) {
            self.confirm_until = Some(now + CONFIRM);
            return Err("PRIVILEGED: press y again within 3 s to approve".into());
        }
        Ok(Some(self.decide(true, String::new(), remember)))
    }

    fn decide(&mut self, allow: bool, note: String, remember: Option<Remember>) -> DaemonRequest {
        self.submitted = true;
        let decision = Decision { allow, note, remember };
        DaemonRequest::Decide { question: Box::new(self.question.clone()), decision }
    }
}
