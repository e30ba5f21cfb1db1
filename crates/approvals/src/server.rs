//! The approver socket: what each user sees, and what happens to the decisions that are submitted.

use crate::audit::Event;
use crate::desk::Approvals;
use crate::question::Question;
use crate::queue::Submitter;
use crate::signing::{self, Signed};
use crate::silent::{Places, Silent};
use crate::trust::OLD_SECRET_REFUSED;
use crate::wire::{Answer, QUESTIONS_BYTES_MAX, Request};
use crate::{Error, grants, unix_ms};
use outpost_sys::message::{self, Peer};
use outpost_wire::{Closed, Line, Lines, Outbox, PerUser};
use serde_json::json;
use std::collections::HashSet;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::{self, error::RecvError};

/// Connections of one user, and of all users but root.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_OF_USERS_MAX: usize = 4096;

/// Connections at once: more than all users but root may have.
const CONNECTIONS_MAX: usize = CONNECTIONS_OF_USERS_MAX + CONNECTIONS_PER_USER_MAX;

/// The longest line of an approver's client.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Statements that do not count, of one connection.
const REFUSED_MAX: usize = 3;

/// The longest nonce.
const NONCE_BYTES_MAX: usize = 256;

/// Serves approvers for ever.
pub async fn serve(listener: UnixListener, approvals: Approvals) {
    let admitted = approvals.clone();
    let admits = move |stream: &UnixStream| message::peer(stream).is_ok_and(|peer| admitted.admits(peer.uid));
    let (places, users) = (Places::new(CONNECTIONS_PER_USER_MAX), PerUser::new(CONNECTIONS_OF_USERS_MAX));
    let serve = |stream| one(approvals.clone(), stream, places.clone(), users.clone());
    outpost_wire::accept_admitted(listener, CONNECTIONS_MAX, admits, serve).await;
}

async fn one(approvals: Approvals, stream: UnixStream, places: Places, users: PerUser) {
    let Ok(peer) = message::peer(&stream) else { return };
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, write) = Outbox::new(writer);
    tokio::spawn(write);
    let of_users = (peer.uid != 0).then(|| users.place(1));
    let silent = places.admit(peer.uid).filter(|_| of_users.as_ref().is_none_or(Option::is_some));
    match silent {
        None => {
            let _gone = send(&outbox, &failed("too many connections of this user")).await;
        }
        Some(silent) => {
            let mut connection = Connection {
                approvals,
                peer,
                outbox: outbox.clone(),
                name: describe(peer, ""),
                refused: 0,
                watcher: None,
                to_watch: None,
            };
            let _gone = connection.converse(Lines::new(reader, REQUEST_BYTES_MAX), silent).await;
            if let Some(watcher) = connection.watcher.take() {
                watcher.abort();
            }
        }
    }
    outbox.close();
}

/// How the audit names a client. The program's name is its own word.
fn describe(peer: Peer, client: &str) -> String {
    let client = crate::display::claim(client, 40);
    let with = if client.is_empty() { String::new() } else { format!(" with {client}") };
    format!("uid {} pid {}{with}", peer.uid, peer.pid)
}

struct Connection {
    approvals: Approvals,
    peer: Peer,
    outbox: Outbox,
    /// How the audit names it.
    name: String,
    /// Statements that did not count.
    refused: usize,
    watcher: Option<tokio::task::JoinHandle<()>>,
    /// To be watched as soon as the answer with everything there was has been sent.
    to_watch: Option<broadcast::Receiver<Answer>>,
}

impl Connection {
    async fn converse(&mut self, mut lines: Lines, mut silent: Silent) -> Result<(), Closed> {
        let first = tokio::select! {
            first = lines.next() => first,
            _over = &mut silent.over => return Ok(()),
        };
        let Some(_place) = silent.speak() else { return Ok(()) };
        let mut next = first;
        loop {
            let answer = match next {
                Ok(Line::Whole(line)) => match serde_json::from_slice(line) {
                    Ok(request) => self.answer(request).await,
                    Err(error) => misread(line, &error),
                },
                Ok(Line::TooLong) => {
                    return send(&self.outbox, &failed("a request has at most 64 KiB")).await;
                }
                Ok(Line::Cut(_) | Line::End) | Err(_) => return Ok(()),
            };
            send_whole(&self.outbox, answer).await?;
            self.begin_to_watch();
            if self.refused >= REFUSED_MAX {
                return Ok(());
            }
            next = lines.next().await;
        }
    }

