//! Processes whose output goes to a connection: one follower each, at its own pace, in the order of sequence numbers.

use crate::connection::Pending;
use crate::json::write;
use crate::wire::Outcome;
use outpost_engine::{Batch, Exit, How, Process, Slot, Stream};
use outpost_wire::{Closed, Outbox, base64};
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The followers of one connection, by the id that the client gave the process.
#[derive(Clone, Default)]
pub(crate) struct Followers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    running: Mutex<HashMap<String, Running>>,
    /// One has ended.
    ended: Notify,
}

struct Running {
    slot: Slot,
    task: JoinHandle<()>,
    /// Told when another follower takes its place.
    superseded: Arc<Notify>,
    /// No other follower has it, so that one that ends does not remove its successor.
    number: u64,
}

/// A reply that has its place in a stream: behind the frames that were there when it was asked for.
pub(crate) struct ReplyAfter {
    pub(crate) seq: u64,
    pub(crate) pending: Pending,
    pub(crate) outcome: Outcome,
}

impl Followers {
    /// Streams everything behind `after`, in place of a follower of the same id: that one sends its reply, if it owes
    /// one, and nothing more.
    pub(crate) fn follow(&self, process: Process, outbox: Outbox, after: u64, reply: ReplyAfter) {
        static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = process.key().id.clone();
        let mut running = self.lock();
        let before = running.remove(&id);
        if let Some(before) = &before {
            before.superseded.notify_one();
        }
        let slot = process.slot();
        let superseded = Arc::new(Notify::new());
        let (followers, name, leave) = (self.clone(), id.clone(), superseded.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _ended = before.task.await;
            }
            let mut owed = Some(reply);
            tokio::select! {
                _peer_gone = stream(&process, &outbox, after, &mut owed) => {}
                () = leave.notified() => {}
            }
            let _peer_gone = send_reply(&outbox, owed).await;
            followers.remove(&name, number);
        });
        running.insert(id, Running { slot, task, superseded, number });
    }

    fn remove(&self, id: &str, number: u64) {
        let mut running = self.lock();
        if running.get(id).is_some_and(|follower| follower.number == number) {
            running.remove(id);
        }
        drop(running);
        self.shared.ended.notify_waiters();
    }

    /// Waits until this process is not followed, because everything has been sent.
    pub(crate) async fn ended(&self, process: &Process) {
        self.wait(|running| running.get(&process.key().id).is_none_or(|found| found.slot != process.slot()))
            .await;
    }

    /// Waits until no process is followed.
    pub(crate) async fn all_ended(&self) {
        self.wait(HashMap::is_empty).await;
    }

    async fn wait(&self, reached: impl Fn(&HashMap<String, Running>) -> bool) {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            // Registered before we look, so that no notice can be missed between looking and waiting.
            ended.as_mut().enable();
            if reached(&self.lock()) {
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

/// Sends frames until the process has ended. The reply is taken when it has been sent; wherever this is cut off, frames
/// and reply are sent whole or not at all.
async fn stream(
    process: &Process,
    outbox: &Outbox,
    after: u64,
    owed: &mut Option<ReplyAfter>,
) -> Result<(), Closed> {
    let mut header = Vec::from(b"{\"type\":\"stream\",\"processId\":");
    write::string(&mut header, process.key().id.as_bytes());
    let mut subscription = process.subscribe(after);
    let mut batch = Batch::default();
    loop {
        if owed.as_ref().is_some_and(|reply| subscription.last_seen() >= reply.seq) {
            outbox.send(|out| append_reply(out, owed.take())).await?;
        }
        tokio::select! {
            read = subscription.next(&mut batch) => {
                if let Err(error) = read {
                    // The process lost its name to another, or its record cannot be read.
                    tracing::debug!("[frameSink] {} ends: {error}", process.slot());
                    return Ok(());
                }
            }
            () = outbox.closed() => return Err(Closed),
        }
        outbox.send(|out| append_batch(out, &header, &batch, owed)).await?;
        if batch.ended.is_some() {
            process.end_told();
            return Ok(());
        }
        // One that keeps up with a fast process must not keep the thread.
        tokio::task::yield_now().await;
    }
}

async fn send_reply(outbox: &Outbox, owed: Option<ReplyAfter>) -> Result<(), Closed> {
    match owed {
        Some(reply) => outbox.send(|out| append_reply(out, Some(reply))).await,
        None => Ok(()),
    }
}

fn append_reply(out: &mut Vec<u8>, reply: Option<ReplyAfter>) {
    if let Some(reply) = reply {
        reply.pending.append_reply(out, &reply.outcome);
    }
}

/// Appends frames, with the reply where it belongs among them.
fn append_batch(out: &mut Vec<u8>, header: &[u8], batch: &Batch, owed: &mut Option<ReplyAfter>) {
    let mut reply_before = |out: &mut Vec<u8>, seq: u64| {
        append_reply(out, owed.take_if(|reply| reply.seq < seq));
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
pub(crate) fn exit_code(exit: Exit) -> i32 {
    match exit.how {
        How::Code(code) => code,
        How::Signal(_) | How::Unknown => -1,
    }
}
