//! Serves the approver socket: lists questions by user, and accepts decisions.

use crate::connection_limit::{ConnectionLimit, PendingConnection};
use crate::question::Question;
use crate::queue::Submitter;
use crate::service::Approvals;
use crate::signing::{self, Signed};
use crate::verifier::OLD_SECRET_REFUSED;
use crate::wire::{QUESTIONS_BYTES_MAX, Request, ServerMessage};
use crate::{Error, grants};
use outpost_ledger::audit::Event;
use outpost_ledger::unix_ms;
use outpost_sys::message::{self, Peer};
use outpost_wire::{Closed, Line, Lines, Outbox, PerUserLimit};
use serde_json::json;
use std::collections::HashSet;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::{self, error::RecvError};

/// Connections of one user, and of all users except root.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_OF_USERS_MAX: usize = 4096;

/// Total connections. Some are reserved for root.
const CONNECTIONS_MAX: usize = CONNECTIONS_OF_USERS_MAX + CONNECTIONS_PER_USER_MAX;

/// Maximum length of a request line.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// A connection is closed after this many rejected statements.
const REJECTED_STATEMENTS_MAX: usize = 3;

const NONCE_BYTES_MAX: usize = 256;

/// Accepts connections until the task is cancelled.
pub async fn serve(listener: UnixListener, approvals: Approvals) {
    let admitted = approvals.clone();
    let admits = move |stream: &UnixStream| message::peer(stream).is_ok_and(|peer| admitted.admits(peer.uid));
    let (limit, users) =
        (ConnectionLimit::new(CONNECTIONS_PER_USER_MAX), PerUserLimit::new(CONNECTIONS_OF_USERS_MAX));
    let serve = |stream| serve_connection(approvals.clone(), stream, limit.clone(), users.clone());
    outpost_wire::accept_admitted(listener, CONNECTIONS_MAX, admits, serve).await;
}

async fn serve_connection(
    approvals: Approvals,
    stream: UnixStream,
    limit: ConnectionLimit,
    users: PerUserLimit,
) {
    let Ok(peer) = message::peer(&stream) else { return };
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, write) = Outbox::new(writer);
    tokio::spawn(write);
    let user_permit = (peer.uid != 0).then(|| users.acquire(1));
    let pending = limit.admit(peer.uid).filter(|_| user_permit.as_ref().is_none_or(Option::is_some));
    match pending {
        None => {
            let _disconnected = send(&outbox, &failed("too many connections of this user")).await;
        }
        Some(pending) => {
            let mut connection = Connection {
                approvals,
                peer,
                outbox: outbox.clone(),
                name: describe(peer, ""),
                rejected: 0,
                watcher: None,
                to_watch: None,
            };
            let _disconnected = connection.run(Lines::new(reader, REQUEST_BYTES_MAX), pending).await;
            if let Some(watcher) = connection.watcher.take() {
                watcher.abort();
            }
        }
    }
    outbox.close();
}

/// The client's name in the audit chain. The client chooses the program name, so it is escaped.
fn describe(peer: Peer, client: &str) -> String {
    let client = crate::display::escape_untrusted(client, 40);
    let with = if client.is_empty() { String::new() } else { format!(" with {client}") };
    format!("uid {} pid {}{with}", peer.uid, peer.pid)
}

struct Connection {
    approvals: Approvals,
    peer: Peer,
    outbox: Outbox,
    /// The client's name in the audit chain.
    name: String,
    /// Rejected statements so far.
    rejected: usize,
    watcher: Option<tokio::task::JoinHandle<()>>,
    /// Set by `watch`. The watcher starts after the snapshot was sent.
    to_watch: Option<broadcast::Receiver<ServerMessage>>,
}

impl Connection {
    async fn run(&mut self, mut lines: Lines, mut pending: PendingConnection) -> Result<(), Closed> {
        let first = tokio::select! {
            first = lines.next() => first,
            _evicted = &mut pending.evicted => return Ok(()),
        };
        let Some(_permit) = pending.activate() else { return Ok(()) };
        let mut next = first;
        loop {
            let answer = match next {
                Ok(Line::Whole(line)) => match serde_json::from_slice(line) {
                    Ok(request) => self.answer(request).await,
                    Err(error) => unknown_request(line, &error),
                },
                Ok(Line::TooLong) => {
                    return send(&self.outbox, &failed("request too long: the limit is 64 KiB")).await;
                }
                Ok(Line::Truncated(_) | Line::Eof) | Err(_) => return Ok(()),
            };
            send_split(&self.outbox, answer).await?;
            self.start_watching();
            if self.rejected >= REJECTED_STATEMENTS_MAX {
                return Ok(());
            }
            next = lines.next().await;
        }
    }

