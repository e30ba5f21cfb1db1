//! Back-pressure by request size: bounds the bytes of concurrent requests per connection and per face.

use crate::outbox::Outbox;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limit on concurrent requests of one connection. Its reader waits while it is reached.
const CONNECTION_BYTES_MAX: u32 = 8 * 1024 * 1024;
/// The minimum weight of a request. A connection thus has at most 1,024 concurrent requests.
const REQUEST_BYTES_MIN: u32 = 8 * 1024;
/// The reserve of each connection. Requests of usual size fit into it and never wait for other connections.
const RESERVED_BYTES: u32 = 64 * 1024;
/// What all connections of a face share beyond their reserves.
const SHARED_BYTES: u32 = 64 * 1024 * 1024;
/// The weight of a request of which only the id is left in memory.
const ANSWER_BYTES: usize = 1024;

/// The bytes that all connections of a face share. Clones share the same budget.
#[derive(Clone)]
pub struct SharedLoad(Arc<Semaphore>);

/// The budget of one connection.
#[derive(Clone)]
pub struct Load {
    all: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

/// The weight of one request, released on drop.
#[derive(Debug)]
pub struct Weight {
    of_connection: OwnedSemaphorePermit,
    /// From the connection's reserve, or from the shared budget.
    backing: OwnedSemaphorePermit,
}

impl Default for SharedLoad {
    fn default() -> SharedLoad {
        SharedLoad(Arc::new(Semaphore::new(SHARED_BYTES as usize)))
    }
}

impl SharedLoad {
    /// The budget of a new connection.
    pub fn connection(&self) -> Load {
        Load {
            all: Arc::new(Semaphore::new(CONNECTION_BYTES_MAX as usize)),
            reserved: Arc::new(Semaphore::new(RESERVED_BYTES as usize)),
            shared: self.0.clone(),
        }
    }
}

/// The weight of a request of this size.
fn weigh(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(CONNECTION_BYTES_MAX).clamp(REQUEST_BYTES_MIN, CONNECTION_BYTES_MAX)
}

impl Load {
    /// Takes the weight of a request of this size if the budget allows it now.
    pub fn try_take(&self, bytes: usize) -> Option<Weight> {
        let weight = weigh(bytes);
        let of_connection = self.all.clone().try_acquire_many_owned(weight).ok()?;
        let backing = self.reserved.clone().try_acquire_many_owned(weight);
        let backing = backing.or_else(|_| self.shared.clone().try_acquire_many_owned(weight)).ok()?;
        Some(Weight { of_connection, backing })
    }

    /// Waits for budget. `None` when the peer of this connection leaves before.
    pub async fn take(&self, bytes: usize, connection: &Outbox) -> Option<Weight> {
        match self.try_take(bytes) {
            Some(weight) => Some(weight),
            None => connection.while_peer_stays(self.wait(weigh(bytes))).await?,
        }
    }

    async fn wait(&self, weight: u32) -> Option<Weight> {
        let of_connection = self.all.clone().acquire_many_owned(weight).await.ok()?;
        let shared = self.shared.clone().acquire_many_owned(weight);
        let backing = match weight <= RESERVED_BYTES {
            true => tokio::select! {
                backing = self.reserved.clone().acquire_many_owned(weight) => backing,
                backing = shared => backing,
            },
            false => shared.await,
        };
        Some(Weight { of_connection, backing: backing.ok()? })
    }

    /// Waits until no request is running.
    pub async fn finished(&self) {
        // The semaphore is never closed.
        let _all = self.all.acquire_many(CONNECTION_BYTES_MAX).await;
    }
}

impl Weight {
    /// Reduces the weight once the request's bytes are freed and only its reply is pending.
    pub fn shrink(&mut self) {
        for permit in [&mut self.of_connection, &mut self.backing] {
            drop(permit.split(permit.num_permits().saturating_sub(ANSWER_BYTES)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::UnixStream;

    const MIB: usize = 1024 * 1024;

    async fn within<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(30), what).await.unwrap()
    }

    #[test]
    fn a_connection_is_bounded_in_bytes_and_in_requests() {
        let load = SharedLoad::default().connection();
        let large: Vec<Weight> = std::iter::from_fn(|| load.try_take(MIB)).collect();
        assert_eq!(large.len(), 8);
        drop(large);
        let small: Vec<Weight> = std::iter::from_fn(|| load.try_take(1)).collect();
        assert_eq!(small.len(), 1024);
    }

    #[test]
    fn small_requests_pass_while_other_connections_use_up_the_shared_budget() {
        let shared = SharedLoad::default();
        let greedy: Vec<Load> = (0..16).map(|_| shared.connection()).collect();
        let held: Vec<Weight> =
            greedy.iter().flat_map(|load| std::iter::from_fn(|| load.try_take(MIB))).collect();
        assert_eq!(held.len() * MIB, SHARED_BYTES as usize);
        let other = shared.connection();
        assert!(other.try_take(MIB).is_none());
        assert!(other.try_take(RESERVED_BYTES as usize).is_some());
    }

    #[tokio::test]
    async fn a_waiting_reader_continues_when_budget_is_released_and_ends_when_its_peer_leaves() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_reader, writer) = crate::split(ours).unwrap();
        let (outbox, _writing) = Outbox::new(writer);
        let load = SharedLoad::default().connection();
        let mut held = load.try_take(CONNECTION_BYTES_MAX as usize).unwrap();
        let waits = async { load.take(MIB, &outbox).await };
        let shrinks = async { held.shrink() };
        let (taken, ()) = within(async { tokio::join!(waits, shrinks) }).await;
        let _held = load.try_take(6 * MIB).unwrap();
        assert!(taken.is_some());
        drop(theirs);
        assert!(within(load.take(2 * MIB, &outbox)).await.is_none());
    }
}
