//! The client's lines: the end of them is told to whoever waits, and what comes before the handshake ends nothing.

use rmcp::model::JsonRpcMessage;
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::watch;

pub(crate) struct Stdio<T> {
    lines: T,
    gone: watch::Sender<bool>,
    /// Whether a request came yet.
    begun: bool,
}

impl<T> Stdio<T> {
    pub(crate) fn new(lines: T, gone: watch::Sender<bool>) -> Stdio<T> {
        Stdio { lines, gone, begun: false }
    }
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Stdio<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.lines.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.lines.receive().await {
                // rmcp itself would wait five seconds for what is under way, and only then say so.
                None => {
                    self.gone.send_replace(true);
                    return None;
                }
                Some(message) if self.begun || matches!(message, JsonRpcMessage::Request(_)) => {
                    self.begun = true;
                    return Some(message);
                }
                // rmcp would end the server.
                Some(_) => tracing::debug!("a message before the first request is ignored"),
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.lines.close().await
    }
}
