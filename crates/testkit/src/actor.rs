//! One client of the nemesis: starts processes, reads them with interruptions, feeds them, and checks every byte.

use crate::daemon::{Daemon, TIMEOUT, pause};
use crate::noise::Noise;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{
    Attach, Attached, ExitStatus, Failure, Kill, Killed, Message, ProcessRef, Spawn, Spawned, Stdin,
    StdinApplied, StdinOutcome, TerminalSize,
};
use outpost_wire::base64;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a client waits after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// What an actor checks.
pub(crate) struct Actor<'a> {
    pub(crate) daemon: &'a Daemon,
    pub(crate) producer: &'a Path,
    pub(crate) noise: Noise,
    /// Carried in the environment of everything the run starts, so that leftovers can be found.
    pub(crate) marker: &'a str,
    pub(crate) name: String,
    /// Whether an exit may be unknown: the keeper can be killed, and the kernel does not remember exits.
    pub(crate) exits_can_be_lost: bool,
    /// Whether a start or input may be refused for lack of a resource. It is repeated then.
    pub(crate) refusals_allowed: bool,
    pub(crate) refusals: u64,
}

/// What one process was checked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) processes: u64,
    pub(crate) bytes: u64,
    pub(crate) attaches: u64,
    pub(crate) refusals: u64,
}

/// How the reading of one process stands.
struct Reading {
    last_seq: u64,
    stdout: Noise,
    stderr: Noise,
    stdout_bytes: u64,
    stderr_bytes: u64,
    exit: Option<ExitStatus>,
}

impl Reading {
    fn new(seed: u64) -> Reading {
        Reading {
            last_seq: 0,
            stdout: Noise::new(seed),
            stderr: Noise::new(seed + 1),
            stdout_bytes: 0,
            stderr_bytes: 0,
            exit: None,
        }
    }

    fn take(&mut self, message: &Message) {
        assert_eq!(message.first_seq, None, "nothing may be dropped here");
        let Some(seq) = message.seq else { return };
        assert_eq!(seq, self.last_seq + 1, "numbers without holes and without doubles");
        assert_eq!(self.exit, None, "the exit is last");
        self.last_seq = seq;
        self.exit = message.exit;
        let Some(data) = &message.data else { return };
        let bytes = base64::decode(data.as_bytes()).expect("base64");
        assert!(!bytes.is_empty() && bytes.len() <= 32 * 1024);
        let (noise, count) = match message.stream.as_deref() {
            Some("stdout") => (&mut self.stdout, &mut self.stdout_bytes),
            Some("stderr") => (&mut self.stderr, &mut self.stderr_bytes),
            other => panic!("stream {other:?}"),
        };
        let expected = noise.letters(bytes.len());
        if let Some(at) = bytes.iter().zip(&expected).position(|(got, expected)| got != expected) {
            let near = at..(at + 40).min(bytes.len());
            panic!(
                "frame {seq} of {} ({:?}, {} bytes) differs from byte {} (of the stream: {}): {:?} instead of {:?}",
                message.process.as_deref().unwrap_or_default(),
                message.stream,
                bytes.len(),
                at,
                *count + at as u64,
                String::from_utf8_lossy(&bytes[near.clone()]),
                String::from_utf8_lossy(&expected[near]),
            );
        }
        *count += bytes.len() as u64;
    }
}

