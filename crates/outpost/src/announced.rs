//! Where each face listens, and how to try it.

use crate::console;
use outpost_control::wire::Listening;
use std::fmt::Display;

/// What has begun to listen so far.
#[derive(Default)]
pub(crate) struct Announced {
    rows: Vec<Listening>,
    /// Whether something is there that was not when the worker before us had it.
    is_new: bool,
}

impl Announced {
    pub(crate) fn add(&mut self, is_new: bool, face: &str, address: impl Display, hint: &str) {
        self.is_new |= is_new;
        let (face, address, hint) = (face.to_owned(), address.to_string(), hint.to_owned());
        self.rows.push(Listening { face, address, hint });
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn extend(&mut self, more: Announced) {
        self.is_new |= more.is_new;
        self.rows.extend(more.rows);
    }

    pub(crate) fn rows(&self) -> &[Listening] {
        &self.rows
    }
}

/// As people read it.
pub(crate) fn table(rows: &[Listening]) -> String {
    let rows: Vec<[_; 3]> =
        rows.iter().map(|row| [&row.face, &row.address, &row.hint].map(|cell| console::line(cell))).collect();
    let wide = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let (faces, addresses) = (wide(0), wide(1));
    let line =
        |[face, address, hint]: &[_; 3]| format!("  {face:<faces$}  {address:<addresses$}  try: {hint}\n");
    rows.iter().map(line).collect()
}
