//! Output streaming: sends the journal of an attached process to its client as JSON lines, batch by batch.

use crate::client_bound::{ClientBound, SCOPE};
use crate::input_lock::InputGuard;
use crate::methods::{FACE, exit_status};
use outpost_engine::{Batch, Key, Process, Stream};
use outpost_wire::{Closed, Outbox, base64};
use std::io::Write;

/// A connection that is attached to a process.
pub(crate) struct Attachment {
    pub(crate) process: Process,
    /// The last sequence number that the client has.
    pub(crate) after: u64,
    /// Present while this connection holds the input lock.
    pub(crate) input: Option<InputGuard>,
    /// The process ends with this connection.
    pub(crate) owns: bool,
}

impl Attachment {
    /// Streams output until the process or the connection ends.
    pub(crate) async fn run(mut self, outbox: &Outbox, client_bound: &ClientBound) -> Result<(), Closed> {
        if self.owns {
            client_bound.client_attached(&self.process);
        }
        let streamed = self.stream(outbox).await;
        // Not in `Drop`: a retiring worker drops this future, and the client reconnects to the next worker.
        if self.owns {
            client_bound.client_left(&self.process).await;
        }
        streamed
    }

    async fn stream(&mut self, outbox: &Outbox) -> Result<(), Closed> {
        let name = self.process.slot().to_string();
        let Key { face, scope, .. } = self.process.key();
        // A process of another face, or one that another client owns, waits for its own reader. A second reader only
        // observes and must not apply back-pressure.
        let mut subscription = match face == FACE && (self.owns || scope != SCOPE) {
            true => self.process.subscribe(self.after),
            false => self.process.observe(self.after),
        };
        let mut batch = Batch::default();
        let mut stalled = false;
        loop {
            let input_lost = async {
                match &self.input {
                    Some(input) => input.lost().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = subscription.next(&mut batch) => {
                    if let Err(error) = read {
                        tracing::warn!(process = %name, %error, "cannot read the journal; the stream ends");
                        return Ok(());
                    }
                }
                () = input_lost => {
                    self.input = None;
                    let line = format!("{{\"process\":\"{name}\",\"writer\":false}}\n");
                    outbox.send(|lines| lines.extend_from_slice(line.as_bytes())).await?;
                    continue;
                }
                () = outbox.closed() => return Err(Closed),
            }
            let changed = subscription.is_stalled() != stalled;
            stalled = subscription.is_stalled();
            outbox
                .send(|lines| {
                    encode(&name, &batch, lines);
                    if changed {
                        let _infallible = writeln!(lines, "{{\"process\":\"{name}\",\"stalled\":{stalled}}}");
                    }
                })
                .await?;
            // A reader that keeps up with its writer must not starve other tasks of this thread.
            tokio::task::yield_now().await;
            if batch.ended.is_some() {
                return Ok(());
            }
        }
    }
}

/// Infallible: it writes to memory only.
fn encode(name: &str, batch: &Batch, lines: &mut Vec<u8>) {
    if let Some(first) = batch.first_kept {
        let _infallible = writeln!(lines, "{{\"process\":\"{name}\",\"firstSeq\":{first}}}");
    }
    for (frame, bytes) in batch.frames() {
        let stream = match frame.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let (seq, time) = (frame.seq, frame.time_ms);
        let _infallible = write!(
            lines,
            "{{\"process\":\"{name}\",\"seq\":{seq},\"time\":{time},\"stream\":\"{stream}\",\"data\":\""
        );
        base64::append(lines, bytes);
        lines.extend_from_slice(b"\"}\n");
    }
    if let Some(ended) = batch.ended {
        let exit = serde_json::to_string(&exit_status(ended.exit)).unwrap_or_default();
        let (seq, time) = (ended.seq, ended.time_ms);
        let _infallible =
            writeln!(lines, "{{\"process\":\"{name}\",\"seq\":{seq},\"time\":{time},\"exit\":{exit}}}");
    }
}