    async fn answer(&mut self, request: Request) -> ServerMessage {
        match self.serve(request).await {
            Ok(answer) => answer,
            Err(Error::Key(why)) => {
                self.rejected += 1;
                self.record_rejection(&why).await;
                failed(&why)
            }
            Err(error) => failed(&error.to_string()),
        }
    }

    async fn serve(&mut self, request: Request) -> crate::Result<ServerMessage> {
        let queue = self.approvals.queue();
        Ok(match request {
            Request::Hello { nonce, client } => return self.hello(&nonce, &client),
            Request::List => {
                let questions = self.visible(queue.list());
                self.record_shown(&questions).await;
                ServerMessage::Questions { questions, more: false }
            }
            Request::Show { id } => {
                let question = Box::new(queue.show(&id)?);
                if !may_see(&self.approvals, self.peer.uid, &question) {
                    return Err(crate::queue::not_pending(&id));
                }
                self.record_shown(std::slice::from_ref(&question)).await;
                ServerMessage::Question { question }
            }
            Request::Watch => {
                let (questions, events) = queue.watch();
                let questions = self.visible(questions);
                self.record_shown(&questions).await;
                self.to_watch = Some(events);
                ServerMessage::Questions { questions, more: false }
            }
            Request::Decide { statement, signature } => {
                let by = Submitter { name: self.name.clone(), uid: Some(self.peer.uid) };
                let (id, receipt) = queue.decide(Signed { statement, signature }, &by).await?;
                ServerMessage::Decided { id, receipt }
            }
            Request::Keys => {
                let list = self.approvals.verifier().list().map_err(|why| Error::Refused(why.to_string()))?;
                let now = unix_ms();
                let keys = list.approvers.iter().map(|approver| approver.info(now)).collect();
                ServerMessage::Keys { keys, host: self.host() }
            }
            Request::ChangeKey { statement, signature } => {
                let signed = Signed { statement, signature };
                let (verifier, name) = (self.approvals.verifier().clone(), self.name.clone());
                let change = move |tx: &mut outpost_ledger::LedgerTx<'_>| verifier.change(tx, &signed, &name);
                ServerMessage::KeyChanged { fingerprint: self.approvals.ledger().transact(change).await? }
            }
            Request::Grants => {
                let (ledger, verifier) = (self.approvals.ledger(), self.approvals.verifier());
                ServerMessage::Grants { grants: grants::list(ledger, verifier, self.visible_uids()).await? }
            }
            Request::Revoke { id } => {
                grants::revoke(self.approvals.ledger(), &id, &self.name, self.visible_uids()).await?;
                ServerMessage::Revoked { id }
            }
        })
    }

    fn host(&self) -> String {
        self.approvals.verifier().host().public().to_openssh().unwrap_or_default()
    }

    fn hello(&mut self, nonce: &str, client: &str) -> crate::Result<ServerMessage> {
        if nonce.len() > NONCE_BYTES_MAX {
            return Err(Error::Refused(format!("nonce too long: the limit is {NONCE_BYTES_MAX} bytes")));
        }
        let verifier = self.approvals.verifier();
        let head = self.approvals.ledger().head();
        let signature = verifier.host().sign(&signing::hello_message(nonce, &head))?;
        self.name = describe(self.peer, client);
        Ok(ServerMessage::Hello {
            name: self.name.clone(),
            host: self.host(),
            head: head.to_string(),
            signature: signing::base64(&signature),
            trusted: verifier.is_trusted_uid(self.peer.uid),
            approvers_file: verifier.root_file().map(|file| file.path().display().to_string()),
            old_secret: verifier.has_old_secret(),
        })
    }

    /// A filter for the users whose grants this client sees.
    fn visible_uids(&self) -> impl Fn(u32) -> bool + Send + use<> {
        let (all, own) = (self.approvals.sees_all(self.peer.uid), self.peer.uid);
        move |uid| all || uid == own
    }

    fn visible(&self, questions: Vec<Question>) -> Vec<Question> {
        let is_visible = |question: &Question| may_see(&self.approvals, self.peer.uid, question);
        questions.into_iter().filter(is_visible).collect()
    }

    fn start_watching(&mut self) {
        let Some(events) = self.to_watch.take() else { return };
        let watcher = Watcher {
            approvals: self.approvals.clone(),
            uid: self.peer.uid,
            outbox: self.outbox.clone(),
            name: self.name.clone(),
        };
        let shown = self.approvals.queue().list();
        let shown = self.visible(shown).into_iter().map(|question| question.id).collect();
        if let Some(before) = self.watcher.replace(tokio::spawn(watcher.watch(events, shown))) {
            before.abort();
        }
    }

