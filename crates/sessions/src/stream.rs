//! The stream of server-sent events that a client reads: the records of turns from some event on, then what comes, then
//! `[DONE]`.

use crate::delivery::Note;
use crate::event::{self, Event, Kind, Place};
use crate::session::{Session, Stage};
use crate::shutdown::{self, Phase};
use crate::turn_log::Reader;
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// "pings every 30 s".
const PING_EVERY: Duration = Duration::from_secs(30);

/// Sent at once; what a slow client makes us hold.
const PIECE_BYTES: u64 = 256 * 1024;

/// The terminal event of a stream that ends before its turn does.
const STOPPING: &str = "The daemon is stopping and the turn is not over. Its events are kept: reconnect when the daemon runs again";

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Tells how many pieces of a body have been written to the client's connection. Kept by the connection.
#[derive(Clone, Default)]
pub(crate) struct Flushed {
    inner: Arc<FlushedInner>,
}

#[derive(Default)]
struct FlushedInner {
    /// Pieces handed to the connection, and of them written.
    handed: AtomicU64,
    written: AtomicU64,
    waiting: std::sync::Mutex<Option<Waker>>,
}

impl Flushed {
    /// The connection has nothing left to write.
    pub(crate) fn flushed(&self) {
        let handed = self.inner.handed.load(Ordering::Acquire);
        if self.inner.written.swap(handed, Ordering::AcqRel) != handed {
            let waiting = self.inner.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some(waker) = waiting {
                waker.wake();
            }
        }
    }

    fn hand(&self) {
        self.inner.handed.fetch_add(1, Ordering::AcqRel);
    }

    /// The number that the next piece will have: a connection has one answer at a time.
    fn next(&self) -> u64 {
        self.inner.handed.load(Ordering::Acquire) + 1
    }

    async fn wait_for(&self, piece: u64) {
        std::future::poll_fn(|context| {
            let is_written = || self.inner.written.load(Ordering::Acquire) >= piece;
            if is_written() {
                return Poll::Ready(());
            }
            let mut waiting = self.inner.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *waiting = Some(context.waker().clone());
            if is_written() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// The body of an answer that is streamed.
pub(crate) struct EventStream {
    pieces: mpsc::Receiver<Bytes>,
    flushed: Flushed,
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.pieces.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(piece)) => {
                self.flushed.hand();
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
        }
    }
}

/// From where a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) turn: u64,
    /// Events of that turn which the client has.
    pub(crate) skip: u64,
    /// Turns that others have sent and read are part of it.
    pub(crate) is_all: bool,
}

impl EventStream {
    /// Everything from `start` on, until the session has nothing more to answer.
    pub(crate) fn follow(
        session: Arc<Session>,
        start: Start,
        notice: Option<Event<'static>>,
        flushed: &Flushed,
        phase: watch::Receiver<Phase>,
    ) -> EventStream {
        let (sender, pieces) = mpsc::channel(1);
        session.stream_opened(start.turn);
        let flushing = flushed.clone();
        let feed = Feed {
            session,
            turn: start.turn,
            pieces: sender,
            flushed: flushing,
            ping_every: PING_EVERY,
            phase,
        };
        tokio::spawn(feed.run(start, notice));
        EventStream { pieces, flushed: flushed.clone() }
    }

