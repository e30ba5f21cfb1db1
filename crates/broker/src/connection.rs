//! One connection: one line in, through every gate in the contract's order, one line out.

use crate::asker::Asker;
use crate::line::{self, Got};
use crate::order::{NoOrder, Order};
use crate::peer::Peer;
use crate::records::{self, Authority, Entered, Entry, IdKey, Why};
use crate::server::{CONNECTION_ROLE, Notice, Server};
use crate::under_way::UnderWay;
use crate::wire::{Action, Request, Response, Status};
use crate::{forward, freshness, judging, parse, question, run, validate};
use jiff::Timestamp;
use outpost_approvals::audit::Event;
use outpost_approvals::rules::Ruling;
use outpost_approvals::{Moment, display};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;
use tracing::Instrument;

/// Of an id, in the log.
const LOGGED_CHARS_MAX: usize = 100;

/// Of the command of a refused request, in the audit chain.
const RECORDED_CHARS_MAX: usize = 4000;

pub(crate) async fn serve(server: Arc<Server>, stream: UnixStream) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(errno) => return tracing::warn!(%errno, "nobody knows who a client is; it was turned away"),
    };
    let Some(_connection) = server.connections.place(peer.uid) else {
        let busy = Response::error("", "server busy: too many connections of this user");
        return line::write(&stream, &busy).await;
    };
    let line = match line::read(&stream).await {
        Got::Line(line) => line,
        Got::Silence => return,
        Got::Unusable(message) => {
            line::write(&stream, &Response::error("", message)).await;
            return line::discard(&stream).await;
        }
    };
    let Some(_place) = server.in_flight(peer.uid) else {
        let busy = Response::error("", "server busy: too many in-flight requests");
        return line::write(&stream, &busy).await;
    };
    let request = match parse::request(&line) {
        Ok(request) => request,
        Err(response) => return line::write(&stream, &response).await,
    };
    if let Some(places) = forward::wanted(&server, &request) {
        return forward::pass(&server, stream, &request.id, line, &places).await;
    }
    drop(line);
    let span = tracing::info_span!("broker", request = %display::claim(&request.id, LOGGED_CHARS_MAX));
    let handling = Handling { server: &server, stream: &stream, peer };
    let Some(response) = handling.handle(request).instrument(span).await else { return };
    line::write(&stream, &response).await;
}

/// What a record of a refusal needs to know of a request.
struct Refused {
    id: String,
    action: Action,
    /// What was to run, cut to [`RECORDED_CHARS_MAX`]; empty where nothing was.
    command: String,
}

impl Refused {
    fn of(request: &Request) -> Refused {
        let rights = if request.privileged { "as ROOT" } else { "with own rights" };
        let command = match request.pipeline.is_empty() {
            true => String::new(),
            false => format!("{rights} {}", display::command(&request.pipeline)),
        };
        let command = display::claim(&command, RECORDED_CHARS_MAX);
        Refused { id: request.id.clone(), action: request.action, command }
    }
}

struct Handling<'a> {
    server: &'a Arc<Server>,
    stream: &'a UnixStream,
    peer: Peer,
}

