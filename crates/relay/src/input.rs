//! Input for processes, in the order in which it came: one queue for each process that a connection starts or feeds.
//!
//! Requests of a connection run at the same time, but two pieces of one input must not overtake each other, and none
//! may overtake the start of its process. A process that takes nothing holds up its own queue only.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// What is done in its turn. The bytes of requests under way on a connection bound how many wait.
pub(crate) enum Job {
    Start(Work<()>),
    Feed(Work<Fed>),
}

pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What became of a piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// It was applied or refused, and the client has its answer.
    Answered,
    /// It waited for room when the client left.
    Dropped,
}

/// More than a connection's requests can be.
const JOBS_MAX: usize = 2048;

#[derive(Clone, Default)]
pub(crate) struct Inputs {
    queues: Arc<Mutex<HashMap<String, mpsc::Sender<Job>>>>,
}

impl Inputs {
    /// Runs `job` when those before it for the same process are done.
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
        tokio::spawn(self.clone().work(id.to_owned(), job, jobs));
    }

    async fn work(self, id: String, first: Job, mut jobs: mpsc::Receiver<Job>) {
        let mut next = Some(first);
        // After a dropped piece, the pieces behind it are dropped too: a child never reads a stream with a hole.
        let mut dropping = false;
        while let Some(job) = next {
            match job {
                Job::Start(work) => {
                    work.await;
                    dropping = false;
                }
                Job::Feed(work) if !dropping => dropping = work.await == Fed::Dropped,
                Job::Feed(_) => {}
            }
            next = match jobs.try_recv() {
                Ok(job) => Some(job),
                Err(_) => {
                    // Whoever enqueues holds the lock, so nothing can slip in between looking and leaving.
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
