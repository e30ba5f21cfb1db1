//! The reactor's side of work on files: it hands chores of journals to the housekeeping thread and goes on with the results.

use crate::child::stream_index;
use crate::link::role;
use crate::reactor::Reactor;
use crate::spec::Slot;
use outpost_journal::{Done, OutputDone, Stream};
use outpost_keeper::Request;

impl Reactor {
    /// Has the work done that a process's journal wants now.
    pub(crate) fn dispatch(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let chores = child.chores();
        if !chores.is_empty() {
            self.shared.housekeeping.work(Slot(slot), chores);
        }
    }

    /// Goes on with what waited for a chore. The result of one whose process has left is dropped.
    pub(crate) fn worked(&mut self, slot: u64, done: Done) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        match done {
            Done::Output(done) => self.go_on_with_output(slot, done),
            Done::Log(log) => {
                let begun = child.input.begin(log);
                let outcome = begun.map(|reader| {
                    self.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
                });
                self.go_on_with_input(slot, outcome);
            }
            Done::Stdin(done) => {
                let outcome = child.input.take(done);
                self.go_on_with_input(slot, outcome);
            }
        }
    }

    fn go_on_with_output(&mut self, slot: u64, done: OutputDone) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let outcome = child.writer.take(done);
        for stream in Stream::ALL {
            let output =
                self.children.get_mut(&slot).and_then(|child| child.outputs[stream_index(stream)].as_mut());
            let Some(output) = output.filter(|output| output.awaits_chore) else { continue };
            match &outcome {
                Ok(()) => {
                    output.paused = false;
                    self.pump(slot, stream);
                }
                Err(error) => self.stall(slot, stream, error),
            }
        }
        // Stdin is closed in the index, too.
        self.take_offers(slot);
        self.dispatch(slot);
        self.drain(slot);
    }
}
