//! A process here: what it writes on our outputs, what we are given as its input, whatever happens to the daemon meanwhile.

mod detach;
mod input;
mod modes;
mod output;
mod screen;
mod signals;
mod terminal;
mod wishes;

pub(super) use detach::DetachKeys;

use super::patience::{ELSEWHERE_LOST, RECONNECT_PATIENCE, reconnect_pause};
use crate::paths::Paths;
use input::{Given, Input};
use outpost_control::client::Link;
use outpost_control::wire::{self, Attached, ExitStatus, Failure, Message, TerminalSize, Write};
use outpost_sys::signal::Signal;
use outpost_wire::base64;
use output::{Output, Piece};
use screen::Replay;
use signals::{Came, Signals};
use std::io::IsTerminal;
use std::sync::Arc;
use terminal::Taken;
use tokio::time::Instant;
use wishes::{Wish, Wishes};

/// What is drawn again of a terminal, and shown again of pipes, when somebody comes later.
const SCREEN_BYTES: u64 = 1024 * 1024;
const RECENT_BYTES: u64 = 16 * 1024;

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Behind this sequence number, and so many bytes later.
    After { seq: u64, skip: usize },
    /// With what was written lately.
    Recent,
}

/// What becomes of signals that we get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSignal {
    /// We leave; the process stays.
    Leave,
    /// They are for the process, and with `group` for its group; the end of our terminal is not.
    Forward { group: bool },
}

/// What our own input is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Nothing,
    Stdin { write: Write, end: InputEnd },
}

/// What the end of our input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputEnd {
    /// It is the end of the process's input too.
    Closes,
    Nothing,
}

pub(super) struct View<'a> {
    pub(super) paths: &'a Paths,
    /// Its number, or a name for it.
    pub(super) process: String,
    pub(super) begin: Begin,
    pub(super) feed: Feed,
    /// The process has a terminal, and so have we: keys go to it one by one.
    pub(super) keys: Option<DetachKeys>,
    pub(super) on_signal: OnSignal,
    /// The process ends with us.
    pub(super) owns: bool,
    /// Only what is there now.
    pub(super) until_now: bool,
}

/// How it came to an end.
#[derive(Debug)]
pub(super) enum Ended {
    Exited(ExitStatus),
    /// All that there was has been shown.
    Shown,
    Detached,
    /// Nobody takes what we write.
    OutputGone,
    By(Signal),
}

/// Whether keys can go to a process one by one here.
pub(super) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

impl View<'_> {
    pub(super) fn run(self) -> Result<Ended, String> {
        super::block_on(async move {
            let mut showing = Showing::begin(self)?;
            let ended = showing.work().await;
            let Showing { output, mut signals, taken, .. } = showing;
            tokio::select! {
                () = output.finish() => {}
                // Who cannot wait for a stuck output shall not have to.
                Came::Signal(signal) = signals.next() => {
                    give_back(taken.as_ref());
                    return Ok(Ended::By(signal));
                }
            }
            give_back(taken.as_ref());
            ended
        })
    }
}

fn give_back(taken: Option<&Arc<Taken>>) {
    if let Some(taken) = taken {
        taken.give_back();
    }
}

/// A view that has begun.
struct Showing<'a> {
    view: View<'a>,
    taken: Option<Arc<Taken>>,
    output: Output,
    /// A piece that there was no room for yet.
    waiting: Option<Piece>,
    input: Input,
    signals: Signals,
    /// The last sequence number that was shown.
    last: u64,
    /// Bytes of the next frame that are not shown, or all up to the next line.
    skip: usize,
    skip_line: bool,
    /// Where the next byte of input goes; not known before the first answer.
    offset: Option<u64>,
    wishes: Wishes,
    replay: Option<Replay>,
    /// It began later than the process did: what is drawn may lack something.
    cut: bool,
    until: Option<u64>,
    exit: Option<ExitStatus>,
    /// We go as soon as what was typed before that has been taken.
    leaving: bool,
    notes: String,
}