    /// A few events that are known now, and nothing else.
    pub(crate) fn of(events: &[(Event<'_>, Option<Place>)], flushed: &Flushed) -> EventStream {
        let mut bytes = Vec::new();
        for (event, place) in events {
            event::append(&mut bytes, event, *place);
        }
        bytes.extend_from_slice(DONE);
        let (sender, pieces) = mpsc::channel(1);
        let sent = sender.try_send(Bytes::from(bytes));
        debug_assert!(sent.is_ok(), "there is room for one");
        EventStream { pieces, flushed: flushed.clone() }
    }
}

/// Whoever fills a stream.
struct Feed {
    session: Arc<Session>,
    /// The turn it began with.
    turn: u64,
    pieces: mpsc::Sender<Bytes>,
    flushed: Flushed,
    ping_every: Duration,
    phase: watch::Receiver<Phase>,
}

/// Where in the records a stream is.
struct Cursor {
    turn: u64,
    at: u64,
    /// Whole events before that.
    events: u64,
    /// Line ends since the last whole event.
    ends: u64,
    reader: Option<(Reader, Note)>,
}

/// What there is to do next.
enum Step {
    Read {
        until: u64,
    },
    /// The turn is over and read.
    Next {
        failure: Option<String>,
    },
    Wait,
    Done,
}

impl Feed {
    async fn run(self, start: Start, notice: Option<Event<'static>>) {
        let is_done = self.feed(start, notice).await.is_some();
        self.session.stream_closed(self.turn, is_done);
    }

    /// None when the client has hung up.
    async fn feed(&self, start: Start, notice: Option<Event<'static>>) -> Option<()> {
        let (mut changes, mut phase) = (self.session.changes(), self.phase.clone());
        let mut ping = tokio::time::interval(self.ping_every);
        let mut cursor = Cursor { turn: start.turn, at: 0, events: start.skip, ends: 0, reader: None };
        let mut is_placed = start.skip == 0;
        ping.tick().await;
        self.say(&Event::new(Kind::Ping), None).await?;
        if let Some(notice) = notice {
            self.say(&notice, None).await?;
        }
        loop {
            changes.borrow_and_update();
            match self.step(&cursor, start) {
                Step::Read { until } => {
                    if !is_placed {
                        is_placed = true;
                        let (reader, _) = self.reader(&mut cursor)?;
                        cursor.at = reader.bytes_of(start.skip, until).await.ok()?;
                        continue;
                    }
                    self.send_piece(&mut cursor, until).await?;
                }
                Step::Next { failure } => {
                    if let Some(failure) = failure {
                        self.say(&Event::error(failure), Some(Place { turn: cursor.turn, seq: None }))
                            .await?;
                    }
                    cursor = Cursor { turn: cursor.turn + 1, at: 0, events: 0, ends: 0, reader: None };
                    is_placed = true;
                }
                Step::Done => return self.send(Bytes::from_static(DONE)).await,
                Step::Wait if *phase.borrow() == Phase::Closing => {
                    return self.break_off(&cursor, start).await;
                }
                Step::Wait => tokio::select! {
                    changed = changes.changed() => changed.ok()?,
                    _ = ping.tick() => self.say(&Event::new(Kind::Ping), None).await?,
                    () = self.pieces.closed() => return None,
                    () = shutdown::closes(&mut phase) => {}
                },
            }
        }
    }

    /// The face ends before the turn does. A message that only waits behind the turns of this stream has not failed.
    async fn break_off(&self, cursor: &Cursor, start: Start) -> Option<()> {
        let is_running =
            self.session.state().turn(cursor.turn).is_some_and(|turn| turn.stage == Stage::Running);
        if is_running || cursor.turn == start.turn {
            self.say(&Event::error(STOPPING), Some(Place { turn: cursor.turn, seq: None })).await?;
        }
        self.send(Bytes::from_static(DONE)).await
    }

    fn step(&self, cursor: &Cursor, start: Start) -> Step {
        let state = self.session.state();
        let Some(turn) = state.turn(cursor.turn) else {
            // Turns before it may have been dropped, turns after it may have come.
            return match state.turns.back().is_some_and(|newest| newest.number > cursor.turn) {
                true => Step::Next { failure: None },
                false => Step::Done,
            };
        };
        if turn.is_answered_apart && !start.is_all && turn.number != start.turn {
            return Step::Done;
        }
        if cursor.at < turn.bytes {
            return Step::Read { until: turn.bytes };
        }
        if turn.stage != Stage::Over {
            return Step::Wait;
        }
        Step::Next { failure: turn.failure.clone() }
    }

    fn reader<'a>(&self, cursor: &'a mut Cursor) -> Option<&'a (Reader, Note)> {
        if cursor.reader.is_none() {
            let reader = Reader::open(&self.session.dir, cursor.turn).ok()?;
            cursor.reader = Some((reader, Note::open(&self.session.dir, cursor.turn)));
        }
        cursor.reader.as_ref()
    }

