//! What an agent says piece by piece, told once more as a whole.

use crate::event::Event;
use crate::output::Output;
use serde::{Deserialize, Serialize};

/// A message is told as a whole if it is not longer than this.
const TEXT_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spoken {
    text: String,
    is_long: bool,
}

impl Spoken {
    pub(super) fn piece(&mut self, text: &str, out: &mut Output) {
        out.tell(&Event::partial(text));
        self.is_long |= self.text.len() + text.len() > TEXT_BYTES_MAX;
        if !self.is_long {
            self.text.push_str(text);
        }
    }

    /// A message is over when something else begins.
    pub(super) fn over(&mut self, out: &mut Output) {
        let Spoken { text, is_long } = std::mem::take(self);
        if !text.is_empty() && !is_long {
            out.tell(&Event::text(text));
        }
    }
}