    async fn answer(&mut self, request: Request) -> Answer {
        match self.serve(request).await {
            Ok(answer) => answer,
            Err(Error::Key(why)) => {
                self.refused += 1;
                self.record_refusal(&why).await;
                failed(&why)
            }
            Err(error) => failed(&error.to_string()),
        }
    }

    async fn serve(&mut self, request: Request) -> crate::Result<Answer> {
        let queue = self.approvals.queue();
        Ok(match request {
            Request::Hello { nonce, client } => return self.hello(&nonce, &client),
            Request::List => {
                let questions = self.visible(queue.list());
                self.seen(&questions).await;
                Answer::Questions { questions, more: false }
            }
            Request::Show { id } => {
                let question = Box::new(queue.show(&id)?);
                if !sees(&self.approvals, self.peer.uid, &question) {
                    return Err(crate::queue::gone(&id));
                }
                self.seen(std::slice::from_ref(&question)).await;
                Answer::Question { question }
            }
            Request::Watch => {
                let (questions, events) = queue.watch();
                let questions = self.visible(questions);
                self.seen(&questions).await;
                self.to_watch = Some(events);
                Answer::Questions { questions, more: false }
            }
            Request::Decide { statement, signature } => {
                let by = Submitter { name: self.name.clone(), uid: Some(self.peer.uid) };
                let (id, receipt) = queue.decide(Signed { statement, signature }, &by).await?;
                Answer::Decided { id, receipt }
            }
            Request::Keys => {
                let list = self.approvals.trust().list().map_err(Error::Refused)?;
                let now = unix_ms();
                let keys = list.approvers.iter().map(|approver| approver.listed(now)).collect();
                Answer::Keys { keys, host: self.host() }
            }
            Request::ChangeKey { statement, signature } => {
                let signed = Signed { statement, signature };
                let (trust, name) = (self.approvals.trust().clone(), self.name.clone());
                let change = move |books: &mut crate::Books<'_>| trust.change(books, &signed, &name);
                Answer::KeyChanged { fingerprint: self.approvals.ledger().write(change).await? }
            }
            Request::Grants => {
                let (ledger, trust) = (self.approvals.ledger(), self.approvals.trust());
                Answer::Grants { grants: grants::list(ledger, trust, self.sight()).await? }
            }
            Request::Revoke { id } => {
                grants::revoke(self.approvals.ledger(), &id, &self.name, self.sight()).await?;
                Answer::Revoked { id }
            }
        })
    }

    fn host(&self) -> String {
        self.approvals.trust().host().public().to_openssh().unwrap_or_default()
    }

    fn hello(&mut self, nonce: &str, client: &str) -> crate::Result<Answer> {
        if nonce.len() > NONCE_BYTES_MAX {
            return Err(Error::Refused(format!("a nonce has at most {NONCE_BYTES_MAX} bytes")));
        }
        let trust = self.approvals.trust();
        let head = self.approvals.ledger().head();
        let signature = trust.host().sign(&signing::hello(nonce, &head))?;
        self.name = describe(self.peer, client);
        Ok(Answer::Hello {
            name: self.name.clone(),
            host: self.host(),
            head: head.to_string(),
            signature: signing::base64(&signature),
            trusted: trust.trusts(self.peer.uid),
            approvers_file: trust.root_file().map(|file| file.path().display().to_string()),
            old_secret: trust.has_old_secret(),
        })
    }

    /// Which users' grants this client sees.
    fn sight(&self) -> impl Fn(u32) -> bool + Send + use<> {
        let (all, own) = (self.approvals.sees_all(self.peer.uid), self.peer.uid);
        move |uid| all || uid == own
    }

    fn visible(&self, questions: Vec<Question>) -> Vec<Question> {
        let seen = |question: &Question| sees(&self.approvals, self.peer.uid, question);
        questions.into_iter().filter(seen).collect()
    }

