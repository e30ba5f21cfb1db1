//! The stream of server-sent events that a client reads: the logs of turns from its cursor on, live events, then
//! `[DONE]`.

use super::flush::FlushCounter;
use crate::event::{self, Event, EventPosition, Kind};
use crate::session::{Session, Stage};
use crate::shutdown::{self, Phase};
use crate::store::delivered_count::DeliveredCount;
use crate::store::turn_log::Reader;
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// "pings every 30 s".
const PING_EVERY: Duration = Duration::from_secs(30);

/// Maximum number of bytes per frame, which bounds the memory of a slow client.
const FRAME_BYTES_MAX: u64 = 256 * 1024;

/// The terminal event of a stream that the shutdown ends before its turn.
const STOPPING: &str = "The daemon is stopping and the turn is not over. Its events are kept: reconnect when the daemon runs again";

const DONE: &[u8] = b"data: [DONE]\n\n";

/// The body of a streamed response.
pub(crate) struct EventStream {
    frames: mpsc::Receiver<Bytes>,
    flushes: FlushCounter,
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.frames.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(frame)) => {
                self.flushes.on_frame();
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
        }
    }
}

/// Where a client starts to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamStart {
    pub(crate) turn: u64,
    /// Events of that turn that the client has already.
    pub(crate) skip: u64,
    /// Also read turns whose sender has a stream of its own.
    pub(crate) all_turns: bool,
}

impl EventStream {
    /// Streams all events from `start` on, until the session has no open turn.
    pub(crate) fn follow(
        session: Arc<Session>,
        start: StreamStart,
        notice: Option<Event<'static>>,
        flushes: &FlushCounter,
        phase: watch::Receiver<Phase>,
    ) -> EventStream {
        let (sender, frames) = mpsc::channel(1);
        session.stream_opened(start.turn);
        let feed = Feed {
            session,
            turn: start.turn,
            frames: sender,
            flushes: flushes.clone(),
            ping_every: PING_EVERY,
            phase,
        };
        tokio::spawn(feed.run(start, notice));
        EventStream { frames, flushes: flushes.clone() }
    }

