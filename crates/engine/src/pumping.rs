//! The reactor's work with output: from pipes into journals, at a pace that suits both sides.

use crate::child::{COLLECT, HOT_PIPE_BYTES, PIPE_BYTES, stream_index};
use crate::reactor::{Due, RETRY, Reactor};
use outpost_journal::{Pumped, Stream};
use outpost_keeper::Request;
use outpost_sys::pipe::{self, Moved};
use std::time::{Duration, Instant};

/// Hot pipes may together have this much more than others: the kernel rations it per user.
const HOT_PIPES_MAX: usize = 16;
/// A hot pipe that was quiet for this long is cold again.
const COOL_AFTER: Duration = Duration::from_secs(1);
/// How long output waits, again and again, for a reader that keeps up and would lose some.
const READER_PAUSE: Duration = Duration::from_micros(500);
/// The end of a stream mostly comes with the exit, and is told with it: each time somebody is woken counts.
const END_TOLD_AFTER: Duration = Duration::from_millis(1);
/// After so much new output the host's total is looked at.
const HOST_CHECK_BYTES: u64 = 4 * 1024 * 1024;

impl Reactor {
    pub(crate) fn pump(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_none_or(|output| output.paused) {
            return;
        }
        if child.would_rob_reader(stream) {
            return self.wait_for_reader(slot, stream);
        }
        match child.pump(stream, &self.nowhere) {
            Ok(Pumped::Moved(Moved::Bytes(bytes))) => self.moved(slot, stream, bytes),
            Ok(Pumped::Moved(Moved::WouldBlock) | Pumped::Waits) => child.rewatch(&self.epoll),
            Ok(Pumped::Moved(Moved::End)) => self.stream_ended(slot, stream),
            Err(error) => self.stall(slot, stream, &error),
        }
        self.dispatch(slot);
    }

    /// Lets a reader that keeps up have what the cap is about to take from it; the child waits at its pipe for so long.
    pub(crate) fn wait_for_reader(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            output.paused = true;
        }
        child.rewatch(&self.epoll);
        self.schedule(READER_PAUSE, Due::Pump(slot, stream));
    }

    pub(crate) fn moved(&mut self, slot: u64, stream: Stream, bytes: usize) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let now = Instant::now();
        child.last_byte = now;
        if child.writer.exit().is_none() {
            child.stalled = false;
            child.publish();
        }
        let Some(output) = &mut child.outputs[stream_index(stream)] else { return };
        let collect = output.note(bytes, now);
        if output.wants_larger_pipe() && self.hot_pipes < HOT_PIPES_MAX {
            output.hot = true;
            if pipe::set_capacity(output.pipe(), HOT_PIPE_BYTES).is_ok() {
                self.hot_pipes += 1;
                self.cool_later();
            }
        } else if collect {
            output.paused = true;
            self.schedule(COLLECT, Due::Pump(slot, stream));
        }
        if let Some(child) = self.children.get_mut(&slot) {
            child.rewatch(&self.epoll);
        }
        self.unchecked_bytes += bytes as u64;
        if self.unchecked_bytes >= HOST_CHECK_BYTES {
            self.unchecked_bytes = 0;
            self.keep_host_cap();
        }
    }

    /// Nothing is lost: what could not be written is in the pipe, and the child waits when that is full.
    pub(crate) fn stall(&mut self, slot: u64, stream: Stream, error: &outpost_journal::Error) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if !std::mem::replace(&mut child.stalled, true) {
            tracing::error!(process = %child.process.slot(), %error, "output cannot be recorded; the process is slowed until it can");
            child.show_stall(error);
        }
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            (output.paused, output.awaits_chore) = (true, false);
        }
        child.rewatch(&self.epoll);
        self.schedule(RETRY, Due::Pump(slot, stream));
    }

    pub(crate) fn stream_ended(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_some_and(|output| output.hot) {
            self.hot_pipes = self.hot_pipes.saturating_sub(1);
        }
        for role in child.end_stream(&self.epoll, stream) {
            self.link.send(Request::Release { slot, role }, Vec::new());
        }
        self.schedule(END_TOLD_AFTER, Due::Tell(slot));
        self.drain(slot);
    }

    pub(crate) fn cool(&mut self, now: Instant) {
        let mut hot = 0;
        for output in self
            .children
            .values_mut()
            .flat_map(|child| child.outputs.iter_mut().flatten())
            .filter(|output| output.hot)
        {
            let cold = output.quiet_for(now) >= COOL_AFTER;
            if cold && pipe::set_capacity(output.pipe(), PIPE_BYTES).is_ok() {
                output.hot = false;
            } else {
                hot += 1;
            }
        }
        self.hot_pipes = hot;
        self.cooling = false;
        if hot > 0 {
            self.cool_later();
        }
    }

    pub(crate) fn cool_later(&mut self) {
        if !std::mem::replace(&mut self.cooling, true) {
            self.schedule(COOL_AFTER, Due::Cool);
        }
    }
}
