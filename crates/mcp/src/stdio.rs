//! The transport over standard input and output: signals EOF at once, and ignores messages before the first request.

use rmcp::model::JsonRpcMessage;
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::watch;

pub(crate) struct Stdio<T> {
    inner: T,
    disconnected: watch::Sender<bool>,
    /// Whether the first request arrived.
    started: bool,
}

impl<T> Stdio<T> {
    pub(crate) fn new(inner: T, disconnected: watch::Sender<bool>) -> Stdio<T> {
        Stdio { inner, disconnected, started: false }
    }
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Stdio<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.inner.receive().await {
                // Signal EOF directly: rmcp first waits five seconds for running calls.
                None => {
                    self.disconnected.send_replace(true);
                    return None;
                }
                Some(message) if self.started || matches!(message, JsonRpcMessage::Request(_)) => {
                    self.started = true;
                    return Some(message);
                }
                // rmcp would stop the server.
                Some(_) => tracing::debug!("ignored a message before the first request"),
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
