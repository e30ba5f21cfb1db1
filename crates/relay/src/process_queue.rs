//! Per-process FIFO queues of a connection for `process.spawn` and `process.stdin`.
//!
//! The requests of a connection run concurrently. Stdin writes to one process must keep their order, and none may run
//! before the spawn of that process. A process that does not read its stdin blocks only its own queue.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A queued request. The load limit of the connection bounds the number of queued jobs.
pub(crate) enum Job {
    Spawn(JobFuture<()>),
    Stdin(JobFuture<StdinOutcome>),
}

pub(crate) type JobFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinOutcome {
    /// The data was applied or refused, and the reply is sent.
    Replied,
    /// The client disconnected while the data waited for room.
    Dropped,
}

/// Larger than the number of concurrent requests that the load limit allows.
const JOBS_MAX: usize = 2048;

#[derive(Clone, Default)]
pub(crate) struct ProcessQueues {
    queues: Arc<Mutex<HashMap<String, mpsc::Sender<Job>>>>,
}

impl ProcessQueues {
    /// Runs `job` after the earlier jobs of the same process.
    pub(crate) fn enqueue(&self, id: &str, job: Job) {
        let mut queues = self.lock();
        let job = match queues.get(id) {
            Some(queue) => match queue.try_send(job) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job)) => job,
            },
            None => job,
        };
        let (queue, jobs) = mpsc::channel(JOBS_MAX);
        queues.insert(id.to_owned(), queue);
        tokio::spawn(self.clone().run_jobs(id.to_owned(), job, jobs));
    }

    async fn run_jobs(self, id: String, first: Job, mut jobs: mpsc::Receiver<Job>) {
        let mut next = Some(first);
        // After a dropped write, drop the later ones too: the child must never read a stream with a gap.
        let mut dropping = false;
        while let Some(job) = next {
            match job {
                Job::Spawn(spawn) => {
                    spawn.await;
                    dropping = false;
                }
                Job::Stdin(write) if !dropping => dropping = write.await == StdinOutcome::Dropped,
                Job::Stdin(_) => {}
            }
            next = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(_) => {
                    // `enqueue` holds the lock, so no job can arrive between this check and the removal.
                    let mut queues = self.lock();
                    let late = jobs.try_recv().ok();
                    if late.is_none() {
                        queues.remove(&id);
                    }
                    late
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Job>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
