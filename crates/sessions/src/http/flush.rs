//! Detects when a body frame was written to the socket: an event counts as delivered only then.

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite};

/// Counts the body frames of one connection, and which of them were written to the socket.
#[derive(Clone, Default)]
pub(crate) struct FlushCounter {
    inner: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Frames given to hyper, and how many of them the socket has accepted.
    given: AtomicU64,
    written: AtomicU64,
    waiting: std::sync::Mutex<Option<Waker>>,
}

impl FlushCounter {
    /// The connection has written everything it was given.
    pub(crate) fn on_flush(&self) {
        let given = self.inner.given.load(Ordering::Acquire);
        if self.inner.written.swap(given, Ordering::AcqRel) != given {
            let waiting = self.inner.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some(waker) = waiting {
                waker.wake();
            }
        }
    }

    /// A frame was given to hyper.
    pub(crate) fn on_frame(&self) {
        self.inner.given.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of the next frame. A connection has one response at a time, so no other body counts in between.
    pub(super) fn next_frame(&self) -> u64 {
        self.inner.given.load(Ordering::Acquire) + 1
    }

    pub(super) async fn wait_written(&self, frame: u64) {
        std::future::poll_fn(|context| {
            let is_written = || self.inner.written.load(Ordering::Acquire) >= frame;
            if is_written() {
                return Poll::Ready(());
            }
            let mut waiting = self.inner.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *waiting = Some(context.waker().clone());
            if is_written() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A connection that reports each completed flush to its [`FlushCounter`].
pub(super) struct FlushNotifyingIo<S> {
    pub(super) inner: TokioIo<S>,
    pub(super) flushes: FlushCounter,
}

impl<S: AsyncRead + Unpin> Read for FlushNotifyingIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> Write for FlushNotifyingIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        // hyper flushes after it has written all buffered frames.
        self.flushes.on_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }
}
