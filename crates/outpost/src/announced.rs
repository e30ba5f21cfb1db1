//! Where each face listens, and how to try it.

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
    let wide = |cell: fn(&Listening) -> &String| rows.iter().map(|row| cell(row).chars().count()).max();
    let (faces, addresses) = (wide(|row| &row.face), wide(|row| &row.address));
    let (faces, addresses) = (faces.unwrap_or_default(), addresses.unwrap_or_default());
    let line =
        |row: &Listening| format!("  {:<faces$}  {:<addresses$}  try: {}\n", row.face, row.address, row.hint);
    rows.iter().map(line).collect()
}
