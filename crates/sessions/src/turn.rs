//! One turn: a message goes to a CLI, and what the CLI writes becomes events until it has ended, however it ends.

use crate::agents::{Agent, Task};
use crate::asking::{self, Pending};
use crate::event::{Event, Kind};
use crate::face::Face;
use crate::kept::{self, Chosen, Kept};
use crate::limits::{EXIT_GRACE, Expired, Limits};
use crate::lines::Lines;
use crate::mark::{Mark, process_of};
use crate::output::{Ask, End, Output};
use crate::room::Room;
use crate::session::{Session, Stage, Stop, Turn};
use crate::starting::{self, NotStarted};
use crate::turn_log::Writer;
use crate::{Error, Result, closing, ending};
use outpost_engine::{Batch, Ended, Process, Stream};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

/// A line this long is taken apart on a thread where nobody waits.
const LONG_LINE_BYTES: usize = 256 * 1024;

/// Events of one turn take no more than this on disk. A CLI that writes more is stopped.
const EVENTS_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// A turn that runs.
struct Running<'a> {
    face: &'a Arc<Face>,
    session: &'a Arc<Session>,
    turn: Turn,
    writer: Writer,
    out: Output,
    agent: Agent,
    task: Task,
    process: u64,
    lines: Lines,
    is_begun: bool,
    said: u64,
    hushed: bool,
    speaks: bool,
    /// What it began with.
    conversation: Option<String>,
    questions: Vec<Pending>,
    /// Questions that the next mark will not know, and nobody will ask for after it.
    settled: Vec<String>,
    room: Room,
    outcomes: JoinSet<(Ask, String, outpost_approvals::Outcome)>,
    /// Its process was told to end.
    is_cut: bool,
}

/// Runs the turns of a session, one after the other, until there is none.
pub(crate) async fn drive(face: Arc<Face>, session: Arc<Session>, first: Turn) {
    let mut next = Some(first);
    while let Some(turn) = next {
        let number = turn.number;
        let span = tracing::info_span!("turn", session = session.id, turn = number);
        if let Err(error) = run(&face, &session, turn).instrument(span).await {
            tracing::error!(session = session.id, turn = number, %error, "a turn could not be recorded");
            closing::give_up(&session, number, &error);
            // Nobody would hear it any more.
            let process = starting::key(&session, process_of(&session, number));
            if let Some(process) = face.engine.find(&process).await {
                ending::end(&process).await;
            }
        }
        closing::close(&face, &session, number).await;
        next = if face.shutdown.is_stopping() { session.leave() } else { session.drive_on() };
    }
    face.rests(&session);
    session.changed();
}

async fn run(face: &Arc<Face>, session: &Arc<Session>, turn: Turn) -> Result<()> {
    {
        let state = session.state();
        let is_cancelled = state.turn(turn.number).is_none_or(|turn| turn.is_cancelled);
        // What is there was for a turn before this one, or for this one and an earlier worker.
        session.stop.send_if_modified(|why| match (*why, is_cancelled) {
            (Some(Stop::Interrupted), false) => why.take().is_some(),
            (None, true) => why.replace(Stop::Interrupted).is_none(),
            _ => false,
        });
    }
    let mut stop = session.stop.subscribe();
    let (mut running, known) = open(face, session, turn).await?;
    let process = match known {
        Some(process) if !running.is_begun && running.is_cancelled() => {
            running.interrupted().await?;
            ending::end(&process).await;
            return Ok(());
        }
        Some(process) => process,
        None if running.out.is_told() => return Ok(()),
        None if running.is_cancelled() => return running.interrupted().await,
        None => match starting::start(face, session, running.turn.number, running.task.clone()).await {
            Ok(process) => process,
            Err(failure) => return running.not_started(&failure).await,
        },
    };
    if running.out.is_told() {
        // Whoever reads it need not wait for what is left of its process.
        running.publish(None).await?;
        if !running.agent.stays() {
            let _too_long = tokio::time::timeout(EXIT_GRACE, process.exited()).await;
        }
        ending::end(&process).await;
        return Ok(());
    }
    running.begin(&process).await?;
    running.ask_again().await;
    let followed = running.follow(&process, &mut stop).await;
    if followed.is_err() {
        // Nobody could hear an answer: the turn's record cannot be written.
        running.withdraw_questions().await;
        running.forget_settled();
    }
    match followed? {
        Some(ended) => {
            running.finish(ended).await?;
            // What it left behind must not go on with a turn that is over.
            let _none_left = process.kill_tree().await;
        }
        None => {
            let task = Chosen::by(&running.task, running.out.sdk_id.clone());
            let from = running.lines.position();
            let kept = Kept::new(session, running.process, from, running.said, task, running.agent);
            kept::keep(face, kept);
        }
    }
    Ok(())
}

