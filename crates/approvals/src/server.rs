//! The approver socket: who may decide, and what they ask for.

use crate::audit::Event;
use crate::desk::Approvals;
use crate::question::{Decision, Question};
use crate::wire::{Answer, QUESTIONS_BYTES_MAX, Request};
use crate::{Error, grants};
use outpost_sys::message::{self, Peer};
use outpost_wire::{Closed, Line, Lines, Outbox};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::{self, error::RecvError};

/// Connections at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// The longest line of an approver's client.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Wrong secrets that one connection may try.
const PROOFS_MAX: usize = 3;

/// Serves approvers for ever.
pub async fn serve(listener: UnixListener, approvals: Approvals) {
    let admitted = approvals.clone();
    let admits = move |stream: &UnixStream| {
        message::peer(stream).is_ok_and(|peer| admitted.is_own(peer.uid) || admitted.is_approver(peer.uid))
    };
    let serve = |stream| one(approvals.clone(), stream);
    outpost_wire::accept_admitted(listener, CONNECTIONS_MAX, admits, serve).await;
}

async fn one(approvals: Approvals, stream: UnixStream) {
    let Ok(peer) = message::peer(&stream) else { return };
    let Ok((reader, writer)) = outpost_wire::split(stream) else { return };
    let (outbox, write) = Outbox::new(writer);
    tokio::spawn(write);
    let name = approvals.is_approver(peer.uid).then(|| describe(peer, ""));
    let mut connection = Connection {
        approvals,
        peer,
        outbox: outbox.clone(),
        name,
        proofs: 0,
        watcher: None,
        to_watch: None,
    };
    let _gone = connection.converse(Lines::new(reader, REQUEST_BYTES_MAX)).await;
    if let Some(watcher) = connection.watcher.take() {
        watcher.abort();
    }
    outbox.close();
}

/// How the audit calls an approver. The program's name is its own word.
fn describe(peer: Peer, client: &str) -> String {
    let client = crate::display::claim(client, 40);
    let with = if client.is_empty() { String::new() } else { format!(" with {client}") };
    format!("uid {} pid {}{with}", peer.uid, peer.pid)
}

struct Connection {
    approvals: Approvals,
    peer: Peer,
    outbox: Outbox,
    /// Set for one that may decide.
    name: Option<String>,
    proofs: usize,
    watcher: Option<tokio::task::JoinHandle<()>>,
    /// To be watched as soon as the answer with everything there was has been sent.
    to_watch: Option<broadcast::Receiver<Answer>>,
}

impl Connection {
    async fn converse(&mut self, mut lines: Lines) -> Result<(), Closed> {
        loop {
            let answer = match lines.next().await {
                Ok(Line::Whole(line)) => match serde_json::from_slice(line) {
                    Ok(request) => self.answer(request).await,
                    Err(error) => failed(&format!("this is no request to the approver socket: {error}")),
                },
                Ok(Line::TooLong) => {
                    return send(&self.outbox, &failed("a request has at most 64 KiB")).await;
                }
                Ok(Line::Cut(_) | Line::End) | Err(_) => return Ok(()),
            };
            send_whole(&self.outbox, answer).await?;
            self.begin_to_watch();
            if self.proofs >= PROOFS_MAX {
                return Ok(());
            }
        }
    }

    async fn answer(&mut self, request: Request) -> Answer {
        let done = match request {
            Request::Prove { secret, client } => return self.prove(secret.as_deref(), &client).await,
            Request::Enroll => self.enroll().await,
            request => match self.name.clone() {
                Some(name) => self.serve(request, &name).await,
                None => Err(self.unproven()),
            },
        };
        done.unwrap_or_else(refused)
    }

    async fn serve(&mut self, request: Request, name: &str) -> crate::Result<Answer> {
        let queue = self.approvals.queue();
        Ok(match request {
            Request::Prove { .. } | Request::Enroll => failed("asked for in the wrong place"),
            Request::List => {
                let questions = queue.list();
                self.seen(&questions, name).await;
                Answer::Questions { questions, more: false }
            }
            Request::Show { id } => {
                let question = Box::new(queue.show(&id)?);
                self.seen(std::slice::from_ref(&question), name).await;
                Answer::Question { question }
            }
            Request::Watch => {
                let (questions, events) = queue.watch();
                self.seen(&questions, name).await;
                self.to_watch = Some(events);
                Answer::Questions { questions, more: false }
            }
            Request::Decide { id, digest, allow, note, remember } => {
                let decision = Decision { allow, note, remember };
                queue.decide(&id, &digest, decision, name).await?;
                Answer::Decided { id }
            }
            Request::Grants => Answer::Grants { grants: grants::list(self.approvals.ledger()).await? },
            Request::Revoke { id } => {
                grants::revoke(self.approvals.ledger(), &id, name).await?;
                Answer::Revoked { id }
            }
        })
    }