    async fn send_piece(&self, cursor: &mut Cursor, until: u64) -> Option<()> {
        let range = cursor.at..until.min(cursor.at + PIECE_BYTES);
        let (reader, _) = self.reader(cursor)?;
        let piece = reader.read(range).await.ok().filter(|piece| !piece.is_empty())?;
        // An event has two line ends, both behind it.
        let ends = cursor.ends + memchr::memchr_iter(b'\n', &piece).count() as u64;
        cursor.at += piece.len() as u64;
        cursor.events += ends / 2;
        cursor.ends = ends % 2;
        self.send(Bytes::from(piece)).await?;
        if let Some((_, note)) = &cursor.reader {
            let mut state = self.session.state();
            if let Some(turn) = state.turn_mut(cursor.turn)
                && turn.delivered.is_none_or(|delivered| delivered < cursor.events)
            {
                turn.delivered = Some(cursor.events);
                note.write(cursor.events);
            }
        }
        Some(())
    }

    async fn say(&self, event: &Event<'_>, place: Option<Place>) -> Option<()> {
        let mut bytes = Vec::new();
        event::append(&mut bytes, event, place);
        self.send(Bytes::from(bytes)).await
    }

    /// Returns when the client's connection has taken it.
    async fn send(&self, piece: Bytes) -> Option<()> {
        let number = self.flushed.next();
        self.pieces.send(piece).await.ok()?;
        tokio::select! {
            () = self.flushed.wait_for(number) => Some(()),
            () = self.pieces.closed() => None,
        }
    }
}

/// Everything of a session that no client has been handed, as members of a list, and marks it as handed.
pub(crate) async fn unread(session: &Session) -> Vec<u8> {
    let ranges: Vec<(u64, u64, u64, u64)> = {
        let mut state = session.state();
        state.is_deserted = false;
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
        Note::open(&session.dir, turn).write(events);
    }
    list
}

/// Where a client that has seen everything up to `seq` goes on; and from where it can, if what follows was dropped.
pub(crate) fn start_after(session: &Session, seq: u64) -> (Start, Option<u64>) {
    let state = session.state();
    let mut begun = state.turns.iter().filter(|turn| turn.first_seq > 0);
    let first_kept = begun.clone().map(|turn| turn.first_seq).next();
    let gap = first_kept.filter(|first| *first > seq + 1);
    let next = begun.clone().find(|turn| seq + 1 < turn.first_seq + turn.events || turn.stage != Stage::Over);
    let start = match next {
        Some(turn) => {
            let skip = (seq + 1).saturating_sub(turn.first_seq).min(turn.events);
            Start { turn: turn.number, skip, is_all: true }
        }
        // Everything is known, or nothing has begun.
        None => Start { turn: begun.next_back().map_or(1, |turn| turn.number + 1), skip: 0, is_all: true },
    };
    (start, gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{Cli, Mode};
    use crate::session::{Created, State};
    use jiff::Timestamp;

    /// A stream whose client takes everything at once.
    #[tokio::test]
    async fn a_stream_that_nothing_comes_on_is_kept_alive_until_its_end() {
        let (now, dir) = (Timestamp::now(), tempfile::tempdir().unwrap());
        let (state, created) = (State::new(Mode::Auto, None, now), Created { at: now, order: 1 });
        let session =
            Session::new("id".into(), "/".into(), Cli::Claude, created, dir.path().into(), None, state);
        let session = Arc::new(session);
        session.accept("hello");
        let (pieces, mut read) = mpsc::channel(1);
        let flushed = Flushed::default();
        session.stream_opened(1);
        let feed = Feed {
            session: session.clone(),
            turn: 1,
            pieces,
            flushed: flushed.clone(),
            ping_every: Duration::from_millis(2),
            phase: watch::Sender::new(Phase::Serving).subscribe(),
        };
        let feeding = tokio::spawn(feed.run(Start { turn: 1, skip: 0, is_all: false }, None));
        let mut next = async || {
            let piece = read.recv().await.unwrap();
            flushed.hand();
            flushed.flushed();
            String::from_utf8(piece.to_vec()).unwrap()
        };
        for _ in 0..5 {
            assert_eq!(next().await, "data: {\"type\":\"ping\"}\n\n");
        }
        session.state().turn_mut(1).unwrap().stage = Stage::Over;
        session.changed();
        let mut last = next().await;
        while last.contains("ping") {
            last = next().await;
        }
        assert_eq!(last.as_bytes(), DONE);
        feeding.await.unwrap();
        assert!(session.queue_stats().client_connected, "it has ended in order");
    }
}
