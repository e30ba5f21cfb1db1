//! Key handling of `outpost top`. A kill always needs a second key.

use super::app::{App, Dialog, Row, Sort, View};
use super::draw;
use crate::fullscreen::{CONTROL_C, ENTER, ESCAPE, Pressed, moved, pop_character, pressed};
use crate::tty::keys::{Key, Move};

const FILTER_BYTES_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Attach { process: String },
    Kill { process: String, name: String },
}

impl App {
    pub(super) fn key(&mut self, key: Key) -> Option<Action> {
        let in_filter = matches!(self.dialog, Dialog::Filter(_));
        let byte = match pressed(key, in_filter)? {
            Pressed::Byte(CONTROL_C) => return Some(Action::Quit),
            Pressed::Move(to) => {
                self.move_by(to);
                return None;
            }
            Pressed::Byte(byte) => byte,
        };
        self.status.clear();
        match std::mem::replace(&mut self.dialog, Dialog::None) {
            Dialog::Filter(typed) => {
                self.key_in_filter(byte, typed);
                None
            }
            Dialog::ConfirmKill { process, name, .. } if byte == b'y' => {
                self.status = format!("{}: stopping", draw::escaped(&name));
                Some(Action::Kill { process, name: draw::escaped(&name) })
            }
            Dialog::ConfirmKill { .. } => None,
            Dialog::None => self.key_without_dialog(byte),
        }
    }

    fn move_by(&mut self, to: Move) {
        let page = draw::page_rows(self).max(1);
        match self.view {
            _ if self.dialog != Dialog::None => {}
            View::List => {
                if let Some(at) = moved(self.selected_at(), to, self.order.len(), page) {
                    self.select(at);
                }
            }
            View::Details { top } => {
                let last = draw::details_rows(self).saturating_sub(page);
                let top = moved(Some(top), to, last + 1, page).unwrap_or_default();
                self.view = View::Details { top };
            }
        }
    }

    fn key_without_dialog(&mut self, byte: u8) -> Option<Action> {
        match byte {
            b'q' => return Some(Action::Quit),
            b'a' => {
                return self.selected_row().map(|row| Action::Attach { process: row.info.process.clone() });
            }
            b'k' => self.ask_to_kill(),
            ESCAPE => self.view = View::List,
            ENTER if self.view == View::List && self.selected_row().is_some() => {
                self.view = View::Details { top: 0 };
            }
            ENTER => self.view = View::List,
            b'/' => {
                self.view = View::List;
                self.dialog = Dialog::Filter(self.filter.clone().into_bytes());
            }
            b'e' => {
                self.show_ended = !self.show_ended;
                self.update_order();
            }
            b'c' => self.sort_by(Sort::Cpu),
            b'm' => self.sort_by(Sort::Memory),
            b'o' => self.sort_by(Sort::Rate),
            b't' => self.sort_by(Sort::Age),
            b'n' => self.sort_by(Sort::Name),
            b'r' => {
                self.reversed = !self.reversed;
                self.update_order();
            }
            _ => {}
        }
        None
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.reversed) = (sort, false);
        self.update_order();
    }

    fn ask_to_kill(&mut self) {
        let end = |row: &Row| Dialog::ConfirmKill {
            process: row.info.process.clone(),
            name: row.name.clone(),
            pid: row.info.pid,
        };
        match self.selected_row() {
            Some(row) if row.is_running() => self.dialog = end(row),
            Some(_) => self.status = "the process has already ended".into(),
            None => {}
        }
    }

    /// Applies the filter with every key.
    fn key_in_filter(&mut self, byte: u8, mut typed: Vec<u8>) {
        match byte {
            ENTER => return,
            ESCAPE => typed.clear(),
            0x7f | 0x08 => pop_character(&mut typed),
            b' '.. if typed.len() < FILTER_BYTES_MAX => typed.push(byte),
            _ => {}
        }
        self.filter = String::from_utf8_lossy(&typed).into_owned();
        if byte != ESCAPE {
            self.dialog = Dialog::Filter(typed);
        }
        self.update_order();
    }
}
