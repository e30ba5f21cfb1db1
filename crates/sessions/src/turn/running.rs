//! The running turn: reads the output of its process, and publishes what its adapter makes of it.

use super::checkpoint::TurnCheckpoint;
use super::deadlines::{Deadlines, Expired};
use super::launch::{self, LaunchFailure};
use super::output::{Output, PermissionRequest, TurnEnd};
use super::output_lines::LineSplitter;
use super::permission_quota::PermissionQuota;
use super::permissions;
use super::terminal_event;
use super::terminate::terminate_in_background;
use super::warm_pool::{self, LaunchOptions, WarmProcess};
use crate::agents::TurnRequest;
use crate::event::{Event, Kind};
use crate::face::Face;
use crate::session::{Session, Stage, Stop, Turn};
use crate::store::turn_log::Writer;
use crate::{Error, Result};
use outpost_approvals::Outcome;
use outpost_engine::{Batch, Ended, Process, Stream};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

/// Lines of this size are parsed on a blocking thread.
const LONG_LINE_BYTES: usize = 256 * 1024;

/// Maximum number of bytes of events per turn. A CLI that writes more is stopped.
const EVENTS_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Capacity of the event buffer that is kept between batches.
const EVENTS_BUFFER_BYTES: usize = 64 * 1024;

/// A turn that runs.
pub(super) struct RunningTurn<'a> {
    face: &'a Arc<Face>,
    session: &'a Arc<Session>,
    turn: Turn,
    writer: Writer,
    /// Owns the checkpoint.
    out: Output,
    request: TurnRequest,
    lines: LineSplitter,
    /// This worker has closed standard input. The checkpoint only has the intention.
    stdin_closed: bool,
    /// Ids of resolved questions. They are erased after the checkpoint that no longer names them.
    resolved: Vec<String>,
    quota: PermissionQuota,
    outcomes: JoinSet<(PermissionRequest, String, Outcome)>,
    /// The process got the order to exit before the end of its turn.
    is_aborted: bool,
}

/// What a turn waits for.
enum TurnEvent {
    Stop,
    Outcome(Option<std::result::Result<(PermissionRequest, String, Outcome), JoinError>>),
    Output(outpost_engine::Result<()>),
    StdoutClosed,
    DeadlineExpired,
}

/// Opens the log of the turn and finds its process, if it has one.
pub(super) async fn open<'a>(
    face: &'a Arc<Face>,
    session: &'a Arc<Session>,
    turn: Turn,
) -> Result<(RunningTurn<'a>, Option<Process>)> {
    // The version of a CLI is found on disk, or by running it.
    let (building_face, building) = (face.clone(), session.clone());
    let message = turn.message.clone();
    let request = tokio::task::spawn_blocking(move || launch::request(&building_face, &building, &message));
    let request = request.await.map_err(|_| Error::Stopped)?;
    let (mut writer, checkpoint) =
        Writer::open(&session.dir, turn.number, |checkpoint: &TurnCheckpoint| checkpoint.bytes)?;
    let checkpoint = match checkpoint {
        Some(checkpoint) => checkpoint,
        None => {
            let warm = warm_pool::take(face, session, &request).await;
            session.state().begin_turn(turn.number, request.conversation_id.as_deref());
            let invocation = request.invocation();
            let conversation_id = request.conversation_id.clone();
            let checkpoint = TurnCheckpoint::new(&turn, invocation, warm.as_ref(), conversation_id);
            // Before the process starts: each worker must parse its output with the same adapter.
            writer.write_checkpoint(&checkpoint)?;
            checkpoint
        }
    };
    let known = face.engine.find(&launch::key(session, checkpoint.process)).await;
    let lines = LineSplitter::new(checkpoint.output_position, checkpoint.stderr_tail.clone());
    let running = RunningTurn {
        face,
        session,
        out: Output::new(turn.number, checkpoint),
        turn,
        writer,
        request,
        lines,
        stdin_closed: false,
        resolved: Vec::new(),
        quota: PermissionQuota::new(&face.permission_usage),
        outcomes: JoinSet::new(),
        is_aborted: false,
    };
    Ok((running, known))
}