    /// Streams only these events, which are not in the log.
    pub(crate) fn of(events: &[(Event<'_>, Option<EventPosition>)], flushes: &FlushCounter) -> EventStream {
        let mut bytes = Vec::new();
        for (event, position) in events {
            event::append(&mut bytes, event, *position);
        }
        bytes.extend_from_slice(DONE);
        let (sender, frames) = mpsc::channel(1);
        let sent = sender.try_send(Bytes::from(bytes));
        debug_assert!(sent.is_ok(), "the channel holds one frame");
        EventStream { frames, flushes: flushes.clone() }
    }
}

/// The task that fills a stream.
struct Feed {
    session: Arc<Session>,
    /// The first turn of the stream.
    turn: u64,
    frames: mpsc::Sender<Bytes>,
    flushes: FlushCounter,
    ping_every: Duration,
    phase: watch::Receiver<Phase>,
}

/// The read position of a stream in the event logs.
struct Cursor {
    turn: u64,
    at: u64,
    /// Complete events before `at`.
    events: u64,
    /// Line feeds since the last complete event.
    line_feeds: u64,
    reader: Option<(Reader, DeliveredCount)>,
}

/// The next action of a stream.
enum Step {
    Read {
        until: u64,
    },
    /// The turn is finished and read.
    Next {
        failure: Option<String>,
    },
    Wait,
    Done,
}

impl Feed {
    async fn run(self, start: StreamStart, notice: Option<Event<'static>>) {
        let is_done = self.feed(start, notice).await.is_some();
        self.session.stream_closed(self.turn, is_done);
    }

    /// Returns `None` if the client disconnected.
    async fn feed(&self, start: StreamStart, notice: Option<Event<'static>>) -> Option<()> {
        let (mut changes, mut phase) = (self.session.changes(), self.phase.clone());
        let mut ping = tokio::time::interval(self.ping_every);
        let mut cursor = Cursor { turn: start.turn, at: 0, events: start.skip, line_feeds: 0, reader: None };
        let mut is_positioned = start.skip == 0;
        ping.tick().await;
        self.emit(&Event::new(Kind::Ping), None).await?;
        if let Some(notice) = notice {
            self.emit(&notice, None).await?;
        }
        loop {
            changes.borrow_and_update();
            match self.step(&cursor, start) {
                Step::Read { until } => {
                    if !is_positioned {
                        is_positioned = true;
                        let (reader, _) = self.reader(&mut cursor)?;
                        cursor.at = reader.bytes_of(start.skip, until).await.ok()?;
                        continue;
                    }
                    self.send_frame(&mut cursor, until).await?;
                }
                Step::Next { failure } => {
                    if let Some(failure) = failure {
                        self.emit(
                            &Event::error(failure),
                            Some(EventPosition { turn: cursor.turn, seq: None }),
                        )
                        .await?;
                    }
                    cursor = Cursor { turn: cursor.turn + 1, at: 0, events: 0, line_feeds: 0, reader: None };
                    is_positioned = true;
                }
                Step::Done => return self.send(Bytes::from_static(DONE)).await,
                Step::Wait if *phase.borrow() == Phase::Closing => {
                    return self.end_early(&cursor, start).await;
                }
                Step::Wait => tokio::select! {
                    changed = changes.changed() => changed.ok()?,
                    _ = ping.tick() => self.emit(&Event::new(Kind::Ping), None).await?,
                    () = self.frames.closed() => return None,
                    () = shutdown::closing(&mut phase) => {}
                },
            }
        }
    }

    /// Ends the stream because the face closes. A queued turn behind the first one of this stream has not failed, so it
    /// gets no error.
    async fn end_early(&self, cursor: &Cursor, start: StreamStart) -> Option<()> {
        let is_running =
            self.session.state().turn(cursor.turn).is_some_and(|turn| turn.stage == Stage::Running);
        if is_running || cursor.turn == start.turn {
            self.emit(&Event::error(STOPPING), Some(EventPosition { turn: cursor.turn, seq: None })).await?;
        }
        self.send(Bytes::from_static(DONE)).await
    }

    fn step(&self, cursor: &Cursor, start: StreamStart) -> Step {
        let state = self.session.state();
        let Some(turn) = state.turn(cursor.turn) else {
            // The turn was deleted, or does not exist yet.
            return match state.turns.back().is_some_and(|newest| newest.number > cursor.turn) {
                true => Step::Next { failure: None },
                false => Step::Done,
            };
        };
        if turn.has_own_stream && !start.all_turns && turn.number != start.turn {
            return Step::Done;
        }
        if cursor.at < turn.bytes {
            return Step::Read { until: turn.bytes };
        }
        if turn.stage != Stage::Finished {
            return Step::Wait;
        }
        Step::Next { failure: turn.failure.clone() }
    }

    fn reader<'a>(&self, cursor: &'a mut Cursor) -> Option<&'a (Reader, DeliveredCount)> {
        if cursor.reader.is_none() {
            let reader = Reader::open(&self.session.dir, cursor.turn).ok()?;
            cursor.reader = Some((reader, DeliveredCount::open(&self.session.dir, cursor.turn)));
        }
        cursor.reader.as_ref()
    }

    async fn send_frame(&self, cursor: &mut Cursor, until: u64) -> Option<()> {
        let range = cursor.at..until.min(cursor.at + FRAME_BYTES_MAX);
        let (reader, _) = self.reader(cursor)?;
        let frame = reader.read(range).await.ok().filter(|frame| !frame.is_empty())?;
        // Each event ends with two line feeds and contains none.
        let line_feeds = cursor.line_feeds + memchr::memchr_iter(b'\n', &frame).count() as u64;
        cursor.at += frame.len() as u64;
        cursor.events += line_feeds / 2;
        cursor.line_feeds = line_feeds % 2;
        self.send(Bytes::from(frame)).await?;
        if let Some((_, delivered)) = &cursor.reader {
            let mut state = self.session.state();
            if let Some(turn) = state.turn_mut(cursor.turn)
                && turn.delivered.is_none_or(|count| count < cursor.events)
            {
                turn.delivered = Some(cursor.events);
                delivered.write(cursor.events);
            }
        }
        Some(())
    }

    async fn emit(&self, event: &Event<'_>, position: Option<EventPosition>) -> Option<()> {
        let mut bytes = Vec::new();
        event::append(&mut bytes, event, position);
        self.send(Bytes::from(bytes)).await
    }