    fn begin_to_watch(&mut self) {
        let (Some(events), Some(name)) = (self.to_watch.take(), self.name.clone()) else { return };
        let watching = watch(self.approvals.clone(), events, self.outbox.clone(), name);
        if let Some(before) = self.watcher.replace(tokio::spawn(watching)) {
            before.abort();
        }
    }

    async fn seen(&self, questions: &[impl AsRef<Question>], name: &str) {
        for question in questions {
            self.approvals.queue().shown(&question.as_ref().id, name).await;
        }
    }

    async fn prove(&mut self, secret: Option<&str>, client: &str) -> Answer {
        let by_kernel = self.approvals.is_approver(self.peer.uid);
        let by_secret = secret.is_some_and(|secret| self.approvals.verifier().accepts(secret));
        let name = describe(self.peer, client);
        if by_kernel || by_secret {
            self.name = Some(name.clone());
            return Answer::Welcome { name };
        }
        if secret.is_some() {
            self.proofs += 1;
            let data = json!({ "approver": name, "why": "wrong secret" });
            let recorded =
                self.approvals.ledger().write(move |books| books.record(Event::Refused, &data)).await;
            if let Err(error) = recorded {
                tracing::warn!(%error, "a wrong secret is not recorded");
            }
            return failed("this is not the approver's secret");
        }
        refused(self.unproven())
    }

    /// What stands between this connection and a decision.
    fn unproven(&self) -> Error {
        match self.approvals.verifier().is_set() {
            true => Error::SecretWanted(
                "the approver's secret is needed: this user may also be the one who asks".into(),
            ),
            false => Error::Refused(
                "there is no approver's secret yet, and this user may also be the one who asks; \
                 make one with `outpost approvals enroll`"
                    .into(),
            ),
        }
    }

    /// The first one is made for whoever asks first, and recorded; a new one for who knows the old.
    async fn enroll(&mut self) -> crate::Result<Answer> {
        if self.name.is_none() && self.approvals.verifier().is_set() {
            return Err(Error::SecretWanted(
                "there is an approver's secret already; prove that you know it to get a new one".into(),
            ));
        }
        let name = describe(self.peer, "");
        let data = json!({ "enrolled": name });
        let recorded = self.approvals.ledger().write(move |books| {
            books.record(Event::Decided, &data)?;
            books.must_last();
            Ok(())
        });
        recorded.await?;
        let secret = self.approvals.verifier().renew()?;
        self.name = Some(name);
        Ok(Answer::Enrolled { secret })
    }
}

impl AsRef<Question> for Question {
    fn as_ref(&self) -> &Question {
        self
    }
}

fn refused(error: Error) -> Answer {
    match error {
        Error::SecretWanted(why) => Answer::Failed { why, secret_wanted: true },
        error => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> Answer {
    Answer::Failed { why: why.to_owned(), secret_wanted: false }
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

async fn watch(approvals: Approvals, mut events: broadcast::Receiver<Answer>, outbox: Outbox, name: String) {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            // Too far behind: everything anew.
            Err(RecvError::Lagged(_)) => {
                let (questions, newer) = approvals.queue().watch();
                events = newer;
                Answer::Anew { questions }
            }
            Err(RecvError::Closed) => return,
        };
        if let Answer::Asked { question } = &event {
            approvals.queue().shown(&question.id, &name).await;
        }
        if send_whole(&outbox, event).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(id: usize, bytes: usize) -> Question {
        Question {
            id: id.to_string(),
            face: String::new(),
            digest: String::new(),
            title: "x".repeat(bytes),
            sections: Vec::new(),
            warnings: Vec::new(),
            privileged: false,
            rememberable: false,
            uid: None,
            asked_ms: 0,
            deadline_ms: 0,
        }
    }

    #[test]
    fn questions_that_do_not_fit_into_a_line_are_told_in_several() {
        assert_eq!(in_parts(Vec::new()), [Vec::new()]);
        let sizes = [1, 1, QUESTIONS_BYTES_MAX * 2, 1, QUESTIONS_BYTES_MAX / 2, QUESTIONS_BYTES_MAX / 2, 1];
        let all: Vec<Question> = sizes.iter().enumerate().map(|(id, bytes)| question(id, *bytes)).collect();
        let parts = in_parts(all.clone());
        let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1, 2, 2]);
        assert_eq!(parts.concat(), all);
    }
}
