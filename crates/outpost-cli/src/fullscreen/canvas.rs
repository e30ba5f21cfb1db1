//! Drawing primitives of full-screen commands: lines and styles.

use crate::{columns, tty};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Whether to use colors. They never carry information that the text lacks.
#[derive(Clone, Copy)]
pub(crate) struct Theme {
    pub(crate) color: bool,
}

impl Theme {
    pub(crate) fn from_env() -> Theme {
        Theme { color: tty::wants_colors() }
    }

    pub(crate) fn paint(self, style: Style, color: Color) -> Style {
        if self.color { style.fg(color) } else { style }
    }
}

pub(crate) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(crate) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    pub(crate) area: Rect,
    pub(crate) theme: Theme,
}

impl<'a> Canvas<'a> {
    pub(crate) fn new(frame: &'a mut Frame<'_>, theme: Theme) -> Canvas<'a> {
        let area = frame.area();
        Canvas { buffer: frame.buffer_mut(), area, theme }
    }

    /// Draws one line over the full width. A row below the screen is ignored.
    pub(crate) fn line(&mut self, at: u16, text: &str, style: Style) {
        if at >= self.area.height {
            return;
        }
        let (x, y, width) = (self.area.x, self.area.y + at, self.area.width);
        self.buffer.set_style(Rect::new(x, y, width, 1), style);
        self.buffer.set_stringn(x, y, text, usize::from(width), style);
    }

    /// Like `line`, and marks a cut text with an ellipsis.
    pub(crate) fn cut(&mut self, at: u16, text: &str, style: Style) {
        self.line(at, &columns::cut(text, self.area.width.into(), "..."), style);
    }
}

/// The first visible row of a list, so that the selected one is visible.
pub(crate) fn first_row(selected: Option<usize>, rows: usize) -> usize {
    (selected.unwrap_or_default() + 1).saturating_sub(rows)
}

pub(crate) fn style_of(selected: bool) -> Style {
    if selected { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() }
}