impl Handling<'_> {
    /// The answer; none for a client that has left.
    async fn handle(&self, request: Request) -> Option<Response> {
        let id = request.id.clone();
        if let Err(message) = self.server.meter.admit_line(&self.peer, Instant::now()) {
            return Some(Response::error(&id, message));
        }
        let settings = self.server.settings();
        let fresh = validate::check(&request, &settings.shape)
            .and_then(|()| freshness::check(&request.time, Timestamp::now(), settings.window));
        let time = match fresh {
            Ok(time) => time,
            Err(message) => return Some(self.refuse(&Refused::of(&request), message).await),
        };
        let refused = Refused::of(&request);
        if request.action == Action::Exec
            && let Err(message) = self.server.meter.admit(&self.peer, &request.session, Instant::now())
        {
            return Some(Response::error(&id, message));
        }
        let (action, session) = (request.action, request.session.clone());
        let count = request.pipeline.len();
        let agent = settings.agent.clone();
        let rules = self.server.approvals.rules();
        let peer = self.peer.clone();
        let made = tokio::task::spawn_blocking(move || {
            let unseen = request.clone();
            let asker = Asker::of(&peer).map_err(|reason| (NoOrder::Refused(reason), None))?;
            let denial = || asker.looking(|| judging::denial(&unseen, &asker, &rules)).ok().flatten();
            Order::make(request, agent, &asker).map_err(|no_order| (no_order, denial()))
        });
        let (no_order, denial) = match (made.await, action) {
            (Err(_), _) => return Some(Response::error(&id, "the daemon is ending")),
            (Ok(Err((NoOrder::Variable(message), _))), _) => {
                return Some(self.refuse(&refused, message).await);
            }
            (Ok(Ok(order)), Action::Exec) => return self.decide(order, time).await,
            (Ok(Ok(_)), _) => (None, None),
            (Ok(Err((no_order, denial))), _) => (Some(no_order), denial),
        };
        if let Err(message) = self.use_id(&id, time).await {
            return Some(self.refuse(&refused, message).await);
        }
        if let Some(message) = denial.filter(|_| action == Action::Exec) {
            self.record_refusal(&refused, &message).await;
            return Some(Response { message: Some(message), ..Response::new(&id, Status::Denied) });
        }
        Some(match (action, no_order) {
            (Action::Ping, _) => pong(&id),
            (Action::Stop, _) => self.stop(&refused, session).await,
            (Action::Exec, Some(NoOrder::Program(at, errno))) => {
                self.record_refusal(&refused, "no such program").await;
                run::not_executable(&id, count, at, errno)
            }
            (Action::Exec, Some(NoOrder::Refused(message) | NoOrder::Variable(message))) => {
                self.refuse(&refused, message).await
            }
            (Action::Exec, None) => Response::error(&id, "the daemon is ending"),
        })
    }

    /// Under which a client's id is remembered. Users choose ids independently of each other.
    fn id_key(&self, id: &str) -> IdKey {
        IdKey { user: self.server.any_user.then_some(self.peer.uid), id: id.to_owned() }
    }

    async fn use_id(&self, id: &str, time: Timestamp) -> Result<(), String> {
        let (id, window) = (self.id_key(id), self.server.settings().window.past);
        let used =
            self.server.approvals.ledger().write(move |books| records::use_id_once(books, &id, time, window));
        used.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// An error that is recorded.
    async fn refuse(&self, refused: &Refused, message: String) -> Response {
        self.record_refusal(refused, &message).await;
        Response::error(&refused.id, message)
    }

    /// A ping asks for nothing, so there is nothing to refuse: clients use it to learn what this daemon understands.
    async fn record_refusal(&self, refused: &Refused, why: &str) {
        if refused.action == Action::Ping {
            return;
        }
        let data = json!({
            "id": display::claim(&refused.id, 200), "command": refused.command,
            "why": display::claim(why, 1000), "peer": self.peer,
        });
        let recorded =
            self.server.approvals.ledger().write(move |books| books.record(Event::Refused, &data)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "a refusal is not recorded");
        }
    }

    async fn stop(&self, asked: &Refused, session: String) -> Response {
        let id = &asked.id;
        if !self.server.settings().stoppable {
            let message = "this daemon is not ended by its clients; use `outpost stop`".to_owned();
            return self.refuse(asked, message).await;
        }
        // The answer first: who asked waits for it.
        line::write(self.stream, &pong_without_message(id)).await;
        self.server.notify(Notice::Stopped { session });
        std::future::pending().await
    }

    /// By a rule, by what a human allowed before, or by asking one.
    async fn decide(&self, order: Order, time: Timestamp) -> Option<Response> {
        let id = order.request.id.clone();
        let rules = self.server.approvals.rules();
        let verdict = judging::verdict(&order, &rules);
        let why = match verdict.ruling {
            Ruling::Deny => {
                let message = judging::message(&rules, &verdict.rules);
                return Some(self.deny_by_rule(&order, time, message).await);
            }
            // Rules do not know of agents: keys are not given away without a human. Nor of names: what a link makes of
            // a program with several is another command than the one that was allowed.
            Ruling::Allow if order.request.forward_agent || order.is_renamed() => None,
            Ruling::Allow => {
                let authority = Authority::Rules { sha256: rules.sha256().to_owned() };
                let decision = format!("rule:{}", verdict.rules.join(","));
                Some(Why { decision, by: "rules".into(), authority })
            }
            // What a rule says is to be asked about is asked about.
            Ruling::Ask
                if verdict.rules.is_empty() && self.server.is_unattended() && !order.request.privileged =>
            {
                let by = "the terminal, until the daemon ends".into();
                Some(Why { decision: "session".into(), by, authority: Authority::Session })
            }
            Ruling::Ask => None,
        };
        let place = match why {
            Some(_) => None,
            None => {
                let denied = self.server.meter.was_denied(&order.digest, Instant::now());
                match denied.and_then(|()| self.server.meter.place(&self.peer, &order.request.session)) {
                    Ok(place) => Some(place),
                    Err(message) => return Some(Response::error(&id, message)),
                }
            }
        };
        let answer = self.enter(order, time, why).await;
        drop(place);
        answer
    }

    async fn deny_by_rule(&self, order: &Order, time: Timestamp, message: String) -> Response {
        let id = &order.request.id;
        if let Err(message) = self.use_id(id, time).await {
            return self.refuse(&Refused::of(&order.request), message).await;
        }
        let mut record = records::received("", order, &self.peer);
        record["denied"] = json!(message);
        let recorded =
            self.server.approvals.ledger().write(move |books| books.record(Event::Refused, &record)).await;
        if let Err(error) = recorded {
            tracing::warn!(%error, "a denial is not recorded");
        }
        Response { message: Some(message), ..Response::new(id, Status::Denied) }
    }

    /// Writes the request down and goes on as that says.
    async fn enter(&self, order: Order, time: Timestamp, why: Option<Why>) -> Option<Response> {
        let (id, refused) = (order.request.id.clone(), Refused::of(&order.request));
        let server = self.server;
        let connection = match self.keep().await {
            Ok(connection) => connection,
            Err(message) => return Some(Response::error(&id, message)),
        };
        let entry = Entry {
            key: uuid::Uuid::new_v4().to_string(),
            request: order.request.clone(),
            peer: self.peer.clone(),
            time,
            digest: order.digest.clone(),
            connection,
            question: None,
            why: why.clone(),
            started: false,
        };
        let mut record = records::received(&entry.key, &order, &self.peer);
        let settings = server.settings();
        let patience = settings.unseen_patience.unwrap_or(settings.ask_patience);
        let question = why.is_none().then(|| question::of(&order, &self.peer, time, patience));
        if let Some(question) = &question {
            record["question"] = json!(question.id);
        }
        let asks = question.clone().map(|question| (question, Moment::now().after(patience)));
        let window = settings.window.past;
        let mut under_way = UnderWay { entry: entry.clone(), order };
        let (id_key, approvals) = (self.id_key(&id), server.approvals.clone());
        let entered = server
            .approvals
            .ledger()
            .write(move |books| records::enter(books, &approvals, entry, record, asks, (&id_key, window)));
        let response = match (entered.await, question) {
            (Err(error), _) => Some(Response::error(&id, error.to_string())),
            (Ok(Entered::Duplicate), _) => Some(self.refuse(&refused, records::duplicate(&id)).await),
            (Ok(Entered::Full), _) => Some(self.refuse(&refused, records::full()).await),
            (Ok(Entered::MayRun(why)), _) => {
                under_way.entry.why = Some(why);
                under_way.entry.started = true;
                under_way.run(server, self.stream, false).await
            }
            (Ok(Entered::Asks), Some(question)) => {
                under_way.entry.question = Some(question.id.clone());
                let asked = server.approvals.queue().ask(question, patience);
                under_way.wait(server, self.stream, asked).await
            }
            (Ok(Entered::Asks), None) => Some(Response::error(&id, "there was nothing to ask")),
        };
        let _stopping = server.engine.let_go(connection).await;
        response
    }

    /// For a worker to come, which then answers in our place.
    async fn keep(&self) -> Result<u64, String> {
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
