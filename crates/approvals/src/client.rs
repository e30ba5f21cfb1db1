//! The client side of the approver socket.

use crate::question::{Decision, Question};
use crate::signing::{self, HOST_NAMESPACE, NAMESPACE, PublicKey, Signed, Signer, Statement};
use crate::wire::{LINE_BYTES_MAX, Request, ServerMessage};
use crate::{Error, Result};
use outpost_ledger::audit::Head;
use outpost_sys::connect::{Trust, untrusted};
use outpost_wire::{Line, Lines, Outbox};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// A connection to the daemon's approver socket.
pub struct Client {
    lines: Lines,
    outbox: Outbox,
    /// Events that arrived while the client waited for a reply.
    events: VecDeque<ServerMessage>,
}

/// A host that has proven possession of its key.
#[derive(Clone, Debug)]
pub struct Hello {
    /// This client's name in the audit chain.
    pub name: String,
    pub host: PublicKey,
    /// The newest record of the host's audit chain.
    pub head: Head,
    /// This user may decide without a signature.
    pub trusted: bool,
    /// Path of root's approvers file, if the approvers come from it.
    pub approvers_file: Option<String>,
    /// The approver secret of an earlier version still exists.
    pub old_secret: bool,
}

const NONCE_BYTES: usize = 32;

impl Client {
    pub async fn connect(socket: &Path, trust: Trust) -> Result<Client> {
        let fail = |error: std::io::Error| match untrusted(&error) {
            Some(reason) => Error::Refused(format!("{reason}\nhint: {}", reason.hint())),
            None => Error::file("connect to", socket, error),
        };
        let stream = outpost_wire::connect(socket, trust).map_err(fail)?;
        let (reader, writer) = outpost_wire::split(stream).map_err(fail)?;
        let (outbox, write) = Outbox::new(writer);
        tokio::spawn(write);
        Ok(Client { lines: Lines::new(reader, LINE_BYTES_MAX), outbox, events: VecDeque::new() })
    }

    /// Sends a request and waits for its reply. A `failed` reply is returned as an error.
    pub async fn ask(&mut self, request: &Request) -> Result<ServerMessage> {
        let text = serde_json::to_vec(request).map_err(|error| Error::Refused(error.to_string()))?;
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(&text);
            out.push(b'\n');
        };
        self.outbox.send(write).await.map_err(|_| Error::Stopped)?;
        let mut so_far = Vec::new();
        loop {
            match self.receive().await? {
                event @ (ServerMessage::Asked { .. }
                | ServerMessage::Settled { .. }
                | ServerMessage::Snapshot { .. }) => {
                    self.events.push_back(event);
                }
                ServerMessage::Failed { why } => return Err(Error::Refused(why)),
                ServerMessage::Questions { mut questions, more } => {
                    so_far.append(&mut questions);
                    if !more {
                        return Ok(ServerMessage::Questions { questions: so_far, more });
                    }
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Lets the host prove possession of its key. The caller checks whether it is the expected key.
    pub async fn hello(&mut self, client: &str) -> Result<Hello> {
        let random = outpost_sys::random::bytes::<NONCE_BYTES>();
        let nonce = outpost_ledger::hex(
            &random.map_err(|errno| Error::Key(format!("cannot generate a nonce: {errno}")))?,
        );
        let asked = Request::Hello { nonce: nonce.clone(), client: client.to_owned() };
        let answer = self.ask(&asked).await?;
        let ServerMessage::Hello { name, host, head, signature, trusted, approvers_file, old_secret } =
            answer
        else {
            return Err(Error::Refused("unexpected reply from the daemon: expected hello".into()));
        };
        let wrong =
            |why: &dyn std::fmt::Display| Error::Key(format!("the host has not proven its key: {why}"));
        let host = PublicKey::from_openssh(&host).map_err(|error| wrong(&error))?;
        let head: Head = head.parse().map_err(|error: String| wrong(&error))?;
        let signature =
            signing::from_base64(&signature).ok_or_else(|| wrong(&"the signature is not base64"))?;
        let by = signing::verify(HOST_NAMESPACE, &signing::hello_message(&nonce, &head), &signature);
        match by.map_err(|why| wrong(&why))?.key_data() == host.key_data() {
            true => Ok(Hello { name, host, head, trusted, approvers_file, old_secret }),
            false => Err(wrong(&"another key signed the reply")),
        }
    }

    /// Decides a question and verifies the host's receipt. Without a signer, the daemon accepts the decision
    /// only from a trusted user.
    pub async fn decide(
        &mut self,
        hello: &Hello,
        question: &Question,
        decision: Decision,
        signer: Option<Arc<Signer>>,
    ) -> Result<()> {
        let host = hello.host.to_bytes().map_err(|error| Error::Key(error.to_string()))?;
        let statement = Statement::new(question, &host, hello.head, decision).encode();
        let signed = match signer {
            None => Signed::new(&statement, b""),
            Some(signer) => sign(signer, statement.clone()).await?,
        };
        let Signed { statement: encoded, signature } = signed;
        let answer = self.ask(&Request::Decide { statement: encoded, signature }).await?;
        let ServerMessage::Decided { receipt, .. } = answer else {
            return Err(Error::Refused("unexpected reply from the daemon: expected a receipt".into()));
        };
        let receipt = signing::from_base64(&receipt).unwrap_or_default();
        let by = signing::verify(HOST_NAMESPACE, &signing::receipt_message(&statement), &receipt)?;
        match by.key_data() == hello.host.key_data() {
            true => Ok(()),
            false => Err(Error::Key("another key signed the receipt".into())),
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn event(&mut self) -> Result<ServerMessage> {
        match self.events.pop_front() {
            Some(event) => Ok(event),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<ServerMessage> {
        match self.lines.next().await {
            Ok(Line::Whole(line)) => serde_json::from_slice(line)
                .map_err(|error| Error::Refused(format!("malformed message from the daemon: {error}"))),
            Ok(Line::TooLong) => Err(Error::Refused("the message from the daemon is too long".into())),
            _ => Err(Error::Stopped),
        }
    }
}

/// Signs on a blocking thread: a hardware key waits for a touch.
pub async fn sign(signer: Arc<Signer>, statement: Vec<u8>) -> Result<Signed> {
    let signing = tokio::task::spawn_blocking(move || {
        let signature = signer.sign(NAMESPACE, &statement)?;
        Ok(Signed::new(&statement, &signature))
    });
    signing.await.map_err(|_| Error::Stopped)?
}
