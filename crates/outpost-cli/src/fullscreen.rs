//! Shared code of full-screen commands: terminal, drawing, signals, keys and list navigation.

mod canvas;
mod screen;
mod signals;

pub(super) use canvas::{BAR, Canvas, Theme, first_row, style_of};
pub(super) use screen::Screen;
pub(super) use signals::Signals;

use crate::tty::keys::{Key, Move};

pub(super) const ESCAPE: u8 = 0x1b;
pub(super) const ENTER: u8 = b'\r';
pub(super) const CONTROL_C: u8 = 0x03;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// A key press as a full-screen command sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    Move(Move),
    Byte(u8),
}

/// Pasted bytes count only in a text field, and never as a command key.
pub(super) fn pressed(key: Key, in_text_field: bool) -> Option<Pressed> {
    match key {
        Key::Move(to) => Some(Pressed::Move(to)),
        Key::Escape => Some(Pressed::Byte(ESCAPE)),
        Key::Byte(b'\n') => Some(Pressed::Byte(ENTER)),
        Key::Byte(byte) => Some(Pressed::Byte(byte)),
        Key::Pasted(byte) if in_text_field && byte >= b' ' => Some(Pressed::Byte(byte)),
        Key::Pasted(_) | Key::Sequence => None,
    }
}

/// A list index after a move.
pub(super) fn moved(at: Option<usize>, to: Move, len: usize, page: usize) -> Option<usize> {
    let at = at.unwrap_or_default();
    let last = len.checked_sub(1)?;
    let to = match to {
        Move::Up => at.saturating_sub(1),
        Move::Down => at + 1,
        Move::PageUp => at.saturating_sub(page),
        Move::PageDown => at + page,
        Move::Home => 0,
        Move::End => last,
    };
    Some(to.min(last))
}

/// Removes the last UTF-8 character.
pub(super) fn pop_character(typed: &mut Vec<u8>) {
    while typed.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
}
