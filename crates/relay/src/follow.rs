//! Streams process output to a connection: one follower task per process, in the order of sequence numbers.

use crate::connection::PendingRequest;
use crate::go_json::write;
use crate::wire::Outcome;
use outpost_engine::{Batch, Exit, ExitCause, Process, Slot, Stream};
use outpost_wire::{Closed, Outbox, base64};
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The followers of one connection, by process id of the protocol.
#[derive(Clone, Default)]
pub(crate) struct Followers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    running: Mutex<HashMap<String, Running>>,
    /// Notified when a follower ends.
    ended: Notify,
}

struct Running {
    slot: Slot,
    task: JoinHandle<()>,
    /// Notified when another follower replaces this one.
    superseded: Arc<Notify>,
    /// Unique, so that a follower that ends does not remove its successor.
    generation: u64,
}

/// A reply that must be sent after the frame `seq` and before later frames.
pub(crate) struct ReplyAfter {
    pub(crate) seq: u64,
    pub(crate) pending: PendingRequest,
    pub(crate) outcome: Outcome,
}

impl Followers {
    /// Streams the frames after `after`. Replaces a follower of the same id, which still sends its pending reply but no
    /// further frames.
    pub(crate) fn follow(&self, process: Process, outbox: Outbox, after: u64, reply: ReplyAfter) {
        static NEXT_GENERATION: AtomicU64 = AtomicU64::new(0);
        let generation = NEXT_GENERATION.fetch_add(1, Ordering::Relaxed);
        let id = process.key().id.clone();
        let mut running = self.lock();
        let previous = running.remove(&id);
        if let Some(previous) = &previous {
            previous.superseded.notify_one();
        }
        let slot = process.slot();
        let superseded = Arc::new(Notify::new());
        let (followers, own_id, stop) = (self.clone(), id.clone(), superseded.clone());
        let task = tokio::spawn(async move {
            if let Some(previous) = previous {
                let _ended = previous.task.await;
            }
            let mut reply = Some(reply);
            tokio::select! {
                _peer_gone = stream(&process, &outbox, after, &mut reply) => {}
                () = stop.notified() => {}
            }
            let _peer_gone = send_reply(&outbox, reply).await;
            followers.remove(&own_id, generation);
        });
        running.insert(id, Running { slot, task, superseded, generation });
    }

    fn remove(&self, id: &str, generation: u64) {
        let mut running = self.lock();
        if running.get(id).is_some_and(|follower| follower.generation == generation) {
            running.remove(id);
        }
        drop(running);
        self.shared.ended.notify_waiters();
    }

    /// Waits until this process has no follower: all its frames are sent.
    pub(crate) async fn ended(&self, process: &Process) {
        self.wait(|running| running.get(&process.key().id).is_none_or(|found| found.slot != process.slot()))
            .await;
    }

    /// Waits until no process has a follower.
    pub(crate) async fn all_ended(&self) {
        self.wait(HashMap::is_empty).await;
    }

    async fn wait(&self, condition: impl Fn(&HashMap<String, Running>) -> bool) {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            // Register before the check, or a notification between check and await would be lost.
            ended.as_mut().enable();
            if condition(&self.lock()) {
                return;
            }
            ended.await;
        }
    }

    pub(crate) fn end_all(&self) {
        for (_, follower) in self.lock().drain() {
            follower.task.abort();
        }
        self.shared.ended.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends frames until the exit frame. Takes `reply` when it is sent. Cancel-safe: frames and the reply are sent whole or not
/// at all.
async fn stream(
    process: &Process,
    outbox: &Outbox,
    after: u64,
    reply: &mut Option<ReplyAfter>,
) -> Result<(), Closed> {
    let mut header = Vec::from(b"{\"type\":\"stream\",\"processId\":");
    write::string(&mut header, process.key().id.as_bytes());
    let mut subscription = process.subscribe(after);
    let mut batch = Batch::default();
    loop {
        if reply.as_ref().is_some_and(|reply| subscription.last_seen() >= reply.seq) {
            outbox.send(|out| append_reply(out, reply.take())).await?;
        }
        tokio::select! {
            read = subscription.next(&mut batch) => {
                if let Err(error) = read {
                    // Another process took the id, or the journal cannot be read.
                    tracing::debug!("[frameSink] {} ends: {error}", process.slot());
                    return Ok(());
                }
            }
            () = outbox.closed() => return Err(Closed),
        }
        outbox.send(|out| append_batch(out, &header, &batch, reply)).await?;
        if batch.ended.is_some() {
            return Ok(());
        }
        // A fast process must not starve the other tasks of this thread.
        tokio::task::yield_now().await;
    }
}

async fn send_reply(outbox: &Outbox, reply: Option<ReplyAfter>) -> Result<(), Closed> {
    match reply {
        Some(reply) => outbox.send(|out| append_reply(out, Some(reply))).await,
        None => Ok(()),
    }
}

fn append_reply(out: &mut Vec<u8>, reply: Option<ReplyAfter>) {
    if let Some(reply) = reply {
        reply.pending.append_reply(out, &reply.outcome);
    }
}

/// Appends the frames, and the reply at its position among them.
fn append_batch(out: &mut Vec<u8>, header: &[u8], batch: &Batch, reply: &mut Option<ReplyAfter>) {
    let mut reply_before = |out: &mut Vec<u8>, seq: u64| {
        append_reply(out, reply.take_if(|reply| reply.seq < seq));
    };
    for (frame, bytes) in batch.frames() {
        reply_before(out, frame.seq);
        let stream = match frame.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        out.extend_from_slice(header);
        let _infallible = write!(out, ",\"stream\":\"{stream}\",\"seq\":{},\"data\":\"", frame.seq);
        base64::append(out, bytes);
        out.extend_from_slice(b"\"}\n");
    }
    if let Some(ended) = batch.ended {
        reply_before(out, ended.seq);
        out.extend_from_slice(header);
        let code = exit_code(ended.exit);
        let _infallible = writeln!(out, ",\"stream\":\"exit\",\"seq\":{},\"exitCode\":{code}}}", ended.seq);
    }
}

/// "A signal-terminated child reports exitCode: -1 (not 128+signo)."
fn exit_code(exit: Exit) -> i32 {
    match exit.cause {
        ExitCause::Code(code) => code,
        ExitCause::Signal(_) | ExitCause::Unknown => -1,
    }
}
