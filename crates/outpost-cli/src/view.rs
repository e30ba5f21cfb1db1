//! Attached view of a process: copies its output to ours and our input to it, across restarts of the daemon.

mod detach;
mod input;
mod modes;
mod output;
mod raw_terminal;
mod replay;
mod signals;
mod unconfirmed;

pub(super) use detach::DetachKeys;

use super::reconnect::{HOST_CONNECTION_LOST, RECONNECT_TIMEOUT, retry_interval};
use crate::paths::Paths;
use input::{Input, InputEvent};
use outpost_control::client::AsyncClient;
use outpost_control::wire::{self, Attached, ExitStatus, Failure, InputClaim, Message, TerminalSize};
use outpost_sys::signal::Signal;
use outpost_wire::base64;
use output::{Chunk, Output};
use raw_terminal::RawTerminal;
use replay::Replay;
use signals::{SignalEvent, Signals};
use std::io::IsTerminal;
use std::sync::Arc;
use tokio::time::Instant;
use unconfirmed::{Completed, Unconfirmed};

/// Output that a late attach reads to redraw a terminal, and to repeat the end of piped output.
const SCREEN_REPLAY_BYTES: u64 = 1024 * 1024;
const TAIL_BYTES: u64 = 16 * 1024;

/// The first output to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartAt {
    /// After this sequence number, without the next `skip` bytes.
    After { seq: u64, skip: usize },
    /// The most recent output.
    Recent,
}

/// What a signal to this client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSignal {
    /// Ends the client; the process stays.
    Detach,
    /// Is forwarded to the process, with `group` to its group. SIGHUP still ends the client only.
    Forward { group: bool },
}

/// Whether our standard input goes to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputSource {
    None,
    Stdin { claim: InputClaim, on_eof: OnEof },
}

/// What EOF on our standard input does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnEof {
    CloseStdin,
    Ignore,
}

pub(super) struct ProcessView<'a> {
    pub(super) paths: &'a Paths,
    /// Slot number, id or address.
    pub(super) process: String,
    pub(super) start: StartAt,
    pub(super) input: InputSource,
    /// Present if the process and this client both have a terminal: every key goes to the process.
    pub(super) detach_keys: Option<DetachKeys>,
    pub(super) on_signal: OnSignal,
    /// The process ends with this client.
    pub(super) owns: bool,
    /// Stop at the end of the present output.
    pub(super) stop_at_end: bool,
}

/// Why a view ended.
#[derive(Debug)]
pub(super) enum ViewEnd {
    Exited(ExitStatus),
    /// The present output was shown, with `stop_at_end`.
    CaughtUp,
    Detached,
    /// Our output failed, usually with EPIPE.
    OutputClosed,
    Signalled(Signal),
}

/// Whether this client has a terminal for input and output.
pub(super) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

impl ProcessView<'_> {
    pub(super) fn run(self) -> Result<ViewEnd, String> {
        super::block_on(async move {
            let mut session = AttachSession::start(self)?;
            let ended = session.run().await;
            let AttachSession { output, mut signals, terminal, .. } = session;
            tokio::select! {
                () = output.finish() => {}
                // A signal ends the wait for a blocked output.
                SignalEvent::Signal(signal) = signals.next() => {
                    restore_terminal(terminal.as_ref());
                    return Ok(ViewEnd::Signalled(signal));
                }
            }
            restore_terminal(terminal.as_ref());
            ended
        })
    }
}

fn restore_terminal(terminal: Option<&Arc<RawTerminal>>) {
    if let Some(terminal) = terminal {
        terminal.restore();
    }
}

/// The state of a running view.
struct AttachSession<'a> {
    view: ProcessView<'a>,
    terminal: Option<Arc<RawTerminal>>,
    output: Output,
    /// The next chunk for the output thread, which has no room yet.
    pending_chunk: Option<Chunk>,
    input: Input,
    signals: Signals,
    /// Sequence number of the last frame shown.
    last_seq: u64,
    /// Bytes to skip in the next frame.
    skip: usize,
    /// Skip the rest of the first line, if output before it is missing.
    skip_line: bool,
    /// Stdin offset of the next byte; unknown before the first attach.
    offset: Option<u64>,
    unconfirmed: Unconfirmed,
    replay: Option<Replay>,
    /// The first frames of the process are missing, so a replayed screen may be incomplete.
    truncated: bool,
    stop_seq: Option<u64>,
    exit: Option<ExitStatus>,
    /// Detach once the pending input is accepted.
    detaching: bool,
    /// Messages for the user that wait until a replay is drawn.
    notices: String,
}

