//! A question as the rows of a screen: everything of it, none wider than the screen.

use crate::cli::approver::printable;
use outpost_approvals::display::wrap;
use outpost_approvals::{Line, Question};

/// What a row is, for its looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Warning,
    Heading,
    /// The words of whoever asked.
    Claimed,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// What cannot be missed stands first, what nobody has checked last.
pub(super) fn rows(question: &Question, columns: usize) -> Vec<Row> {
    let mut page = Page { columns, rows: Vec::new() };
    if question.privileged {
        page.push(Kind::Warning, "PRIVILEGED: this would run with root's rights");
    }
    for warning in &question.warnings {
        page.push(Kind::Warning, &format!("WARNING: {warning}"));
    }
    page.push(Kind::Heading, "In one line");
    page.push(Kind::Text, &question.title);
    for section in &question.sections {
        let (claimed, kind) = match section.claimed {
            true => (" (not checked by anybody)", Kind::Claimed),
            false => ("", Kind::Text),
        };
        page.push(Kind::Heading, &format!("{}{claimed}", section.heading));
        for Line { name, value } in &section.lines {
            match name.is_empty() {
                true => page.push(kind, value),
                false => page.push(kind, &format!("{name}: {value}")),
            }
        }
    }
    page.push(Kind::Heading, "End of the question");
    page.rows
}

struct Page {
    columns: usize,
    rows: Vec<Row>,
}

impl Page {
    /// Headings and warnings begin at the edge, where no text of a question can.
    fn push(&mut self, kind: Kind, text: &str) {
        for mut text in wrap(&printable(text), self.columns) {
            if matches!(kind, Kind::Heading | Kind::Warning) && text.starts_with("  ") {
                text.drain(..2);
            }
            self.rows.push(Row { text, kind });
        }
    }
}