    fn begin_to_watch(&mut self) {
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

    async fn seen(&self, questions: &[impl AsRef<Question>]) {
        for question in questions {
            self.approvals.queue().shown(&question.as_ref().id, &self.name).await;
        }
    }

    async fn record_refusal(&self, why: &str) {
        let data = json!({ "approver": self.name, "why": crate::display::claim(why, 1000) });
        let recorded = self.approvals.ledger().write(move |books| books.record(Event::Refused, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "a refused statement is not recorded");
        }
    }
}

/// Whether a question is for the eyes of this user.
fn sees(approvals: &Approvals, uid: u32, question: &Question) -> bool {
    let asker = question.uid.unwrap_or_else(outpost_sys::limits::effective_uid);
    asker == uid || approvals.sees_all(uid)
}

/// The answer to a line that is no request.
fn misread(line: &[u8], error: &serde_json::Error) -> Answer {
    let is_old = serde_json::from_slice::<serde_json::Value>(line)
        .is_ok_and(|asked| asked["do"] == "prove" || asked["do"] == "enroll" || !asked["secret"].is_null());
    match is_old {
        true => failed(OLD_SECRET_REFUSED),
        false => failed(&format!("this is no request to the approver socket: {error}")),
    }
}

impl AsRef<Question> for Question {
    fn as_ref(&self) -> &Question {
        self
    }
}

fn failed(why: &str) -> Answer {
    Answer::Failed { why: why.to_owned() }
}

/// Sends what may be too much for one line as several.
async fn send_whole(outbox: &Outbox, answer: Answer) -> Result<(), Closed> {
    match answer {
        Answer::Questions { questions, .. } => {
            let mut parts = in_parts(questions).into_iter().peekable();
            while let Some(questions) = parts.next() {
                let more = parts.peek().is_some();
                send(outbox, &Answer::Questions { questions, more }).await?;
            }
            Ok(())
        }
        Answer::Anew { questions } => {
            let mut parts = in_parts(questions).into_iter();
            let questions = parts.next().unwrap_or_default();
            send(outbox, &Answer::Anew { questions }).await?;
            for question in parts.flatten() {
                send(outbox, &Answer::Asked { question: Box::new(question) }).await?;
            }
            Ok(())
        }
        answer => send(outbox, &answer).await,
    }
}

/// In order, at least one part, and none much larger than a line should be unless one question alone is.
fn in_parts(questions: Vec<Question>) -> Vec<Vec<Question>> {
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

async fn send(outbox: &Outbox, answer: &Answer) -> Result<(), Closed> {
    let text = serde_json::to_vec(answer).unwrap_or_default();
    let write = |out: &mut Vec<u8>| {
        out.extend_from_slice(&text);
        out.push(b'\n');
    };
    outbox.send(write).await
}

/// Passes events on to one client.
struct Watcher {
    approvals: Approvals,
    uid: u32,
    outbox: Outbox,
    name: String,
}

impl Watcher {
    /// `shown` are the questions that the client has been sent and that have not ended.
    async fn watch(self, mut events: broadcast::Receiver<Answer>, mut shown: HashSet<String>) {
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                // Too far behind: everything anew.
                Err(RecvError::Lagged(_)) => {
                    let (questions, newer) = self.approvals.queue().watch();
                    events = newer;
                    let seen = |question: &Question| sees(&self.approvals, self.uid, question);
                    let questions: Vec<Question> = questions.into_iter().filter(seen).collect();
                    shown = questions.iter().map(|question| question.id.clone()).collect();
                    Answer::Anew { questions }
                }
                Err(RecvError::Closed) => return,
            };
            match &event {
                Answer::Asked { question } if !sees(&self.approvals, self.uid, question) => continue,
                Answer::Asked { question } => {
                    shown.insert(question.id.clone());
                    self.approvals.queue().shown(&question.id, &self.name).await;
                }
                Answer::Settled { id, .. } if !shown.remove(id) => continue,
                _ => {}
            }
            if send_whole(&self.outbox, event).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