/// Opens the record of the turn, and finds its process if it has one.
async fn open<'a>(
    face: &'a Arc<Face>,
    session: &'a Arc<Session>,
    turn: Turn,
) -> Result<(Running<'a>, Option<Process>)> {
    // Finding out which version a CLI is takes a look at the disk, and perhaps a run of it.
    let (asking_face, asking) = (face.clone(), session.clone());
    let message = turn.message.clone();
    let task = tokio::task::spawn_blocking(move || starting::task(&asking_face, &asking, &message));
    let task = task.await.map_err(|_| Error::Stopped)?;
    let (mut writer, mark) = Writer::open(&session.dir, turn.number, |mark: &Mark| mark.bytes)?;
    let mark = match mark {
        Some(mark) => mark,
        None => {
            let kept = kept::take(face, session, &task).await;
            session.state().begins(turn.number, task.sdk_id.as_deref());
            let mark = Mark::begin(&turn, task.call(), kept.as_ref(), task.sdk_id.clone());
            // Before its process: a process is always understood by the one who was chosen for it.
            writer.mark(&mark)?;
            mark
        }
    };
    let known = face.engine.find(&starting::key(session, mark.process)).await;
    let mut out = Output::new(turn.number, mark.next_seq);
    (out.end, out.sdk_id, out.unknown_lines) = (mark.end, mark.sdk_id, mark.unknown_lines);
    (out.said, out.hushed) = (mark.unsaid.into_bytes(), mark.hushed);
    (out.early, out.is_open) = (mark.early, mark.next_seq > mark.first_seq);
    let running = Running {
        face,
        session,
        turn,
        writer,
        out,
        agent: mark.agent,
        task,
        process: mark.process,
        lines: Lines::new(mark.from, mark.stderr_tail),
        is_begun: mark.is_begun,
        said: mark.said,
        hushed: false,
        speaks: mark.speaks,
        conversation: mark.conversation,
        questions: mark.questions,
        settled: Vec::new(),
        room: Room::new(&face.asked),
        outcomes: JoinSet::new(),
        is_cut: false,
    };
    Ok((running, known))
}

