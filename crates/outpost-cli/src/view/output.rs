//! Output of an attached process: a thread that does the blocking writes to our standard output and error.

use super::raw_terminal::RawTerminal;
use std::io::{self, Write};
use std::sync::Arc;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

/// Queue length; a chunk is at most one frame.
const QUEUED_CHUNKS_MAX: usize = 16;

pub(super) struct Chunk {
    pub(super) to_stderr: bool,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Output {
    pub(super) chunks: Sender<Chunk>,
    done: oneshot::Receiver<()>,
}

impl Output {
    pub(super) fn start(terminal: Option<Arc<RawTerminal>>) -> io::Result<Output> {
        let (chunks, mut queue) = mpsc::channel::<Chunk>(QUEUED_CHUNKS_MAX);
        let (finished, done) = oneshot::channel();
        std::thread::Builder::new().name("outpost-output".into()).spawn(move || {
            while let Some(chunk) = queue.blocking_recv() {
                let written = match &terminal {
                    Some(terminal) => terminal.write(&chunk.bytes),
                    None => write(&chunk),
                };
                if written.is_err() {
                    break;
                }
            }
            let _gone = finished.send(());
        })?;
        Ok(Output { chunks, done })
    }

    /// Closes the queue and waits until the thread has written it.
    pub(super) async fn finish(self) {
        drop(self.chunks);
        let _ended = self.done.await;
    }
}

fn write(chunk: &Chunk) -> io::Result<()> {
    match chunk.to_stderr {
        true => io::stderr().write_all(&chunk.bytes),
        false => {
            let mut out = io::stdout().lock();
            out.write_all(&chunk.bytes)?;
            out.flush()
        }
    }
}
