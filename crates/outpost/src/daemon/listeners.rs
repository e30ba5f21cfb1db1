//! The addresses on which the faces of this worker listen, with an example command for each.

use outpost_control::wire::Listening;
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