    async fn record_shown(&self, questions: &[impl AsRef<Question>]) {
        for question in questions {
            self.approvals.queue().record_shown(&question.as_ref().id, &self.name).await;
        }
    }

    async fn record_rejection(&self, why: &str) {
        let data = json!({ "approver": self.name, "why": crate::display::escape_untrusted(why, 1000) });
        let recorded = self.approvals.ledger().transact(move |tx| tx.record(Event::Refused, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record a rejected statement");
        }
    }
}

/// Whether this user may see a question.
fn may_see(approvals: &Approvals, uid: u32, question: &Question) -> bool {
    let asker = question.uid.unwrap_or_else(outpost_sys::process::effective_uid);
    asker == uid || approvals.sees_all(uid)
}

/// The reply to a line that is not a valid request.
fn unknown_request(line: &[u8], error: &serde_json::Error) -> ServerMessage {
    let is_old = serde_json::from_slice::<serde_json::Value>(line)
        .is_ok_and(|asked| asked["do"] == "prove" || asked["do"] == "enroll" || !asked["secret"].is_null());
    match is_old {
        true => failed(OLD_SECRET_REFUSED),
        false => failed(&format!("malformed request to the approver socket: {error}")),
    }
}

impl AsRef<Question> for Question {
    fn as_ref(&self) -> &Question {
        self
    }
}

fn failed(why: &str) -> ServerMessage {
    ServerMessage::Failed { why: why.to_owned() }
}

/// Sends a message, split into several lines if it has many questions.
async fn send_split(outbox: &Outbox, answer: ServerMessage) -> Result<(), Closed> {
    match answer {
        ServerMessage::Questions { questions, .. } => {
            let mut parts = split_by_size(questions).into_iter().peekable();
            while let Some(questions) = parts.next() {
                let more = parts.peek().is_some();
                send(outbox, &ServerMessage::Questions { questions, more }).await?;
            }
            Ok(())
        }
        ServerMessage::Snapshot { questions } => {
            let mut parts = split_by_size(questions).into_iter();
            let questions = parts.next().unwrap_or_default();
            send(outbox, &ServerMessage::Snapshot { questions }).await?;
            for question in parts.flatten() {
                send(outbox, &ServerMessage::Asked { question: Box::new(question) }).await?;
            }
            Ok(())
        }
        answer => send(outbox, &answer).await,
    }
}

/// Splits questions into at least one part, in order. A part exceeds the limit only if a single question does.
fn split_by_size(questions: Vec<Question>) -> Vec<Vec<Question>> {
    let (mut parts, mut bytes) = (vec![Vec::new()], 0);
    for question in questions {
        let size = serde_json::to_vec(&question).map_or(0, |text| text.len());
        if bytes > 0 && bytes + size > QUESTIONS_BYTES_MAX {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.push(question);
        }
    }
    parts
}

async fn send(outbox: &Outbox, answer: &ServerMessage) -> Result<(), Closed> {
    let text = serde_json::to_vec(answer).unwrap_or_default();
    let write = |out: &mut Vec<u8>| {
        out.extend_from_slice(&text);
        out.push(b'\n');
    };
    outbox.send(write).await
}

/// Forwards events to one client.
struct Watcher {
    approvals: Approvals,
    uid: u32,
    outbox: Outbox,
    name: String,
}

impl Watcher {
    /// `shown` has the ids of the pending questions that the client has received.
    async fn watch(self, mut events: broadcast::Receiver<ServerMessage>, mut shown: HashSet<String>) {
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                // The client missed events: send a snapshot.
                Err(RecvError::Lagged(_)) => {
                    let (questions, newer) = self.approvals.queue().watch();
                    events = newer;
                    let is_visible = |question: &Question| may_see(&self.approvals, self.uid, question);
                    let questions: Vec<Question> = questions.into_iter().filter(is_visible).collect();
                    shown = questions.iter().map(|question| question.id.clone()).collect();
                    ServerMessage::Snapshot { questions }
                }
                Err(RecvError::Closed) => return,
            };
            match &event {
                ServerMessage::Asked { question } if !may_see(&self.approvals, self.uid, question) => {
                    continue;
                }
                ServerMessage::Asked { question } => {
                    shown.insert(question.id.clone());
                    self.approvals.queue().record_shown(&question.id, &self.name).await;
                }
                ServerMessage::Settled { id, .. } if !shown.remove(id) => continue,
                _ => {}
            }
            if send_split(&self.outbox, event).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
