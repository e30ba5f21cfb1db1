//! The layout of a question: all of its text, wrapped to the width of the screen.

use crate::approver::printable;
use outpost_approvals::display::wrap;
use outpost_approvals::{Line, Question};

/// The kind of a row, which selects its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Warning,
    Heading,
    /// Unverified text of the requester.
    Claimed,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// Warnings first, unverified text last.
pub(super) fn rows(question: &Question, columns: usize) -> Vec<Row> {
    let mut page = Page { columns, rows: Vec::new() };
    if question.privileged {
        page.push(Kind::Warning, "PRIVILEGED: this runs as root");
    }
    for warning in &question.warnings {
        page.push(Kind::Warning, &format!("WARNING: {warning}"));
    }
    page.push(Kind::Heading, "Command");
    page.push(Kind::Text, &question.title);
    for section in &question.sections {
        let (claimed, kind) = match section.claimed {
            true => (" (not verified)", Kind::Claimed),
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
    /// Headings and warnings start in the first column. Text of a question is indented, so it cannot imitate them.
    fn push(&mut self, kind: Kind, text: &str) {
        for mut text in wrap(&printable(text), self.columns) {
            if matches!(kind, Kind::Heading | Kind::Warning) && text.starts_with("  ") {
                text.drain(..2);
            }
            self.rows.push(Row { text, kind });
        }
    }
}
