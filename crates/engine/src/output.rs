//! Output: from the pipes of children into their journals, with back-pressure.

use crate::child::{COLLECT, LARGE_PIPE_BYTES, PIPE_BYTES, stream_index};
use crate::reactor::{RETRY, Reactor};
use crate::timers::Due;
use outpost_journal::{Pumped, Stream};
use outpost_keeper::Request;
use outpost_sys::file;
use outpost_sys::pipe::{self, Moved};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum number of enlarged pipes. The kernel limits the memory of pipes per user.
const LARGE_PIPES_MAX: usize = 16;
/// An enlarged pipe gets its normal size again after it was quiet for this long.
const SHRINK_AFTER: Duration = Duration::from_secs(1);
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
    large_pipes: usize,
    /// `Due::ShrinkPipes` is scheduled.
    shrink_scheduled: bool,
    /// Output since the host's cap was checked.
    unchecked_bytes: u64,
}

impl OutputPump {
    pub(crate) fn new() -> crate::Result<OutputPump> {
        let dev_null = file::open("/dev/null", file::Open::ReadWrite)
            .map_err(|errno| crate::Error::io("open", "/dev/null", errno))?;
        Ok(OutputPump { dev_null, large_pipes: 0, shrink_scheduled: false, unchecked_bytes: 0 })
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
        if output.wants_larger_pipe() && self.pump.large_pipes < LARGE_PIPES_MAX {
            output.is_enlarged = true;
            if pipe::set_capacity(output.pipe(), LARGE_PIPE_BYTES).is_ok() {
                self.pump.large_pipes += 1;
                self.schedule_shrinking();
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
        if child.outputs[stream_index(stream)].as_ref().is_some_and(|output| output.is_enlarged) {
            self.pump.large_pipes = self.pump.large_pipes.saturating_sub(1);
        }
        for role in child.end_stream(&self.epoll, stream) {
            self.shared.link.send(Request::Release { slot, role }, Vec::new());
        }
        self.schedule(EOF_PUBLISHED_AFTER, Due::Publish(slot));
        self.drain(slot);
    }

    /// Gives pipes their normal size again that were quiet for a while.
    pub(crate) fn shrink_pipes(&mut self, now: Instant) {
        let mut enlarged = 0;
        for output in self
            .children
            .values_mut()
            .flat_map(|child| child.outputs.iter_mut().flatten())
            .filter(|output| output.is_enlarged)
        {
            let quiet = output.quiet_for(now) >= SHRINK_AFTER;
            if quiet && pipe::set_capacity(output.pipe(), PIPE_BYTES).is_ok() {
                output.is_enlarged = false;
            } else {
                enlarged += 1;
            }
        }
        self.pump.large_pipes = enlarged;
        self.pump.shrink_scheduled = false;
        if enlarged > 0 {
            self.schedule_shrinking();
        }
    }

    fn schedule_shrinking(&mut self) {
        if !std::mem::replace(&mut self.pump.shrink_scheduled, true) {
            self.schedule(SHRINK_AFTER, Due::ShrinkPipes);
        }
    }
}
