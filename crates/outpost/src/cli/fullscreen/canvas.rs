//! Lines on a full screen, and what they look like.

use crate::tty;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Colours say nothing that words do not.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Looks {
    pub(in crate::cli) coloured: bool,
}

impl Looks {
    pub(in crate::cli) fn of_environment() -> Looks {
        Looks { coloured: tty::wants_colours() }
    }

    pub(in crate::cli) fn coloured(self, style: Style, color: Color) -> Style {
        if self.coloured { style.fg(color) } else { style }
    }
}

pub(in crate::cli) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(in crate::cli) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    pub(in crate::cli) area: Rect,
    pub(in crate::cli) looks: Looks,
}

impl<'a> Canvas<'a> {
    pub(in crate::cli) fn new(frame: &'a mut Frame<'_>, looks: Looks) -> Canvas<'a> {
        let area = frame.area();
        Canvas { buffer: frame.buffer_mut(), area, looks }
    }

    /// One line from edge to edge; none where the screen has ended.
    pub(in crate::cli) fn line(&mut self, at: u16, text: &str, style: Style) {
        if at >= self.area.height {
            return;
        }
        let (x, y, width) = (self.area.x, self.area.y + at, self.area.width);
        self.buffer.set_style(Rect::new(x, y, width, 1), style);
        self.buffer.set_stringn(x, y, text, usize::from(width), style);
    }

    /// The same, where more than fits is marked as being more.
    pub(in crate::cli) fn cut(&mut self, at: u16, text: &str, style: Style) {
        let width = usize::from(self.area.width);
        match text.chars().count() > width {
            false => self.line(at, text, style),
            true => {
                let head: String = text.chars().take(width.saturating_sub(3)).collect();
                self.line(at, &format!("{head}..."), style);
            }
        }
    }
}

/// So that what is selected is in sight.
pub(in crate::cli) fn first_row(selected: Option<usize>, rows: usize) -> usize {
    (selected.unwrap_or_default() + 1).saturating_sub(rows)
}

pub(in crate::cli) fn style_of(selected: bool) -> Style {
    if selected { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() }
}
