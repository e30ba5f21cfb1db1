//! What a process writes, to our own outputs, by a thread that may wait for them.

use super::terminal::Taken;
use std::io::{self, Write};
use std::sync::Arc;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::oneshot;

/// Pieces that may wait; each is a frame at most.
const PIECES_MAX: usize = 16;

pub(super) struct Piece {
    pub(super) to_stderr: bool,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Output {
    pub(super) pieces: Sender<Piece>,
    done: oneshot::Receiver<()>,
}

impl Output {
    pub(super) fn begin(taken: Option<Arc<Taken>>) -> io::Result<Output> {
        let (pieces, mut waiting) = mpsc::channel::<Piece>(PIECES_MAX);
        let (tell, done) = oneshot::channel();
        std::thread::Builder::new().name("outpost-output".into()).spawn(move || {
            while let Some(piece) = waiting.blocking_recv() {
                let written = match &taken {
                    Some(taken) => taken.write(&piece.bytes),
                    None => write(&piece),
                };
                if written.is_err() {
                    break;
                }
            }
            let _gone = tell.send(());
        })?;
        Ok(Output { pieces, done })
    }

    /// Waits until everything is written that can be.
    pub(super) async fn finish(self) {
        drop(self.pieces);
        let _ended = self.done.await;
    }
}

fn write(piece: &Piece) -> io::Result<()> {
    match piece.to_stderr {
        true => io::stderr().write_all(&piece.bytes),
        false => {
            let mut out = io::stdout().lock();
            out.write_all(&piece.bytes)?;
            out.flush()
        }
    }
}
