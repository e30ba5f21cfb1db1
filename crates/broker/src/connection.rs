//! One connection: reads one request line, applies the contract's checks in their order, writes one response line.

use crate::active_request::ActiveRequest;
use crate::line::{self, ReadOutcome};
use crate::peer::Peer;
use crate::pinned_request::{PinnedRequest, ResolveError};
use crate::records::{self, Admission, Authorization, Basis, IdKey, RequestRecord};
use crate::requester::Requester;
use crate::server::{CONNECTION_ROLE, Notice, Server};
use crate::wire::{Action, Request, Response, Status};
use crate::{forward, freshness, parse, policy, question, run, validate};
use jiff::Timestamp;
use outpost_approvals::display;
use outpost_approvals::rules::Ruling;
use outpost_ledger::BootInstant;
use outpost_ledger::audit::Event;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;
use tracing::Instrument;

/// Longest request id in a log line.
const LOGGED_CHARS_MAX: usize = 100;

/// Longest command of a refused request in the audit chain.
const RECORDED_CHARS_MAX: usize = 4000;

pub(crate) async fn serve(server: Arc<Server>, stream: UnixStream) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(errno) => return tracing::warn!(%errno, "connection refused: cannot read the peer's credentials"),
    };
    let Some(_connection) = server.connections.acquire(peer.uid) else {
        let busy = Response::error("", "server busy: too many connections of this user");
        return line::write(&stream, &busy).await;
    };
    let line = match line::read(&stream).await {
        ReadOutcome::Line(line) => line,
        ReadOutcome::Empty => return,
        ReadOutcome::Rejected(message) => {
            line::write(&stream, &Response::error("", message)).await;
            return line::discard(&stream).await;
        }
    };
    let Some(_in_flight) = server.acquire_in_flight(peer.uid) else {
        let busy = Response::error("", "server busy: too many in-flight requests");
        return line::write(&stream, &busy).await;
    };
    let request = match parse::request(&line) {
        Ok(request) => request,
        Err(response) => return line::write(&stream, &response).await,
    };
    if let Some(guard_paths) = forward::guard_for(&server, &request) {
        return forward::forward(&server, stream, &request.id, line, &guard_paths).await;
    }
    drop(line);
    let span =
        tracing::info_span!("broker", request = %display::escape_untrusted(&request.id, LOGGED_CHARS_MAX));
    let connection = Connection { server: &server, stream: &stream, peer };
    let Some(response) = connection.handle(request).instrument(span).await else { return };
    line::write(&stream, &response).await;
}

/// The parts of a request that the audit event of its refusal contains.
struct RefusedRequest {
    id: String,
    action: Action,
    /// Cut to [`RECORDED_CHARS_MAX`]. Empty without a pipeline.
    command: String,
}

impl RefusedRequest {
    fn of(request: &Request) -> RefusedRequest {
        let rights = if request.privileged { "as ROOT" } else { "with own rights" };
        let command = match request.pipeline.is_empty() {
            true => String::new(),
            false => format!("{rights} {}", display::command(&request.pipeline)),
        };
        let command = display::escape_untrusted(&command, RECORDED_CHARS_MAX);
        RefusedRequest { id: request.id.clone(), action: request.action, command }
    }
}

struct Connection<'a> {
    server: &'a Arc<Server>,
    stream: &'a UnixStream,
    peer: Peer,
}