impl<'a> AttachSession<'a> {
    fn start(view: ProcessView<'a>) -> Result<AttachSession<'a>, String> {
        let fail = |error: std::io::Error| format!("cannot use the terminal: {error}");
        // Before raw mode, so that no signal ends the client with the terminal in raw mode.
        let signals = Signals::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
        let terminal = view.detach_keys.as_ref().map(|_| RawTerminal::enter()).transpose().map_err(fail)?;
        let output = Output::start(terminal.clone()).map_err(fail)?;
        let input = match (&terminal, &view.detach_keys, view.input) {
            (Some(terminal), Some(keys), _) => Input::keys(terminal, keys.clone()),
            (_, _, InputSource::Stdin { .. }) => Input::standard(),
            (_, _, InputSource::None) => Ok(Input::None),
        };
        let (last_seq, skip) = match view.start {
            StartAt::After { seq, skip } => (seq, skip),
            StartAt::Recent => (0, 0),
        };
        let mut input = input.map_err(fail)?;
        if view.input == InputSource::None {
            input.make_read_only();
        }
        Ok(AttachSession {
            view,
            terminal,
            output,
            pending_chunk: None,
            input,
            signals,
            last_seq,
            skip,
            skip_line: false,
            offset: None,
            unconfirmed: Unconfirmed::default(),
            replay: None,
            truncated: false,
            stop_seq: None,
            exit: None,
            detaching: false,
            notices: String::new(),
        })
    }

    /// Attaches and reconnects until the view ends.
    async fn run(&mut self) -> Result<ViewEnd, String> {
        loop {
            let mut client = match self.attach().await? {
                Ok(client) => client,
                Err(ended) => return Ok(ended),
            };
            if let Some(ended) = self.run_connection(&mut client).await? {
                return Ok(ended);
            }
        }
    }

    /// Shows a message. With a raw terminal it is queued between the output of the process.
    fn notify(&mut self, text: &str) {
        let text = crate::console::line(text);
        match self.terminal {
            Some(_) => self.notices += &format!("\r\noutpost: {text}\r\n"),
            None => errln!("outpost: {text}"),
        }
    }

    /// Connects and attaches, with retries. The inner error is a reason to end the view.
    async fn attach(&mut self) -> Result<Result<AsyncClient, ViewEnd>, String> {
        let mut deadline = Instant::now() + RECONNECT_TIMEOUT;
        let first = self.offset.is_none();
        let params = wire::Attach {
            process: self.view.process.clone(),
            after: self.last_seq,
            tail_bytes: (first && self.view.start == StartAt::Recent).then_some(match self.terminal {
                Some(_) => SCREEN_REPLAY_BYTES,
                None => TAIL_BYTES,
            }),
            write: match self.view.input {
                InputSource::None => None,
                InputSource::Stdin { claim, .. } => Some(claim),
            },
            owns: self.view.owns,
        };
        let socket = self.view.paths.control_socket();
        loop {
            let attempt = tokio::select! {
                attempt = request_attach(&socket, &params) => attempt,
                event = self.signals.next() => match event {
                    SignalEvent::Signal(signal) => return Ok(Err(ViewEnd::Signalled(signal))),
                    SignalEvent::Resized => continue,
                },
            };
            match attempt {
                Ok((client, Ok(attached))) => {
                    self.on_attached(attached);
                    return Ok(Ok(client));
                }
                Ok((_, Err(failure))) => return Err(failure.message),
                Err(_) if Instant::now() >= deadline && self.view.paths.is_reconnecting() => {
                    self.notify(HOST_CONNECTION_LOST);
                    deadline = Instant::now() + RECONNECT_TIMEOUT;
                }
                Err(error) if Instant::now() >= deadline => {
                    let socket = socket.display();
                    return Err(format!(
                        "lost the daemon at {socket}: {error}\nhint: the process may still run; see `outpost ps` once the daemon is back"
                    ));
                }
                Err(_) => tokio::time::sleep(retry_interval(self.view.paths)).await,
            }
        }
    }

    fn on_attached(&mut self, attached: Attached) {
        let first = self.offset.is_none();
        self.offset.get_or_insert(attached.stdin_accepted);
        self.view.process = attached.process;
        self.unconfirmed.connection_lost();
        if let Some(because) = attached.read_only_because {
            self.notify(&format!("read-only: {because}"));
            self.make_read_only();
        } else if let InputSource::Stdin { claim, .. } = &mut self.view.input {
            // On a reconnect, this client reclaims the input that it already holds.
            *claim = InputClaim::Steal;
        }
        self.resize();
        if !first {
            return;
        }
        self.stop_seq = self.view.stop_at_end.then_some(attached.last_seq);
        if self.view.start == StartAt::Recent {
            if !attached.running {
                self.notify("the process has ended; showing the end of its output");
            }
            match self.terminal.as_ref().map(|terminal| terminal.size()) {
                Some(own) if attached.last_seq > 0 => {
                    let size = attached.size.or(own).unwrap_or(TerminalSize { rows: 24, cols: 80 });
                    self.replay = Some(Replay::new(attached.last_seq, size));
                }
                _ => self.skip_line = true,
            }
        }
    }

    /// Requests our terminal's size for the process, if this client holds the input.
    fn resize(&mut self) {
        if self.view.input != InputSource::None
            && let Some(size) = self.terminal.as_ref().and_then(|terminal| terminal.size())
        {
            self.unconfirmed.resize(size);
        }
    }

    /// Makes the process redraw its screen by a change of the terminal size.
    fn redraw(&mut self) {
        self.resize();
        self.unconfirmed.force_resize();
    }

    fn make_read_only(&mut self) {
        self.view.input = InputSource::None;
        self.input.make_read_only();
        self.unconfirmed.discard_input();
    }

    /// Serves one connection. `None` when the connection is lost.
    async fn run_connection(&mut self, client: &mut AsyncClient) -> Result<Option<ViewEnd>, String> {
        loop {
            if self.pending_chunk.is_none() && self.replay.is_none() && !self.notices.is_empty() {
                let bytes = std::mem::take(&mut self.notices).into_bytes();
                self.pending_chunk = Some(Chunk { to_stderr: false, bytes });
            }
            if self.pending_chunk.is_none() {
                if let Some(exit) = self.exit {
                    return Ok(Some(ViewEnd::Exited(exit)));
                }
                if self.stop_seq.is_some_and(|stop_seq| self.last_seq >= stop_seq) {
                    return Ok(Some(ViewEnd::CaughtUp));
                }
            }
            if self.detaching && self.unconfirmed.chunk.is_none() {
                return Ok(Some(ViewEnd::Detached));
            }
            if self.unconfirmed.send(client, &self.view.process, self.offset).await.is_err() {
                return Ok(None);
            }
            let takes_input =
                self.unconfirmed.chunk.is_none() && !self.unconfirmed.close_stdin && !self.detaching;
            tokio::select! {
                room = self.output.chunks.clone().reserve_owned(), if self.pending_chunk.is_some() => match room {
                    Ok(room) => {
                        if let Some(piece) = self.pending_chunk.take() {
                            room.send(piece);
                        }
                    }
                    Err(_) => return Ok(Some(ViewEnd::OutputClosed)),
                },
                () = self.output.chunks.closed() => return Ok(Some(ViewEnd::OutputClosed)),
                message = client.receive(), if self.pending_chunk.is_none() => match message {
                    Ok(message) => self.on_message(message),
                    Err(_) => return Ok(None),
                },
                event = self.input.next(), if takes_input => {
                    if let Some(ended) = self.on_input(event) {
                        return Ok(Some(ended));
                    }
                }
                event = self.signals.next() => {
                    if let Some(ended) = self.on_signal(event) {
                        return Ok(Some(ended));
                    }
                }
            }
        }
    }

    fn on_input(&mut self, event: InputEvent) -> Option<ViewEnd> {
        let InputSource::Stdin { on_eof, .. } = self.view.input else {
            return matches!(event, InputEvent::Detach(_) | InputEvent::Hangup).then_some(ViewEnd::Detached);
        };
        match event {
            InputEvent::Bytes(bytes) => {
                self.unconfirmed.chunk = Some(bytes).filter(|bytes| !bytes.is_empty())
            }
            InputEvent::Eof => self.unconfirmed.close_stdin = on_eof == OnEof::CloseStdin,
            InputEvent::Detach(before) => {
                self.unconfirmed.chunk = Some(before).filter(|bytes| !bytes.is_empty());
                self.detaching = true;
            }
            InputEvent::Hangup => return Some(ViewEnd::Signalled(Signal::HUP)),
        }
        None
    }

    fn on_signal(&mut self, event: SignalEvent) -> Option<ViewEnd> {
        let signal = match event {
            SignalEvent::Signal(signal) => signal,
            SignalEvent::Resized => {
                self.resize();
                return None;
            }
        };
        match self.view.on_signal {
            OnSignal::Forward { group } if signal != Signal::HUP => {
                self.unconfirmed.signal(signal, group);
                None
            }
            // SIGHUP: the process survives the terminal on which it was started.
            _ => Some(ViewEnd::Signalled(signal)),
        }
    }

    fn on_message(&mut self, message: Message) {
        if let Some(id) = message.id {
            return self.on_reply(id, message.error);
        }
        if message.writer == Some(false) {
            self.notify("another terminal took over the input; this one is read-only now");
            self.make_read_only();
        }
        if let Some(first) = message.first_seq {
            self.notify(&format!(
                "output before frame {first} was dropped: the journal reached its size limit"
            ));
            self.last_seq = first - 1;
        }
        if message.stalled == Some(true) {
            self.notify("the disk is full; the process is blocked until there is room");
        }
        if let Some(bytes) = message.data.as_deref().and_then(|data| base64::decode(data.as_bytes())) {
            self.truncated |= self.last_seq == 0 && message.seq.is_some_and(|seq| seq > 1);
            self.show(bytes, message.stream.as_deref() == Some("stderr"));
        }
        self.last_seq = message.seq.unwrap_or(self.last_seq);
        self.exit = self.exit.or(message.exit);
        self.end_replay();
    }

    fn show(&mut self, mut bytes: Vec<u8>, to_stderr: bool) {
        if let Some(replay) = &mut self.replay {
            return replay.feed(&bytes);
        }
        if std::mem::take(&mut self.skip_line) && self.truncated {
            let line = bytes.iter().position(|byte| *byte == b'\n');
            self.skip = line.map_or(0, |newline| newline + 1);
        }
        bytes.drain(..std::mem::take(&mut self.skip).min(bytes.len()));
        self.pending_chunk = Some(Chunk { to_stderr, bytes });
    }

    /// Draws the replayed screen once all earlier output was read.
    fn end_replay(&mut self) {
        let done = |replay: &mut Replay| self.last_seq >= replay.until || self.exit.is_some();
        if let Some(replay) = self.replay.take_if(done) {
            self.pending_chunk = Some(Chunk { to_stderr: false, bytes: replay.draw() });
            if self.truncated {
                self.redraw();
            }
        }
    }

    fn on_reply(&mut self, id: u64, failure: Option<Failure>) {
        let Some(completed) = self.unconfirmed.complete(id) else { return };
        if let Completed::Input { bytes } = completed {
            self.offset = self.offset.map(|offset| offset + bytes);
        }
        match failure {
            Some(failure) if matches!(completed, Completed::Input { .. } | Completed::Close) => {
                // The exit of the process and a stolen input arrive as messages of their own.
                if !matches!(failure.kind.as_str(), "notRunning" | "notWriter") {
                    self.notify(&format!("the process accepts no more input: {}", failure.message));
                }
                self.make_read_only();
            }
            _ => {}
        }
    }
}

/// Connects and sends `attach`. The outer error is a failed connection.
async fn request_attach(
    socket: &std::path::Path,
    params: &wire::Attach,
) -> std::io::Result<(AsyncClient, Result<Attached, Failure>)> {
    let mut client = AsyncClient::connect(socket).await?;
    let id = client.send("attach", params).await?;
    loop {
        let message = client.receive().await?;
        if message.id == Some(id) {
            let answer = match message.error {
                Some(failure) => Err(failure),
                None => Ok(serde_json::from_value(message.result.unwrap_or_default())?),
            };
            return Ok((client, answer));
        }
    }
}