impl RunningTurn<'_> {
    pub(super) fn is_started(&self) -> bool {
        self.out.checkpoint.is_started
    }

    pub(super) fn is_final(&self) -> bool {
        self.out.is_final()
    }

    pub(super) fn keeps_process(&self) -> bool {
        self.out.checkpoint.adapter.keeps_process()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        let state = self.session.state();
        state.turn(self.turn.number).is_none_or(|turn| turn.is_cancelled)
    }

    pub(super) async fn launch(&self) -> std::result::Result<Process, LaunchFailure> {
        launch::launch(self.face, self.session, self.turn.number, self.request.clone()).await
    }

    pub(super) async fn end_interrupted(&mut self) -> Result<()> {
        self.out.emit(&Event::new(Kind::Interrupted));
        self.publish(None).await
    }

    pub(super) async fn end_not_launched(&mut self, failure: &LaunchFailure) -> Result<()> {
        self.out.emit(&terminal_event::not_launched(self.session.cli, failure));
        self.publish(None).await
    }

    /// Sends the message to the CLI, or the input that the previous worker may not have written.
    pub(super) async fn start(&mut self, process: &Process) -> Result<()> {
        if self.is_started() {
            self.write_stdin(process).await;
            return Ok(());
        }
        self.out.checkpoint.is_started = true;
        self.out.start(&self.request);
        self.publish(Some(process)).await
    }

    /// Resumes the questions of the previous worker, with the answers that came in the meantime.
    pub(super) async fn resume_questions(&mut self) {
        for pending in &self.out.checkpoint.questions {
            self.quota.reserve_restored(&pending.question_id, &pending.request.input);
            permissions::resume(self.face, pending, &mut self.outcomes).await;
        }
    }

    /// Follows the process up to its exit. Returns `None` if the turn ends first and the process stays warm.
    pub(super) async fn follow(
        &mut self,
        process: &Process,
        stop: &mut watch::Receiver<Option<Stop>>,
    ) -> Result<Option<Ended>> {
        let mut subscription = process.subscribe(self.lines.position().after);
        let mut batch = Batch::default();
        let mut deadlines = Deadlines::new(self.face);
        let mut is_stopping = false;
        loop {
            deadlines.observe(&self.out.checkpoint.end);
            let event = tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some), if !is_stopping => TurnEvent::Stop,
                outcome = self.outcomes.join_next(), if !self.outcomes.is_empty() => TurnEvent::Outcome(outcome),
                read = subscription.next(&mut batch) => TurnEvent::Output(read),
                _ = process.stdout_ended(), if !deadlines.is_stdout_closed() => TurnEvent::StdoutClosed,
                () = deadlines.wait(&self.out.checkpoint.end, self.out.checkpoint.questions.is_empty()) => TurnEvent::DeadlineExpired,
            };
            match event {
                TurnEvent::Stop => {
                    is_stopping = true;
                    self.abort(&Event::new(Kind::Interrupted), process).await?;
                }
                TurnEvent::Outcome(Some(Ok((request, question, outcome)))) => {
                    deadlines.on_activity();
                    self.apply_outcome(&request, &question, &outcome);
                    self.publish(Some(process)).await?;
                }
                TurnEvent::Outcome(_) => {}
                TurnEvent::Output(read) => {
                    deadlines.on_activity();
                    let gone =
                        || Error::file("read", &self.session.dir, "its process is gone from the table");
                    read.map_err(|_| gone())?;
                    self.process_batch(&batch, process).await?;
                    if let Some(ended) = batch.ended {
                        return Ok(Some(ended));
                    }
                    if self.end_before_exit().await? {
                        return Ok(None);
                    }
                    self.stop_if_too_large(process).await?;
                }
                TurnEvent::StdoutClosed => deadlines.stdout_closed = Some(Instant::now()),
                TurnEvent::DeadlineExpired => self.on_deadline(&mut deadlines, process).await?,
            }
        }
    }

    async fn process_batch(&mut self, batch: &Batch, process: &Process) -> Result<()> {
        self.parse(batch).await?;
        self.forward_permission_requests().await?;
        self.publish(Some(process)).await
    }

    /// Ends the turn of a process that stays warm. Returns false while the turn is open.
    async fn end_before_exit(&mut self) -> Result<bool> {
        if !self.out.checkpoint.adapter.keeps_process() || self.is_aborted {
            return Ok(false);
        }
        if matches!(self.out.checkpoint.end, TurnEnd::Provisional(_)) {
            // No exit status follows.
            self.finish_provisional().await?;
        }
        let is_final = self.out.is_final();
        if is_final {
            self.withdraw_questions().await;
        }
        Ok(is_final)
    }

    async fn stop_if_too_large(&mut self, process: &Process) -> Result<()> {
        if self.writer.bytes() > EVENTS_BYTES_MAX && !self.out.is_final() {
            let event = terminal_event::stopped(self.session.cli, "exceeded the output limit of a turn");
            self.abort(&event, process).await?;
        }
        Ok(())
    }

    async fn on_deadline(&mut self, deadlines: &mut Deadlines, process: &Process) -> Result<()> {
        let cli = self.session.cli;
        let event = match deadlines.expired(&self.out.checkpoint.end) {
            Expired::Provisional => return self.finish_provisional().await,
            Expired::Exit => {
                deadlines.exit_requested = true;
                terminate_in_background(process.clone());
                return Ok(());
            }
            Expired::StdoutClosed => terminal_event::stdout_closed(cli, self.lines.stderr_tail()),
            Expired::Turn => terminal_event::stopped(cli, "exceeded the time limit of a turn"),
            Expired::Silence => terminal_event::stopped(cli, "wrote no output for too long"),
        };
        self.abort(&event, process).await
    }

    /// Makes the provisional result final.
    async fn finish_provisional(&mut self) -> Result<()> {
        let event = terminal_event::provisional(self.session.cli, &mut self.out, self.lines.stderr_tail());
        self.out.emit(&event);
        self.publish(None).await
    }

    /// Ends the turn with this event, then its process in the background. Output is read up to the exit.
    async fn abort(&mut self, event: &Event<'_>, process: &Process) -> Result<()> {
        self.is_aborted = true;
        self.withdraw_questions().await;
        self.out.emit(event);
        self.publish(None).await?;
        terminate_in_background(process.clone());
        Ok(())
    }

    /// Splits output into lines and gives them to the adapter.
    async fn parse(&mut self, batch: &Batch) -> Result<()> {
        if let Some(first_kept) = batch.first_kept {
            let session = &self.session.id;
            tracing::warn!(session, first_kept, "the output of a CLI was dropped before it was read");
        }
        for (frame, bytes) in batch.frames() {
            match frame.stream {
                Stream::Stderr => self.lines.stderr(frame.seq, bytes),
                Stream::Stdout => {
                    let mut rest = self.lines.begin(bytes);
                    while let Some((line, left)) = self.lines.next(rest) {
                        rest = left;
                        match line {
                            None => self.out.checkpoint.unknown_lines += 1,
                            Some(line) if line.len() < LONG_LINE_BYTES => {
                                self.out.on_line(&line, &self.request);
                            }
                            Some(line) => self.parse_on_blocking_thread(line.into_owned()).await?,
                        }
                    }
                    self.lines.end(frame.seq, rest);
                }
            }
        }
        if batch.ended.is_some()
            && let Some(line) = self.lines.last()
        {
            self.out.on_line(&line, &self.request);
        }
        Ok(())
    }

    async fn parse_on_blocking_thread(&mut self, line: Vec<u8>) -> Result<()> {
        let request = self.request.clone();
        let mut out = std::mem::replace(&mut self.out, Output::detached(0));
        let parsed = tokio::task::spawn_blocking(move || {
            out.on_line(&line, &request);
            out
        });
        self.out = parsed.await.map_err(|_| Error::Stopped)?;
        Ok(())
    }

    /// Puts new permission requests into the approval queue, and withdraws cancelled ones.
    async fn forward_permission_requests(&mut self) -> Result<()> {
        for request in std::mem::take(&mut self.out.permission_requests) {
            let asked =
                permissions::ask(self.face, self.session, &request, &mut self.quota, &mut self.outcomes);
            match asked.await? {
                Ok(pending) => {
                    self.out.emit(&permissions::asked(&request, &pending.question_id));
                    self.out.checkpoint.questions.push(pending);
                }
                Err(why) => {
                    tracing::warn!(session = self.session.id, %why, "a permission request exceeds the limits");
                    let (event, decision) = permissions::refused(&request, &why);
                    self.out.emit(&event);
                    self.out.on_decision(&request, &decision);
                }
            }
        }
        for id in std::mem::take(&mut self.out.cancelled_requests) {
            if let Some(pending) =
                self.out.checkpoint.questions.iter().find(|pending| pending.request.id == id)
            {
                self.face.approvals.queue().withdraw(&pending.question_id).await;
            }
        }
        Ok(())
    }

    fn apply_outcome(&mut self, request: &PermissionRequest, question: &str, outcome: &Outcome) {
        self.out.checkpoint.questions.retain(|pending| pending.question_id != question);
        self.quota.release(question);
        let (event, decision) = permissions::resolved(request, question, outcome);
        self.out.emit(&event);
        self.out.on_decision(request, &decision);
        self.resolved.push(question.to_owned());
    }

    /// Withdraws all pending questions. Must precede the terminal event, because no event may follow that.
    pub(super) async fn withdraw_questions(&mut self) {
        for pending in std::mem::take(&mut self.out.checkpoint.questions) {
            // An approver may have answered concurrently; then this is that answer.
            let outcome = self.face.approvals.queue().withdraw(&pending.question_id).await;
            self.out.emit(&permissions::resolved(&pending.request, &pending.question_id, &outcome).0);
            self.quota.release(&pending.question_id);
            self.resolved.push(pending.question_id);
        }
        self.outcomes.abort_all();
    }

    pub(super) fn erase_resolved(&mut self) {
        for question in std::mem::take(&mut self.resolved) {
            permissions::erase(self.face, &question);
        }
    }

    /// Emits the terminal event after the exit of the process, unless there is one.
    pub(super) async fn finish(&mut self, ended: Ended) -> Result<()> {
        self.withdraw_questions().await;
        if !self.out.is_final() {
            let stderr = self.lines.stderr_tail().to_owned();
            let why = self.face.shutdown.is_stopping().then_some("the daemon was stopped");
            let cli = self.session.cli;
            let event = terminal_event::exited(cli, &mut self.out, &stderr, ended.exit, why);
            self.out.emit(&event);
        }
        self.publish(None).await
    }

    /// Writes events and checkpoint to disk, then input to the CLI, then wakes the clients.
    ///
    /// The order makes each step safe to repeat. No client sees an event that is not on disk. If the worker dies before
    /// the input is written, the next worker writes it at the same offset, and the engine drops duplicates.
    pub(super) async fn publish(&mut self, process: Option<&Process>) -> Result<()> {
        if process.is_none() {
            self.out.checkpoint.stdin_unsent.clear();
        }
        self.write_log()?;
        if let Some(process) = process {
            self.write_stdin(process).await;
        }
        self.erase_resolved();
        self.update_session();
        Ok(())
    }

    /// Writes the new events, then the checkpoint.
    fn write_log(&mut self) -> Result<()> {
        if !self.out.events.is_empty() {
            self.writer.append(&self.out.events)?;
            self.out.events.clear();
            self.out.events.shrink_to(EVENTS_BUFFER_BYTES);
        }
        let checkpoint = &mut self.out.checkpoint;
        checkpoint.bytes = self.writer.bytes();
        checkpoint.output_position = self.lines.position();
        self.lines.stderr_tail().clone_into(&mut checkpoint.stderr_tail);
        self.writer.write_checkpoint(checkpoint)
    }

    /// Shows the progress to clients.
    fn update_session(&self) {
        let checkpoint = &self.out.checkpoint;
        let mut state = self.session.state();
        state.next_seq = checkpoint.next_seq;
        if self.out.conversation_lost || checkpoint.conversation_id.is_some() {
            let conversation_id = checkpoint.conversation_id.clone().filter(|_| !self.out.conversation_lost);
            state.set_conversation(self.turn.number, conversation_id);
        }
        if let Some(turn) = state.turn_mut(self.turn.number) {
            (turn.events, turn.bytes) = (checkpoint.next_seq - turn.first_seq, checkpoint.bytes);
            if checkpoint.end == TurnEnd::Final {
                turn.stage = Stage::Finished;
            }
        }
        drop(state);
        self.session.changed();
    }

    /// Writes the unsent input. A CLI that does not read it does not fail the turn here: its exit does.
    async fn write_stdin(&mut self, process: &Process) {
        let checkpoint = &mut self.out.checkpoint;
        let input = std::mem::take(&mut checkpoint.stdin_unsent).into_bytes();
        let offset = checkpoint.stdin_offset;
        checkpoint.stdin_offset += input.len() as u64;
        let is_writable = !input.is_empty() && !self.stdin_closed;
        if is_writable && process.write_stdin(Some(offset), input).await.is_err() {
            tracing::debug!(session = self.session.id, "a CLI accepts no more input");
        }
        if self.out.checkpoint.stdin_closed && !self.stdin_closed {
            self.stdin_closed = true;
            let _closed_already = process.close_stdin().await;
        }
    }

    pub(super) fn into_warm_process(self) -> WarmProcess {
        let checkpoint = self.out.checkpoint;
        let options = LaunchOptions::of(&self.request, checkpoint.conversation_id);
        let (process, offset) = (checkpoint.process, checkpoint.stdin_offset);
        WarmProcess::new(self.session, process, self.lines.position(), offset, options, checkpoint.adapter)
    }
}
