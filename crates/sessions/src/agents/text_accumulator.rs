//! Collects text deltas into the whole message.

use crate::event::Event;
use crate::turn::output::Output;
use serde::{Deserialize, Serialize};

/// A longer message is not emitted as a whole.
const TEXT_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TextAccumulator {
    text: String,
    is_long: bool,
}

impl TextAccumulator {
    pub(super) fn push_delta(&mut self, text: &str, out: &mut Output) {
        out.emit(&Event::partial(text));
        self.is_long |= self.text.len() + text.len() > TEXT_BYTES_MAX;
        if !self.is_long {
            self.text.push_str(text);
        }
    }

    /// Emits the message. Call it when something else than text follows.
    pub(super) fn flush(&mut self, out: &mut Output) {
        let TextAccumulator { text, is_long } = std::mem::take(self);
        if !text.is_empty() && !is_long {
            out.emit(&Event::text(text));
        }
    }
}