impl<'a> Showing<'a> {
    fn begin(view: View<'a>) -> Result<Showing<'a>, String> {
        let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
        // First of all, so that none of them finds the terminal in our hands.
        let signals = Signals::new().map_err(|error| format!("cannot wait for signals: {error}"))?;
        let taken = view.keys.as_ref().map(|_| Taken::take()).transpose().map_err(fail)?;
        let output = Output::begin(taken.clone()).map_err(fail)?;
        let input = match (&taken, &view.keys, view.feed) {
            (Some(taken), Some(keys), _) => Input::keys(taken, keys.clone()),
            (_, _, Feed::Stdin { .. }) => Input::standard(),
            (_, _, Feed::Nothing) => Ok(Input::Nothing),
        };
        let (last, skip) = match view.begin {
            Begin::After { seq, skip } => (seq, skip),
            Begin::Recent => (0, 0),
        };
        let mut input = input.map_err(fail)?;
        if view.feed == Feed::Nothing {
            input.make_read_only();
        }
        Ok(Showing {
            view,
            taken,
            output,
            waiting: None,
            input,
            signals,
            last,
            skip,
            skip_line: false,
            offset: None,
            wishes: Wishes::default(),
            replay: None,
            cut: false,
            until: None,
            exit: None,
            leaving: false,
            notes: String::new(),
        })
    }

    /// Shows the process over as many connections as it takes.
    async fn work(&mut self) -> Result<Ended, String> {
        loop {
            let mut link = match self.attach().await? {
                Ok(link) => link,
                Err(ended) => return Ok(ended),
            };
            if let Some(ended) = self.converse(&mut link).await? {
                return Ok(ended);
            }
        }
    }

    /// For humans. On a terminal that is in other hands it stands among what those write.
    fn tell(&mut self, text: &str) {
        match self.taken {
            Some(_) => self.notes += &format!("\r\noutpost: {}\r\n", crate::console::line(text)),
            None => crate::console::complain(text),
        }
    }

    /// Finds a daemon and attaches. The inner error is an end that came in between.
    async fn attach(&mut self) -> Result<Result<Link, Ended>, String> {
        let mut deadline = Instant::now() + RECONNECT_PATIENCE;
        let first = self.offset.is_none();
        let params = wire::Attach {
            process: self.view.process.clone(),
            after: self.last,
            tail_bytes: (first && self.view.begin == Begin::Recent).then_some(match self.taken {
                Some(_) => SCREEN_BYTES,
                None => RECENT_BYTES,
            }),
            write: match self.view.feed {
                Feed::Nothing => None,
                Feed::Stdin { write, .. } => Some(write),
            },
            owns: self.view.owns,
        };
        let socket = self.view.paths.control_socket();
        loop {
            let attempt = tokio::select! {
                attempt = ask_to_attach(&socket, &params) => attempt,
                came = self.signals.next() => match came {
                    Came::Signal(signal) => return Ok(Err(Ended::By(signal))),
                    Came::Resized => continue,
                },
            };
            match attempt {
                Ok((link, Ok(attached))) => {
                    self.attached(attached);
                    return Ok(Ok(link));
                }
                Ok((_, Err(failure))) => return Err(failure.message),
                Err(_) if Instant::now() >= deadline && self.view.paths.is_away() => {
                    self.tell(ELSEWHERE_LOST);
                    deadline = Instant::now() + RECONNECT_PATIENCE;
                }
                Err(error) if Instant::now() >= deadline => {
                    let socket = socket.display();
                    return Err(format!(
                        "no daemon answers on {socket} ({error}); the process may well go on"
                    ));
                }
                Err(_) => tokio::time::sleep(reconnect_pause(self.view.paths)).await,
            }
        }
    }

    fn attached(&mut self, attached: Attached) {
        let first = self.offset.is_none();
        self.offset.get_or_insert(attached.stdin_accepted);
        self.view.process = attached.process;
        self.wishes.lost();
        if let Some(because) = attached.read_only_because {
            self.tell(&format!("read-only: {because}"));
            self.read_only();
        } else if let Feed::Stdin { write, .. } = &mut self.view.feed {
            // What is ours stays ours, also with another worker.
            *write = Write::Steal;
        }
        self.resize();
        if !first {
            return;
        }
        self.until = self.view.until_now.then_some(attached.last_seq);
        if self.view.begin == Begin::Recent {
            if !attached.running {
                self.tell("the process has ended; this is the last that it wrote");
            }
            match self.taken.as_ref().map(|taken| taken.size()) {
                Some(own) if attached.last_seq > 0 => {
                    let size = attached.size.or(own).unwrap_or(TerminalSize { rows: 24, cols: 80 });
                    self.replay = Some(Replay::new(attached.last_seq, size));
                }
                _ => self.skip_line = true,
            }
        }
    }

    /// The terminal of the process is to be as large as ours, if we have its input.
    fn resize(&mut self) {
        if self.view.feed != Feed::Nothing
            && let Some(size) = self.taken.as_ref().and_then(|taken| taken.size())
        {
            self.wishes.size(size);
        }
    }

    /// Has the process draw everything anew: it does when its terminal changes its size.
    fn redraw(&mut self) {
        self.resize();
        self.wishes.another_size_before();
    }

    fn read_only(&mut self) {
        self.view.feed = Feed::Nothing;
        self.input.make_read_only();
        self.wishes.no_input();
    }

    /// Until the connection is lost, or it is over.
    async fn converse(&mut self, link: &mut Link) -> Result<Option<Ended>, String> {
        loop {
            if self.waiting.is_none() && self.replay.is_none() && !self.notes.is_empty() {
                let bytes = std::mem::take(&mut self.notes).into_bytes();
                self.waiting = Some(Piece { to_stderr: false, bytes });
            }
            if self.waiting.is_none() {
                if let Some(exit) = self.exit {
                    return Ok(Some(Ended::Exited(exit)));
                }
                if self.until.is_some_and(|until| self.last >= until) {
                    return Ok(Some(Ended::Shown));
                }
            }
            if self.leaving && self.wishes.piece.is_none() {
                return Ok(Some(Ended::Detached));
            }
            if self.wishes.ask(link, &self.view.process, self.offset).await.is_err() {
                return Ok(None);
            }
            let takes_input = self.wishes.piece.is_none() && !self.wishes.close && !self.leaving;
            tokio::select! {
                room = self.output.pieces.clone().reserve_owned(), if self.waiting.is_some() => match room {
                    Ok(room) => {
                        if let Some(piece) = self.waiting.take() {
                            room.send(piece);
                        }
                    }
                    Err(_) => return Ok(Some(Ended::OutputGone)),
                },
                () = self.output.pieces.closed() => return Ok(Some(Ended::OutputGone)),
                message = link.receive(), if self.waiting.is_none() => match message {
                    Ok(message) => self.hear(message),
                    Err(_) => return Ok(None),
                },
                given = self.input.next(), if takes_input => {
                    if let Some(ended) = self.given(given) {
                        return Ok(Some(ended));
                    }
                }
                came = self.signals.next() => {
                    if let Some(ended) = self.signalled(came) {
                        return Ok(Some(ended));
                    }
                }
            }
        }
    }

    fn given(&mut self, given: Given) -> Option<Ended> {
        let Feed::Stdin { end, .. } = self.view.feed else {
            return matches!(given, Given::Detach(_) | Given::Gone).then_some(Ended::Detached);
        };
        match given {
            Given::Bytes(bytes) => self.wishes.piece = Some(bytes).filter(|bytes| !bytes.is_empty()),
            Given::End => self.wishes.close = end == InputEnd::Closes,
            Given::Detach(before) => {
                self.wishes.piece = Some(before).filter(|bytes| !bytes.is_empty());
                self.leaving = true;
            }
            Given::Gone => return Some(Ended::By(Signal::HUP)),
        }
        None
    }

    fn signalled(&mut self, came: Came) -> Option<Ended> {
        let signal = match came {
            Came::Signal(signal) => signal,
            Came::Resized => {
                self.resize();
                return None;
            }
        };
        match self.view.on_signal {
            OnSignal::Forward { group } if signal != Signal::HUP => {
                self.wishes.signal(signal, group);
                None
            }
            // The process survives the terminal that it was started on.
            _ => Some(Ended::By(signal)),
        }
    }

    fn hear(&mut self, message: Message) {
        if let Some(id) = message.id {
            return self.answered(id, message.error);
        }
        if message.writer == Some(false) {
            self.tell("another terminal has taken the input over; this one only watches now");
            self.read_only();
        }
        if let Some(first) = message.first_seq {
            self.tell(&format!("output before number {first} was dropped to keep within the limit"));
            self.last = first - 1;
        }
        if message.stalled == Some(true) {
            self.tell("the disk is full; the process waits until there is room");
        }
        if let Some(bytes) = message.data.as_deref().and_then(|data| base64::decode(data.as_bytes())) {
            self.cut |= self.last == 0 && message.seq.is_some_and(|seq| seq > 1);
            self.show(bytes, message.stream.as_deref() == Some("stderr"));
        }
        self.last = message.seq.unwrap_or(self.last);
        self.exit = self.exit.or(message.exit);
        self.end_replay();
    }

    fn show(&mut self, mut bytes: Vec<u8>, to_stderr: bool) {
        if let Some(replay) = &mut self.replay {
            return replay.take(&bytes);
        }
        if std::mem::take(&mut self.skip_line) && self.cut {
            let line = bytes.iter().position(|byte| *byte == b'\n');
            self.skip = line.map_or(0, |newline| newline + 1);
        }
        bytes.drain(..std::mem::take(&mut self.skip).min(bytes.len()));
        self.waiting = Some(Piece { to_stderr, bytes });
    }

    /// All that was drawn before we came is known: it is seen now.
    fn end_replay(&mut self) {
        let done = |replay: &mut Replay| self.last >= replay.until || self.exit.is_some();
        if let Some(replay) = self.replay.take_if(done) {
            self.waiting = Some(Piece { to_stderr: false, bytes: replay.draw() });
            if self.cut {
                self.redraw();
            }
        }
    }

    fn answered(&mut self, id: u64, failure: Option<Failure>) {
        let Some(wish) = self.wishes.answered(id) else { return };
        if let Wish::Piece { bytes } = wish {
            self.offset = self.offset.map(|offset| offset + bytes);
        }
        match failure {
            Some(failure) if matches!(wish, Wish::Piece { .. } | Wish::Close) => {
                // Of an end that is on its way, and of somebody who took over, we are told otherwise.
                if !matches!(failure.kind.as_str(), "notRunning" | "notWriter") {
                    self.tell(&format!("input is not taken any more: {}", failure.message));
                }
                self.read_only();
            }
            _ => {}
        }
    }
}

/// The outer error is a lost connection.
async fn ask_to_attach(
    socket: &std::path::Path,
    params: &wire::Attach,
) -> std::io::Result<(Link, Result<Attached, Failure>)> {
    let mut link = Link::connect(socket).await?;
    let id = link.send("attach", params).await?;
    loop {
        let message = link.receive().await?;
        if message.id == Some(id) {
            let answer = match message.error {
                Some(failure) => Err(failure),
                None => Ok(serde_json::from_value(message.result.unwrap_or_default())?),
            };
            return Ok((link, answer));
        }
    }
}