impl Running<'_> {
    fn is_cancelled(&self) -> bool {
        let state = self.session.state();
        state.turn(self.turn.number).is_none_or(|turn| turn.is_cancelled)
    }

    async fn interrupted(&mut self) -> Result<()> {
        self.out.tell(&Event::new(Kind::Interrupted));
        self.publish(None).await
    }

    async fn not_started(&mut self, failure: &NotStarted) -> Result<()> {
        self.out.tell(&ending::not_started(self.session.cli, failure));
        self.publish(None).await
    }

    async fn begin(&mut self, process: &Process) -> Result<()> {
        if self.is_begun {
            // What an earlier worker was about to say.
            let said = std::mem::take(&mut self.out.said);
            self.say(process, said).await;
            return Ok(());
        }
        self.is_begun = true;
        if self.speaks {
            self.agent.begin(&self.task, &mut self.out);
        }
        self.publish(Some(process)).await
    }

    /// Questions that an earlier worker has asked, with what has been answered meanwhile.
    async fn ask_again(&mut self) {
        for pending in &self.questions {
            self.room.take_again(&pending.question, &pending.ask.input);
            asking::resume(self.face, pending, &mut self.outcomes).await;
        }
    }

    /// Everything between start and exit, or between a message and the end of its answer if the process then stays.
    async fn follow(
        &mut self,
        process: &Process,
        stop: &mut tokio::sync::watch::Receiver<Option<Stop>>,
    ) -> Result<Option<Ended>> {
        let mut subscription = process.subscribe(self.lines.position().after);
        let mut batch = Batch::default();
        let mut limits = Limits::new(self.face);
        let mut is_stopping = false;
        let cli = self.session.cli;
        loop {
            limits.note(&self.out.end);
            let event = tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some), if !is_stopping => Next::Stop,
                outcome = self.outcomes.join_next(), if !self.outcomes.is_empty() => Next::Answer(outcome),
                read = subscription.next(&mut batch) => Next::Read(read),
                _ = process.stdout_ended(), if !limits.is_mute() => Next::Mute,
                () = limits.wait(&self.out.end, self.questions.is_empty()) => Next::Late,
            };
            match event {
                Next::Stop => {
                    is_stopping = true;
                    self.cut_off(&Event::new(Kind::Interrupted), process).await?;
                }
                Next::Answer(Some(Ok((ask, question, outcome)))) => {
                    limits.heard();
                    self.answered(&ask, &question, &outcome);
                    self.publish(Some(process)).await?;
                }
                Next::Answer(_) => {}
                Next::Read(read) => {
                    limits.heard();
                    let gone =
                        || Error::file("read", &self.session.dir, "its process is gone from the table");
                    read.map_err(|_| gone())?;
                    self.hear(&batch).await?;
                    self.ask_new().await?;
                    self.publish(Some(process)).await?;
                    if let Some(ended) = batch.ended {
                        return Ok(Some(ended));
                    }
                    if self.agent.stays() && !self.is_cut {
                        if matches!(self.out.end, End::Held(_)) {
                            // No exit will say more about it.
                            self.take_its_word().await?;
                        }
                        if self.out.is_told() {
                            self.withdraw_questions().await;
                            return Ok(None);
                        }
                    }
                    if self.writer.bytes() > EVENTS_BYTES_MAX && !self.out.is_told() {
                        let event = ending::stopped(cli, "wrote more than a turn may");
                        self.cut_off(&event, process).await?;
                    }
                }
                Next::Mute => limits.muted = Some(Instant::now()),
                Next::Late => match limits.expired(&self.out.end) {
                    Expired::Held => self.take_its_word().await?,
                    Expired::Exit => {
                        limits.gave_up = true;
                        end_beside(process.clone());
                    }
                    Expired::Mute => {
                        let event = ending::mute(cli, self.lines.stderr_tail());
                        self.cut_off(&event, process).await?;
                    }
                    Expired::Time => {
                        let event = ending::stopped(cli, "took longer than a turn may");
                        self.cut_off(&event, process).await?;
                    }
                    Expired::Silence => {
                        let event = ending::stopped(cli, "said nothing for too long");
                        self.cut_off(&event, process).await?;
                    }
                },
            }
        }
    }

    /// The turn is over as its CLI has said.
    async fn take_its_word(&mut self) -> Result<()> {
        let event = ending::held(self.session.cli, &mut self.out, self.lines.stderr_tail());
        self.out.tell(&event);
        self.publish(None).await
    }

    /// The turn is over, and its process ends while its last words are still being read.
    async fn cut_off(&mut self, event: &Event<'_>, process: &Process) -> Result<()> {
        self.is_cut = true;
        self.withdraw_questions().await;
        self.out.tell(event);
        self.publish(None).await?;
        end_beside(process.clone());
        Ok(())
    }

    /// Output becomes events. A long line is taken apart elsewhere, so that others are not kept waiting.
    async fn hear(&mut self, batch: &Batch) -> Result<()> {
        if let Some(first_kept) = batch.first_kept {
            tracing::warn!(
                session = self.session.id,
                first_kept,
                "output of a CLI was dropped before it was read"
            );
        }
        for (frame, bytes) in batch.frames() {
            match frame.stream {
                Stream::Stderr => self.lines.stderr(frame.seq, bytes),
                Stream::Stdout => {
                    let mut rest = self.lines.begin(bytes);
                    while let Some((line, left)) = self.lines.next(rest) {
                        rest = left;
                        match line {
                            None => self.out.unknown_lines += 1,
                            Some(line) if line.len() < LONG_LINE_BYTES => {
                                self.agent.hear(&line, &self.task, &mut self.out);
                            }
                            Some(line) => self.hear_elsewhere(line.into_owned()).await?,
                        }
                    }
                    self.lines.end(frame.seq, rest);
                }
            }
        }
        if batch.ended.is_some()
            && let Some(line) = self.lines.last()
        {
            self.agent.hear(&line, &self.task, &mut self.out);
        }
        Ok(())
    }

    async fn hear_elsewhere(&mut self, line: Vec<u8>) -> Result<()> {
        let (mut agent, task) = (self.agent.clone(), self.task.clone());
        let mut out = std::mem::replace(&mut self.out, Output::new(self.turn.number, 0));
        let heard = tokio::task::spawn_blocking(move || {
            agent.hear(&line, &task, &mut out);
            (agent, out)
        });
        (self.agent, self.out) = heard.await.map_err(|_| Error::Stopped)?;
        Ok(())
    }

    /// What the agent has just asked becomes questions, and what it has taken back is withdrawn.
    async fn ask_new(&mut self) -> Result<()> {
        for ask in std::mem::take(&mut self.out.asks) {
            let asked = asking::ask(self.face, self.session, &ask, &mut self.room, &mut self.outcomes);
            match asked.await? {
                Ok(pending) => {
                    self.out.tell(&asking::asked(&ask, &pending.question));
                    self.questions.push(pending);
                }
                Err(why) => {
                    tracing::warn!(session = self.session.id, why, "a question of an agent is not asked");
                    let (told, answer) = asking::refused(&ask, &why);
                    self.out.tell(&told);
                    self.agent.answer(&ask, &answer, &mut self.out);
                }
            }
        }
        for id in std::mem::take(&mut self.out.taken_back) {
            if let Some(pending) = self.questions.iter().find(|pending| pending.ask.id == id) {
                self.face.approvals.queue().withdraw(&pending.question).await;
            }
        }
        Ok(())
    }

    fn answered(&mut self, ask: &Ask, question: &str, outcome: &outpost_approvals::Outcome) {
        self.questions.retain(|pending| pending.question != question);
        self.room.give_back(question);
        let (told, answer) = asking::settled(ask, question, outcome);
        self.out.tell(&told);
        self.agent.answer(ask, &answer, &mut self.out);
        self.settled.push(question.to_owned());
    }

    /// Nobody needs the answers any more. Before the turn's end is told: nothing follows that.
    async fn withdraw_questions(&mut self) {
        for pending in std::mem::take(&mut self.questions) {
            // Perhaps it has been answered this moment.
            let outcome = self.face.approvals.queue().withdraw(&pending.question).await;
            self.out.tell(&asking::settled(&pending.ask, &pending.question, &outcome).0);
            self.room.give_back(&pending.question);
            self.settled.push(pending.question);
        }
        self.outcomes.abort_all();
    }

    fn forget_settled(&mut self) {
        for question in std::mem::take(&mut self.settled) {
            asking::forget(self.face, &question);
        }
    }

    /// The process has ended: whatever it did, the turn has its terminal event afterwards.
    async fn finish(&mut self, ended: Ended) -> Result<()> {
        self.withdraw_questions().await;
        if !self.out.is_told() {
            let stderr = self.lines.stderr_tail().to_owned();
            let why = self.face.shutdown.is_stopping().then_some("the daemon was stopped");
            let event = ending::ended(self.session.cli, &self.agent, &mut self.out, &stderr, ended.exit, why);
            self.out.tell(&event);
        }
        self.publish(None).await
    }

    /// What is new goes onto the disk, then to the CLI and to whoever waits for it. In this order: what stands nowhere was
    /// not said to anybody, and what a killed worker said is said again at the same place, which the engine knows.
    async fn publish(&mut self, process: Option<&Process>) -> Result<()> {
        let mut said = std::mem::take(&mut self.out.said);
        if process.is_none() {
            said.clear();
        }
        if !self.out.events.is_empty() {
            self.writer.append(&self.out.events)?;
            self.out.events.clear();
            self.out.events.shrink_to(EVENTS_BUFFER_BYTES);
        }
        let mark = Mark {
            first_seq: self.turn.first_seq,
            next_seq: self.out.next_seq,
            bytes: self.writer.bytes(),
            end: self.out.end.clone(),
            process: self.process,
            from: self.lines.position(),
            is_begun: self.is_begun,
            said: self.said,
            hushed: self.out.hushed,
            unsaid: String::from_utf8_lossy(&said).into_owned(),
            speaks: self.speaks,
            conversation: self.conversation.clone(),
            sdk_id: self.out.sdk_id.clone(),
            unknown_lines: self.out.unknown_lines,
            early: self.out.early.clone(),
            stderr_tail: self.lines.stderr_tail().to_owned(),
            questions: self.questions.clone(),
            agent: self.agent.clone(),
        };
        self.writer.mark(&mark)?;
        if let Some(process) = process {
            self.say(process, said).await;
        }
        self.forget_settled();
        let mut state = self.session.state();
        state.next_seq = mark.next_seq;
        if self.out.is_lost || mark.sdk_id.is_some() {
            state.converses(self.turn.number, mark.sdk_id.filter(|_| !self.out.is_lost));
        }
        if let Some(turn) = state.turn_mut(self.turn.number) {
            (turn.events, turn.bytes) = (mark.next_seq - turn.first_seq, mark.bytes);
            if mark.end == End::Told {
                turn.stage = Stage::Over;
            }
        }
        drop(state);
        self.session.changed();
        Ok(())
    }

    /// A CLI that does not read, or is gone, changes nothing about its turn: its exit will.
    async fn say(&mut self, process: &Process, said: Vec<u8>) {
        let bytes = said.len() as u64;
        if bytes > 0 && !self.hushed && process.write_stdin(Some(self.said), said).await.is_err() {
            tracing::debug!(session = self.session.id, "a CLI took no more input");
        }
        self.said += bytes;
        if self.out.hushed && !self.hushed {
            self.hushed = true;
            let _closed_already = process.close_stdin().await;
        }
    }
}

/// Kept for the next batch of events.
const EVENTS_BUFFER_BYTES: usize = 64 * 1024;

enum Next {
    Stop,
    Answer(Option<std::result::Result<(Ask, String, outpost_approvals::Outcome), tokio::task::JoinError>>),
    Read(outpost_engine::Result<()>),
    /// Nothing more can come on its standard output.
    Mute,
    Late,
}

fn end_beside(process: Process) {
    tokio::spawn(async move { ending::end(&process).await });
}