    /// Returns when the frame was written to the client's socket.
    async fn send(&self, frame: Bytes) -> Option<()> {
        let number = self.flushes.next_frame();
        self.frames.send(frame).await.ok()?;
        tokio::select! {
            () = self.flushes.wait_written(number) => Some(()),
            () = self.frames.closed() => None,
        }
    }
}

/// All events of a session that no client has received, as elements of a JSON array. Marks them as delivered.
pub(crate) async fn unread(session: &Session) -> Vec<u8> {
    let ranges: Vec<(u64, u64, u64, u64)> = {
        let mut state = session.state();
        state.client_gone = false;
        let live = state.streams.iter().min().copied().unwrap_or(u64::MAX);
        let unread = state.turns.iter_mut().filter(|turn| turn.number < live).filter_map(|turn| {
            let count = turn.unread(&session.dir);
            let delivered = turn.events - count;
            turn.delivered = Some(turn.events);
            (count > 0).then_some((turn.number, delivered, turn.events, turn.bytes))
        });
        unread.collect()
    };
    let mut list = Vec::new();
    for (turn, delivered, events, bytes) in ranges {
        let Ok(reader) = Reader::open(&session.dir, turn) else { continue };
        let Ok(from) = reader.bytes_of(delivered, bytes).await else { continue };
        let Ok(read) = reader.read(from..bytes).await else { continue };
        for event in read.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if !list.is_empty() {
                list.push(b',');
            }
            list.extend_from_slice(event.strip_prefix(b"data: ").unwrap_or(event));
        }
        DeliveredCount::open(&session.dir, turn).write(events);
    }
    list
}

/// Where a client continues that has seen all events up to `seq`. The second value is the first event kept, if events
/// in between were deleted.
pub(crate) fn start_after(session: &Session, seq: u64) -> (StreamStart, Option<u64>) {
    let state = session.state();
    let mut begun = state.turns.iter().filter(|turn| turn.first_seq > 0);
    let first_kept = begun.clone().map(|turn| turn.first_seq).next();
    let gap = first_kept.filter(|first| *first > seq + 1);
    let next =
        begun.clone().find(|turn| seq + 1 < turn.first_seq + turn.events || turn.stage != Stage::Finished);
    let start = match next {
        Some(turn) => {
            let skip = (seq + 1).saturating_sub(turn.first_seq).min(turn.events);
            StreamStart { turn: turn.number, skip, all_turns: true }
        }
        // The client has seen everything, or no turn has begun.
        None => StreamStart {
            turn: begun.next_back().map_or(1, |turn| turn.number + 1),
            skip: 0,
            all_turns: true,
        },
    };
    (start, gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{Cli, Mode};
    use crate::session::{Created, State};
    use jiff::Timestamp;

    /// The client reads each frame at once.
    #[tokio::test]
    async fn an_idle_stream_is_pinged_until_its_end() {
        let (now, dir) = (Timestamp::now(), tempfile::tempdir().unwrap());
        let (state, created) = (State::new(Mode::Auto, None, now), Created { at: now, order: 1 });
        let session =
            Session::new("id".into(), "/".into(), Cli::Claude, created, dir.path().into(), None, state);
        let session = Arc::new(session);
        session.accept("hello");
        let (frames, mut read) = mpsc::channel(1);
        let flushes = FlushCounter::default();
        session.stream_opened(1);
        let feed = Feed {
            session: session.clone(),
            turn: 1,
            frames,
            flushes: flushes.clone(),
            ping_every: Duration::from_millis(2),
            phase: watch::Sender::new(Phase::Serving).subscribe(),
        };
        let feeding = tokio::spawn(feed.run(StreamStart { turn: 1, skip: 0, all_turns: false }, None));
        let mut next = async || {
            let frame = read.recv().await.unwrap();
            flushes.on_frame();
            flushes.on_flush();
            String::from_utf8(frame.to_vec()).unwrap()
        };
        for _ in 0..5 {
            assert_eq!(next().await, "data: {\"type\":\"ping\"}\n\n");
        }
        session.state().turn_mut(1).unwrap().stage = Stage::Finished;
        session.changed();
        let mut last = next().await;
        while last.contains("ping") {
            last = next().await;
        }
        assert_eq!(last.as_bytes(), DONE);
        feeding.await.unwrap();
        assert!(session.queue_stats().client_connected, "the stream ended with [DONE]");
    }
}
