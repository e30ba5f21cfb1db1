//! A process's output as lines: a cursor over its journal, encoded batch by batch.

use crate::methods::{FACE, exit_status};
use crate::owned::{Owned, SCOPE};
use crate::pens::Held;
use outpost_engine::{Batch, Key, Process, Stream};
use outpost_wire::{Closed, Outbox, base64};
use std::io::Write;

/// A connection that is attached to a process.
pub(crate) struct Follow {
    pub(crate) process: Process,
    /// The last sequence number that it has.
    pub(crate) after: u64,
    /// It has the input.
    pub(crate) pen: Option<Held>,
    /// The process ends with it.
    pub(crate) owns: bool,
}

impl Follow {
    /// Sends everything until the process has ended or the connection has.
    pub(crate) async fn run(mut self, outbox: &Outbox, owned: &Owned) -> Result<(), Closed> {
        if self.owns {
            owned.take(&self.process);
        }
        let streamed = self.stream(outbox).await;
        // Not when this is dropped: a worker that makes room for another drops it, and clients go on with that one.
        if self.owns {
            owned.abandon(&self.process).await;
        }
        streamed
    }

    async fn stream(&mut self, outbox: &Outbox) -> Result<(), Closed> {
        let name = self.process.slot().to_string();
        let Key { face, scope, .. } = self.process.key();
        // Those of others wait for their own clients, not for whoever looks on and goes to lunch.
        let mut subscription = match face == FACE && (self.owns || scope != SCOPE) {
            true => self.process.subscribe(self.after),
            false => self.process.look_on(self.after),
        };
        let mut batch = Batch::default();
        let mut stalled = false;
        loop {
            let pen_lost = async {
                match &self.pen {
                    Some(pen) => pen.lost().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = subscription.next(&mut batch) => {
                    if let Err(error) = read {
                        tracing::warn!(process = %name, %error, "a reader cannot go on");
                        return Ok(());
                    }
                }
                () = pen_lost => {
                    self.pen = None;
                    let told = format!("{{\"process\":\"{name}\",\"writer\":false}}\n");
                    outbox.send(|lines| lines.extend_from_slice(told.as_bytes())).await?;
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
            // One reader that keeps up must not keep the thread.
            tokio::task::yield_now().await;
            if batch.ended.is_some() {
                return Ok(());
            }
        }
    }
}

/// Writing to memory cannot fail.
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