impl Connection<'_> {
    /// The response. None if the client disconnected.
    async fn handle(&self, request: Request) -> Option<Response> {
        let id = request.id.clone();
        if let Err(error) = self.server.rate_limiter.count_line(&self.peer, Instant::now()) {
            return Some(Response::error(&id, error.to_string()));
        }
        let settings = self.server.settings();
        let refused = RefusedRequest::of(&request);
        if let Err(error) = validate::check(&request, &settings.request_limits) {
            return Some(self.refuse(&refused, error.to_string()).await);
        }
        let time = match freshness::check(&request.time, Timestamp::now(), settings.freshness) {
            Ok(time) => time,
            Err(error) => return Some(self.refuse(&refused, error.to_string()).await),
        };
        if request.action == Action::Exec
            && let Err(error) =
                self.server.rate_limiter.count_request(&self.peer, &request.session, Instant::now())
        {
            return Some(Response::error(&id, error.to_string()));
        }
        let (action, session) = (request.action, request.session.clone());
        let count = request.pipeline.len();
        let ssh_agent = settings.ssh_agent.clone();
        let rules = self.server.approvals.rules();
        let peer = self.peer.clone();
        let resolved = tokio::task::spawn_blocking(move || {
            let unresolved = request.clone();
            let requester = Requester::of(&peer).map_err(|reason| (ResolveError::Refused(reason), None))?;
            let denial = || {
                let denial = || policy::denial_of_unresolved(&unresolved, &requester, &rules);
                requester.with_file_access(denial).ok().flatten()
            };
            PinnedRequest::resolve(request, ssh_agent, &requester).map_err(|error| (error, denial()))
        });
        let (error, denial) = match (resolved.await, action) {
            (Err(_), _) => return Some(Response::error(&id, "the daemon is stopping")),
            (Ok(Err((ResolveError::Variable(message), _))), _) => {
                return Some(self.refuse(&refused, message).await);
            }
            (Ok(Ok(pinned)), Action::Exec) => return self.decide(pinned, time).await,
            (Ok(Ok(_)), _) => (None, None),
            (Ok(Err((error, denial))), _) => (Some(error), denial),
        };
        if let Err(message) = self.claim_id(&id, time).await {
            return Some(self.refuse(&refused, message).await);
        }
        if let Some(message) = denial.filter(|_| action == Action::Exec) {
            self.record_refusal(&refused, &message).await;
            return Some(Response { message: Some(message), ..Response::new(&id, Status::Denied) });
        }
        Some(match (action, error) {
            (Action::Ping, _) => pong(&id),
            (Action::Stop, _) => self.stop(&refused, session).await,
            (Action::Exec, Some(ResolveError::Program(at, errno))) => {
                self.record_refusal(&refused, "no such program").await;
                run::not_executable_response(&id, count, at, errno)
            }
            (Action::Exec, Some(ResolveError::Refused(message) | ResolveError::Variable(message))) => {
                self.refuse(&refused, message).await
            }
            (Action::Exec, None) => Response::error(&id, "the daemon is stopping"),
        })
    }

    /// The key of a client's id in the ledger. Includes the uid if several users are served: their ids may collide.
    fn id_key(&self, id: &str) -> IdKey {
        IdKey { user: self.server.serves_all_users.then_some(self.peer.uid), id: id.to_owned() }
    }

    async fn claim_id(&self, id: &str, time: Timestamp) -> Result<(), String> {
        let (id, window) = (self.id_key(id), self.server.settings().freshness.past);
        let claimed =
            self.server.approvals.ledger().transact(move |tx| records::claim_id(tx, &id, time, window));
        claimed.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Records a refusal and returns its error response.
    async fn refuse(&self, refused: &RefusedRequest, message: String) -> Response {
        self.record_refusal(refused, &message).await;
        Response::error(&refused.id, message)
    }

    /// Pings are not recorded: clients send them to probe which fields the daemon supports.
    async fn record_refusal(&self, refused: &RefusedRequest, why: &str) {
        if refused.action == Action::Ping {
            return;
        }
        let data = json!({
            "id": display::escape_untrusted(&refused.id, 200), "command": refused.command,
            "why": display::escape_untrusted(why, 1000), "peer": self.peer,
        });
        let recorded =
            self.server.approvals.ledger().transact(move |tx| tx.record(Event::Refused, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record a refusal");
        }
    }

    async fn stop(&self, refused: &RefusedRequest, session: String) -> Response {
        if !self.server.settings().client_may_stop {
            let message = "this daemon is not ended by its clients; use `outpost stop`".to_owned();
            return self.refuse(refused, message).await;
        }
        // Send the response first: the process exits after the notice.
        line::write(self.stream, &pong_without_message(&refused.id)).await;
        self.server.notify(Notice::StopRequested { session });
        std::future::pending().await
    }

    /// Applies the rules, then the auto-approval. Otherwise a grant or a human decides.
    async fn decide(&self, pinned: PinnedRequest, time: Timestamp) -> Option<Response> {
        let id = pinned.request.id.clone();
        let rules = self.server.approvals.rules();
        let verdict = policy::evaluate(&pinned, &rules);
        let authorization = match verdict.ruling {
            Ruling::Deny => {
                let message = policy::denial_message(&rules, &verdict.rules);
                return Some(self.deny_by_rule(&pinned, time, message).await);
            }
            // Rules match neither agent forwarding nor the invoked name. SSH keys need a human's approval. A symlink
            // to a multi-call binary selects a different command than the one that the rule allows.
            Ruling::Allow if pinned.request.forward_agent || pinned.is_renamed() => None,
            Ruling::Allow => {
                let basis = Basis::Rules { sha256: rules.sha256().to_owned() };
                let decision = format!("rule:{}", verdict.rules.join(","));
                Some(Authorization { decision, by: "rules".into(), basis })
            }
            // An explicit `ask` rule takes precedence over the auto-approval.
            Ruling::Ask
                if verdict.rules.is_empty()
                    && self.server.auto_approves_unprivileged()
                    && !pinned.request.privileged =>
            {
                let by = "the terminal, until the daemon ends".into();
                Some(Authorization { decision: "session".into(), by, basis: Basis::Session })
            }
            Ruling::Ask => None,
        };
        let pending = match authorization {
            Some(_) => None,
            None => {
                let limiter = &self.server.rate_limiter;
                let reserved = limiter
                    .check_recent_denial(&pinned.digest, Instant::now())
                    .and_then(|()| limiter.reserve_pending(&self.peer, &pinned.request.session));
                match reserved {
                    Ok(pending) => Some(pending),
                    Err(error) => return Some(Response::error(&id, error.to_string())),
                }
            }
        };
        let response = self.admit(pinned, time, authorization).await;
        drop(pending);
        response
    }

    async fn deny_by_rule(&self, pinned: &PinnedRequest, time: Timestamp, message: String) -> Response {
        let id = &pinned.request.id;
        if let Err(message) = self.claim_id(id, time).await {
            return self.refuse(&RefusedRequest::of(&pinned.request), message).await;
        }
        let mut event = records::received_event("", pinned, &self.peer);
        event["denied"] = json!(message);
        let recorded =
            self.server.approvals.ledger().transact(move |tx| tx.record(Event::Refused, &event)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record a denial");
        }
        Response { message: Some(message), ..Response::new(id, Status::Denied) }
    }

    /// Records the request in the ledger, then runs it or asks a human.
    async fn admit(
        &self,
        pinned: PinnedRequest,
        time: Timestamp,
        authorization: Option<Authorization>,
    ) -> Option<Response> {
        let (id, refused) = (pinned.request.id.clone(), RefusedRequest::of(&pinned.request));
        let server = self.server;
        let connection = match self.hand_to_keeper().await {
            Ok(connection) => connection,
            Err(message) => return Some(Response::error(&id, message)),
        };
        let record = RequestRecord {
            key: uuid::Uuid::new_v4().to_string(),
            request: pinned.request.clone(),
            peer: self.peer.clone(),
            time,
            digest: pinned.digest.clone(),
            connection,
            question: None,
            authorization: authorization.clone(),
            started: false,
        };
        let mut event = records::received_event(&record.key, &pinned, &self.peer);
        let settings = server.settings();
        let timeout = settings.unseen_timeout.unwrap_or(settings.ask_timeout);
        let question = authorization.is_none().then(|| question::build(&pinned, &self.peer, time, timeout));
        if let Some(question) = &question {
            event["question"] = json!(question.id);
        }
        let to_ask = question.clone().map(|question| (question, BootInstant::now().after(timeout)));
        let window = settings.freshness.past;
        let mut active = ActiveRequest { record: record.clone(), pinned };
        let (id_key, approvals) = (self.id_key(&id), server.approvals.clone());
        let admitted = server
            .approvals
            .ledger()
            .transact(move |tx| records::admit(tx, &approvals, record, event, to_ask, (&id_key, window)));
        let response = match (admitted.await, question) {
            (Err(error), _) => Some(Response::error(&id, error.to_string())),
            (Ok(Admission::DuplicateId), _) => {
                Some(self.refuse(&refused, records::duplicate_message(&id)).await)
            }
            (Ok(Admission::IdsExhausted), _) => {
                Some(self.refuse(&refused, records::ids_exhausted_message()).await)
            }
            (Ok(Admission::Authorized(authorization)), _) => {
                active.record.authorization = Some(authorization);
                active.record.started = true;
                active.run(server, self.stream, false).await
            }
            (Ok(Admission::NeedsDecision), Some(question)) => {
                active.record.question = Some(question.id.clone());
                let asked = server.approvals.queue().publish(question, timeout);
                active.wait(server, self.stream, asked).await
            }
            (Ok(Admission::NeedsDecision), None) => Some(Response::error(&id, "there was nothing to ask")),
        };
        let _shutting_down = server.engine.drop_kept(connection).await;
        response
    }

    /// Gives the keeper a copy of the connection, so that the next worker can send the response.
    async fn hand_to_keeper(&self) -> Result<u64, String> {
        let copy = outpost_sys::file::duplicate(self.stream).map_err(|errno| errno.to_string())?;
        self.server.engine.keep(CONNECTION_ROLE, copy).await.map_err(|error| error.to_string())
    }
}

fn pong_without_message(id: &str) -> Response {
    Response { stdout: Some(String::new()), ..Response::new(id, Status::Ok) }
}

fn pong(id: &str) -> Response {
    Response { message: Some("pong".into()), ..pong_without_message(id) }
}
