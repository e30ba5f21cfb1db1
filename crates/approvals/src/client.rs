//! An approver's end of the approver socket.

use crate::audit::Head;
use crate::question::{Decision, Question};
use crate::signing::{self, HOST_NAMESPACE, NAMESPACE, PublicKey, Signed, Signer, Statement};
use crate::wire::{Answer, LINE_BYTES_MAX, Request};
use crate::{Error, Result};
use outpost_sys::connect::{Trust, untrusted};
use outpost_wire::{Line, Lines, Outbox};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// A connection to the daemon's approver socket.
pub struct Client {
    lines: Lines,
    outbox: Outbox,
    /// What came while an answer was waited for.
    events: VecDeque<Answer>,
}

/// A host that has proven that it has its key.
#[derive(Clone, Debug)]
pub struct Hello {
    /// How the audit names us.
    pub name: String,
    pub host: PublicKey,
    /// The newest record of its audit chain.
    pub head: Head,
    /// We may decide without a signature.
    pub trusted: bool,
    /// Root's file, where approvers come from it.
    pub approvers_file: Option<String>,
    /// A secret of before there were keys is still there.
    pub old_secret: bool,
}

/// Bytes of a nonce.
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

    /// The answer to a request; a refusal is an error.
    pub async fn ask(&mut self, request: &Request) -> Result<Answer> {
        let text = serde_json::to_vec(request).map_err(|error| Error::Refused(error.to_string()))?;
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(&text);
            out.push(b'\n');
        };
        self.outbox.send(write).await.map_err(|_| Error::Stopped)?;
        let mut so_far = Vec::new();
        loop {
            match self.receive().await? {
                event @ (Answer::Asked { .. } | Answer::Settled { .. } | Answer::Anew { .. }) => {
                    self.events.push_back(event);
                }
                Answer::Failed { why } => return Err(Error::Refused(why)),
                Answer::Questions { mut questions, more } => {
                    so_far.append(&mut questions);
                    if !more {
                        return Ok(Answer::Questions { questions: so_far, more });
                    }
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Has the host prove that it has its key. Whether that key is the right one is for the caller.
    pub async fn hello(&mut self, client: &str) -> Result<Hello> {
        let random = outpost_sys::limits::random::<NONCE_BYTES>();
        let nonce = crate::hex(&random.map_err(|errno| Error::Key(format!("cannot make a nonce: {errno}")))?);
        let asked = Request::Hello { nonce: nonce.clone(), client: client.to_owned() };
        let answer = self.ask(&asked).await?;
        let Answer::Hello { name, host, head, signature, trusted, approvers_file, old_secret } = answer
        else {
            return Err(Error::Refused("the daemon answered something else than hello".into()));
        };
        let wrong =
            |why: &dyn std::fmt::Display| Error::Key(format!("the host has not proven its key: {why}"));
        let host = PublicKey::from_openssh(&host).map_err(|error| wrong(&error))?;
        let head: Head = head.parse().map_err(|error: String| wrong(&error))?;
        let signature =
            signing::from_base64(&signature).ok_or_else(|| wrong(&"its signature is no base64"))?;
        let by = signing::verify(HOST_NAMESPACE, &signing::hello(&nonce, &head), &signature);
        match by.map_err(|why| wrong(&why))?.key_data() == host.key_data() {
            true => Ok(Hello { name, host, head, trusted, approvers_file, old_secret }),
            false => Err(wrong(&"another key has signed")),
        }
    }

    /// Decides a question as it was shown. Without a signer the user's own word has to count. The receipt is checked.
    pub async fn decide(
        &mut self,
        hello: &Hello,
        question: &Question,
        decision: Decision,
        signer: Option<Arc<Signer>>,
    ) -> Result<()> {
        let host = hello.host.to_bytes().map_err(|error| Error::Key(error.to_string()))?;
        let statement = Statement::about(question, &host, hello.head, decision).encode();
        let signed = match signer {
            None => Signed::new(&statement, b""),
            Some(signer) => sign(signer, statement.clone()).await?,
        };
        let Signed { statement: encoded, signature } = signed;
        let answer = self.ask(&Request::Decide { statement: encoded, signature }).await?;
        let Answer::Decided { receipt, .. } = answer else {
            return Err(Error::Refused("the daemon answered something else than a receipt".into()));
        };
        let receipt = signing::from_base64(&receipt).unwrap_or_default();
        let by =
            signing::verify(HOST_NAMESPACE, &signing::receipt(&statement), &receipt).map_err(Error::Key)?;
        match by.key_data() == hello.host.key_data() {
            true => Ok(()),
            false => Err(Error::Key("the receipt is not of this host".into())),
        }
    }

    /// The next event of one that watches. Safe to cancel.
    pub async fn event(&mut self) -> Result<Answer> {
        match self.events.pop_front() {
            Some(event) => Ok(event),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Answer> {
        match self.lines.next().await {
            Ok(Line::Whole(line)) => serde_json::from_slice(line).map_err(|error| {
                Error::Refused(format!("the daemon said what we do not understand: {error}"))
            }),
            Ok(Line::TooLong) => Err(Error::Refused("the daemon said more than fits into a line".into())),
            _ => Err(Error::Stopped),
        }
    }
}

/// Signs on a thread that may wait: some keys are touched first.
pub async fn sign(signer: Arc<Signer>, statement: Vec<u8>) -> Result<Signed> {
    let signing = tokio::task::spawn_blocking(move || {
        let signature = signer.sign(NAMESPACE, &statement)?;
        Ok(Signed::new(&statement, &signature))
    });
    signing.await.map_err(|_| Error::Stopped)?
}