impl Actor<'_> {
    /// Runs one process of a random kind from its start to its end.
    pub(crate) fn one_process(&mut self, number: u64) -> Tally {
        let id = format!("{}-{number}", self.name);
        let tally = match self.noise.below(4) {
            0 => self.produce(&id, false),
            1 => self.produce(&id, true),
            2 => self.echo(&id),
            _ => self.kill(&id),
        };
        Tally { refusals: std::mem::take(&mut self.refusals), ..tally }
    }

    /// A tree that is killed: its end is recorded, and the checker finds nothing of it.
    fn kill(&mut self, id: &str) -> Tally {
        let script = "setsid sleep 1000 & sleep 1000 & echo started; exec sleep 1000";
        let process = self.spawn(id, ["/bin/sh", "-c", script].map(String::from).to_vec(), false, false);
        let params = Kill { process, signal: Some("KILL".into()), grace_ms: Some(0) };
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < TIMEOUT, "{id} cannot be killed; log: {}", self.daemon.log());
            match self.daemon.connect().call::<Killed>("kill", &params) {
                Ok(killed) if killed.died => return Tally { processes: 1, ..Tally::default() },
                Ok(_) | Err(CallError::Lost(_)) => {}
                Err(CallError::Refused(failure)) => self.allow(&failure, id),
            }
        }
    }

    /// A refusal for lack of a resource is repeated after a pause. Any other is a violated guarantee.
    fn allow(&mut self, failure: &Failure, id: &str) {
        const EXHAUSTED: [&str; 6] = [
            "No space left on device",
            "Too many open files",
            "Resource temporarily unavailable",
            "Cannot allocate memory",
            "Device or resource busy",
            "too many requests are waiting",
        ];
        let exhausted = EXHAUSTED.iter().any(|reason| failure.message.contains(reason));
        assert!(self.refusals_allowed && exhausted, "{id}: {failure:?}; log: {}", self.daemon.log());
        self.refusals += 1;
        std::thread::park_timeout(REFUSED_PAUSE);
    }

    /// A producer on two pipes, or on a terminal.
    fn produce(&mut self, id: &str, terminal: bool) -> Tally {
        let seed = self.noise.number() >> 1;
        let bytes = if terminal { self.noise.below(100_000) } else { self.noise.below(2_000_000) };
        let stderr_bytes = if terminal { 0 } else { self.noise.below(200_000) };
        let code = self.noise.below(200) as i32;
        let mut command = vec![self.producer.display().to_string()];
        command.extend([seed, bytes, stderr_bytes].map(|number| number.to_string()));
        command.push(code.to_string());
        let process = self.spawn(id, command, terminal, false);
        let mut reading = Reading::new(seed);
        let attaches = self.read(&process, &mut reading, |_, _| u64::MAX);
        assert_eq!(
            (reading.stdout_bytes, reading.stderr_bytes),
            (bytes, stderr_bytes),
            "all bytes of {id}, exit {:?}",
            reading.exit
        );
        self.check_exit(&reading, code);
        Tally { processes: 1, bytes: bytes + stderr_bytes, attaches, ..Tally::default() }
    }

    /// `cat`, fed by offsets while connections come and go: what it writes is what was sent, once.
    fn echo(&mut self, id: &str) -> Tally {
        let seed = self.noise.number() >> 1;
        let total = 1 + self.noise.below(600_000);
        let data = Noise::new(seed).letters(total as usize);
        let process = self.spawn(id, vec!["/bin/cat".into()], false, true);
        let mut reading = Reading::new(seed);
        let attaches =
            self.read(&process, &mut reading, |actor, attached| actor.feed(&process, &data, attached));
        assert_eq!(reading.stdout_bytes, total, "all that was sent to {id}, once; exit {:?}", reading.exit);
        self.check_exit(&reading, 0);
        Tally { processes: 1, bytes: total, attaches, ..Tally::default() }
    }

    fn check_exit(&self, reading: &Reading, code: i32) {
        let exit = reading.exit.expect("an exit");
        match (exit.code, exit.signal) {
            (None, None) if self.exits_can_be_lost => {}
            status => assert_eq!(status, (Some(code), None)),
        }
    }

    /// Starts a process exactly once, though the answer may get lost.
    fn spawn(&mut self, id: &str, command: Vec<String>, terminal: bool, stdin: bool) -> String {
        let (name, value) = self.marker.split_once('=').expect("NAME=value");
        let params = Spawn {
            id: id.to_owned(),
            command: command.into_iter().map(Into::into).collect(),
            environment: Some(vec![("PATH".into(), "/usr/bin:/bin".into()), (name.into(), value.into())]),
            terminal: terminal.then_some(TerminalSize { rows: 24, cols: 80 }),
            stdin,
            ..Spawn::default()
        };
        let begun = Instant::now();
        loop {
            match self.daemon.connect().call::<Spawned>("spawn", &params) {
                Ok(spawned) => return spawned.process,
                // It was started before the answer got lost.
                Err(CallError::Refused(failure)) if failure.kind == "taken" => return id.to_owned(),
                Err(CallError::Refused(failure)) => {
                    assert!(begun.elapsed() < TIMEOUT, "spawn of {id} is refused for ever: {failure:?}");
                    self.allow(&failure, id);
                }
                Err(CallError::Lost(error)) => {
                    assert!(begun.elapsed() < TIMEOUT, "spawn of {id}: {error}");
                    if self.daemon.list().iter().any(|process| process.id == id) {
                        return id.to_owned();
                    }
                    pause();
                }
            }
        }
    }

    /// Reads to the end, disconnecting and reattaching at random. `between` is called after each attach and returns how many
    /// bytes of output are expected so far.
    fn read(
        &mut self,
        process: &str,
        reading: &mut Reading,
        mut between: impl FnMut(&mut Self, &Attached) -> u64,
    ) -> u64 {
        let mut attaches = 0;
        let begun = Instant::now();
        while reading.exit.is_none() {
            assert!(begun.elapsed() < TIMEOUT, "{process} does not end; log: {}", self.daemon.log());
            attaches += 1;
            let mut client = self.daemon.connect();
            let params = Attach { process: process.to_owned(), after: reading.last_seq, ..Attach::default() };
            let attached: Attached = match client.call("attach", &params) {
                Ok(attached) => attached,
                Err(CallError::Lost(_)) => {
                    pause();
                    continue;
                }
                Err(CallError::Refused(failure)) => {
                    panic!("attach to {process} was refused: {failure:?}; log: {}", self.daemon.log())
                }
            };
            let bytes = between(self, &attached);
            let leave_after = 1 + self.noise.below(200);
            self.read_some(&mut client, reading, leave_after, bytes);
        }
        attaches
    }

    /// Reads up to so many messages or bytes, or until the connection is lost.
    fn read_some(&self, client: &mut Client, reading: &mut Reading, messages: u64, bytes: u64) {
        for _ in 0..messages {
            if reading.stdout_bytes >= bytes {
                return;
            }
            match client.receive() {
                Ok(message) => reading.take(&message),
                Err(_lost) => return,
            }
            if reading.exit.is_some() {
                return;
            }
        }
    }

    /// Sends some more of `data` from the offset that the daemon reports as applied, sometimes a piece of it twice. Returns how
    /// many bytes are echoed before more is sent.
    fn feed(&mut self, process: &str, data: &[u8], attached: &Attached) -> u64 {
        let mut client = self.daemon.connect();
        let mut applied = attached.stdin_accepted;
        for _ in 0..1 + self.noise.below(8) {
            let back = self.noise.below(100).min(applied);
            let begin = (applied - back) as usize;
            let end = (begin + 1 + self.noise.below(40_000) as usize).min(data.len());
            let piece = &data[begin..end];
            let mut text = Vec::new();
            base64::append(&mut text, piece);
            let params = Stdin {
                process: process.to_owned(),
                offset: Some(begin as u64),
                data: String::from_utf8(text).expect("base64 is text"),
            };
            match client.call::<StdinApplied>("stdin", &params) {
                Ok(StdinApplied { outcome: StdinOutcome::Gap, applied }) => {
                    panic!("a gap at {begin}, applied {applied}")
                }
                Ok(answer) => applied = answer.applied,
                Err(CallError::Lost(_)) => return applied,
                Err(CallError::Refused(failure))
                    if ["notRunning", "noStdin"].contains(&failure.kind.as_str()) =>
                {
                    return u64::MAX;
                }
                Err(CallError::Refused(failure)) => {
                    self.allow(&failure, process);
                    return applied;
                }
            }
            if applied as usize == data.len() {
                return match client.call::<()>("closeStdin", &ProcessRef { process: process.to_owned() }) {
                    Err(CallError::Lost(_)) => applied,
                    // Not accepted for lack of room: the next attach repeats it.
                    Err(CallError::Refused(failure)) if failure.kind == "internal" => {
                        self.allow(&failure, process);
                        applied
                    }
                    Ok(()) | Err(CallError::Refused(_)) => u64::MAX,
                };
            }
        }
        applied
    }
}
