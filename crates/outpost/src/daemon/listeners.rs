//! The list of addresses on which the faces listen, with an example command for each.

use crate::columns::{self, pad_end};
use crate::console;
use outpost_control::wire::Listening;
use std::borrow::Cow;
use std::fmt::Display;

/// Listeners opened so far.
#[derive(Default)]
pub(crate) struct Listeners {
    rows: Vec<Listening>,
    /// Whether a listener was bound by this worker instead of inherited from the keeper.
    is_new: bool,
}

impl Listeners {
    pub(crate) fn add(&mut self, is_new: bool, face: &str, address: impl Display, hint: &str) {
        self.is_new |= is_new;
        let (face, address, hint) = (face.to_owned(), address.to_string(), hint.to_owned());
        self.rows.push(Listening { face, address, hint });
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn extend(&mut self, more: Listeners) {
        self.is_new |= more.is_new;
        self.rows.extend(more.rows);
    }

    pub(crate) fn rows(&self) -> &[Listening] {
        &self.rows
    }
}

/// The list as a table for a terminal.
pub(crate) fn table(rows: &[Listening]) -> String {
    let rows: Vec<[_; 3]> =
        rows.iter().map(|row| [&row.face, &row.address, &row.hint].map(|cell| console::line(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| columns::width(&row[column])).max().unwrap_or_default();
    let (faces, addresses) = (width(0), width(1));
    let line = |[face, address, hint]: &[Cow<'_, str>; 3]| {
        format!("  {}  {}  try: {hint}\n", pad_end(face, faces), pad_end(address, addresses))
    };
    rows.iter().map(line).collect()
}
