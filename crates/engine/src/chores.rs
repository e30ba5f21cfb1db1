//! Chores of journals: the reactor hands them to a housekeeping thread and resumes with the results.

use crate::child::stream_index;
use crate::link::role;
use crate::reactor::Reactor;
use crate::spec::Slot;
use outpost_journal::{Done, OutputDone, Stream};
use outpost_keeper::Request;

impl Reactor {
    /// Queues the chores of a process's journal.
    pub(crate) fn dispatch(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let chores = child.chores();
        if !chores.is_empty() {
            self.shared.housekeeping.work(Slot(slot), chores);
        }
    }

    /// Resumes what waited for a chore. Ignores a result whose process was cleaned up.
    pub(crate) fn chore_done(&mut self, slot: u64, done: Done) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        match done {
            Done::Output(done) => self.resume_output(slot, done),
            Done::Log(log) => {
                let begun = child.input.set_log(log);
                let outcome = begun.map(|reader| {
                    self.shared.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
                });
                self.resume_stdin(slot, outcome);
            }
            Done::Stdin(done) => {
                let outcome = child.input.take(done);
                self.resume_stdin(slot, outcome);
            }
        }
    }

    fn resume_output(&mut self, slot: u64, done: OutputDone) {
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
        // Closing stdin may wait for the index too.
        self.handle_offers(slot);
        self.dispatch(slot);
        self.drain(slot);
    }
}
