//! Output: from the pipes of children into their journals, with back-pressure.

use crate::child::{COLLECT, HOT_PIPE_BYTES, PIPE_BYTES, stream_index};
use crate::reactor::{RETRY, Reactor};
use crate::timers::Due;
use outpost_journal::{Pumped, Stream};
use outpost_keeper::Request;
use outpost_sys::file;
use outpost_sys::pipe::{self, Moved};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The most hot pipes. The kernel limits the memory of pipes per user.
const HOT_PIPES_MAX: usize = 16;
/// A hot pipe that was quiet for this long is cold again.
const COOL_AFTER: Duration = Duration::from_secs(1);
/// The interval in which output waits for a reader that keeps up and would lose some.
const READER_PAUSE: Duration = Duration::from_micros(500);
/// The EOF of a stream is published after this time. Mostly the exit is published before, with one wake-up for both.
const EOF_PUBLISHED_AFTER: Duration = Duration::from_millis(1);
/// The host's cap is checked after this much new output.
const HOST_CHECK_BYTES: u64 = 4 * 1024 * 1024;

/// The state of all outputs together.
pub(crate) struct OutputPump {
    /// Where output goes after the exit is recorded.
    dev_null: OwnedFd,
    hot_pipes: usize,
    /// `Due::CoolPipes` is scheduled.
    cooling: bool,
    /// Output since the host's cap was checked.
    unchecked_bytes: u64,
}

impl OutputPump {
    pub(crate) fn new() -> crate::Result<OutputPump> {
        let dev_null = file::open("/dev/null", file::Open::ReadWrite)
            .map_err(|errno| crate::Error::io("open", "/dev/null", errno))?;
        Ok(OutputPump { dev_null, hot_pipes: 0, cooling: false, unchecked_bytes: 0 })
    }

    pub(crate) fn dev_null(&self) -> &OwnedFd {
        &self.dev_null
    }
}

impl Reactor {
    pub(crate) fn pump(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_none_or(|output| output.paused) {
            return;
        }
        if child.would_drop_unread(stream) {
            return self.wait_for_reader(slot, stream);
        }
        match child.pump(stream, &self.pump.dev_null) {
            Ok(Pumped::Moved(Moved::Bytes(bytes))) => self.moved(slot, stream, bytes),
            Ok(Pumped::Moved(Moved::WouldBlock) | Pumped::AwaitsChore) => child.rewatch(&self.epoll),
            Ok(Pumped::Moved(Moved::End)) => self.stream_ended(slot, stream),
            Err(error) => self.stall(slot, stream, &error),
        }
        self.dispatch(slot);
    }

    /// Pauses the output until the reader has read what the cap would drop. The child waits at its full pipe.
    fn wait_for_reader(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            output.paused = true;
        }
        child.rewatch(&self.epoll);
        self.schedule(READER_PAUSE, Due::Pump(slot, stream));
    }

    fn moved(&mut self, slot: u64, stream: Stream, bytes: usize) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let now = Instant::now();
        child.last_byte = now;
        if child.writer.exit().is_none() {
            child.stalled = false;
            child.publish();
        }
        let Some(output) = &mut child.outputs[stream_index(stream)] else { return };
        let collect = output.note(bytes, now);
        if output.wants_larger_pipe() && self.pump.hot_pipes < HOT_PIPES_MAX {
            output.hot = true;
            if pipe::set_capacity(output.pipe(), HOT_PIPE_BYTES).is_ok() {
                self.pump.hot_pipes += 1;
                self.schedule_cooling();
            }
        } else if collect {
            output.paused = true;
            self.schedule(COLLECT, Due::Pump(slot, stream));
        }
        if let Some(child) = self.children.get_mut(&slot) {
            child.rewatch(&self.epoll);
        }
        self.pump.unchecked_bytes += bytes as u64;
        if self.pump.unchecked_bytes >= HOST_CHECK_BYTES {
            self.pump.unchecked_bytes = 0;
            self.enforce_host_cap();
        }
    }

    /// Retries later. No output is lost: it stays in the pipe, and the child waits when that is full.
    pub(crate) fn stall(&mut self, slot: u64, stream: Stream, error: &outpost_journal::Error) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if !std::mem::replace(&mut child.stalled, true) {
            tracing::error!(process = %child.process.slot(), %error, "cannot record output; the process waits until its pipe has room");
            child.show_stall(error);
        }
        if let Some(output) = &mut child.outputs[stream_index(stream)] {
            (output.paused, output.awaits_chore) = (true, false);
        }
        child.rewatch(&self.epoll);
        self.schedule(RETRY, Due::Pump(slot, stream));
    }

    fn stream_ended(&mut self, slot: u64, stream: Stream) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.outputs[stream_index(stream)].as_ref().is_some_and(|output| output.hot) {
            self.pump.hot_pipes = self.pump.hot_pipes.saturating_sub(1);
        }
        for role in child.end_stream(&self.epoll, stream) {
            self.shared.link.send(Request::Release { slot, role }, Vec::new());
        }
        self.schedule(EOF_PUBLISHED_AFTER, Due::Publish(slot));
        self.drain(slot);
    }

    /// Gives pipes their normal size again that were quiet for a while.
    pub(crate) fn cool_pipes(&mut self, now: Instant) {
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
        self.pump.hot_pipes = hot;
        self.pump.cooling = false;
        if hot > 0 {
            self.schedule_cooling();
        }
    }

    fn schedule_cooling(&mut self) {
        if !std::mem::replace(&mut self.pump.cooling, true) {
            self.schedule(COOL_AFTER, Due::CoolPipes);
        }
    }
}
