//! Starting a process, up to the point where the keeper is asked: its place, its journal, its descriptors.

use crate::adoption::handle;
use crate::birth::Starting;
use crate::child::{Child, Output, Source, Watch};
use crate::input::{Input, Target};
use crate::kill;
use crate::link::role;
use crate::process::{Process, Status};
use crate::reactor::outpost_now_ms;
use crate::shared::Shared;
use crate::spares::Spare;
use crate::spec::{Given, Slot, Spawn, Stdio, Supervision};
use crate::store::{DESCRIPTION_RESERVED_BYTES, Description, reserve};
use crate::{Error, Result};
use outpost_keeper::{DIRECTORY_TARGET, PROGRAM_TARGET};
use outpost_sys::identity::this_boot;
use outpost_sys::pipe::Pipe;
use outpost_sys::{file, pipe, pty};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// A child that is ready to be asked for.
pub(crate) struct Prepared {
    pub(crate) child: Box<Child>,
    /// Comes when it has been started, or could not be.
    pub(crate) answer: oneshot::Receiver<Result<()>>,
    /// Who had its key and has ended: its record goes.
    pub(crate) loser: Option<Process>,
}

/// Everything about a child that can be made before the keeper is asked: its journal, its descriptors. Touches no disk.
pub(crate) fn prepare(shared: &Arc<Shared>, spawn: &Spawn, spare: Spare) -> Result<Prepared> {
    let slot = spare.slot;
    let prepared = make_child(shared, spawn, spare);
    if prepared.is_err() {
        shared.housekeeping.remove_slot(slot);
    }
    prepared
}

fn make_child(shared: &Arc<Shared>, spawn: &Spawn, spare: Spare) -> Result<Prepared> {
    let Spare { slot, dir, mut writer, description: file_for_description, stdio, cgroup, manning } = spare;
    let io = |errno| Error::io("make", "descriptors for a child", errno);
    let marker = (spawn.marked && shared.cgroups.is_none()).then(|| kill::marker(&shared.name, slot));
    let config = shared.config();
    let spec = spawn.keeper_spec(marker.as_deref(), &config.limits, config.oom_score)?;
    let description = describe(spawn, slot);
    let encoded = description.encode()?;
    if encoded.len() as u64 > DESCRIPTION_RESERVED_BYTES {
        reserve(&file_for_description, encoded.len() as u64)?;
    }
    if let Some(bytes_max) = spawn.journal_bytes_max {
        writer.set_bytes_max(bytes_max);
    }
    let plumbing = Plumbing::make(spawn.stdio, &spawn.given, stdio).map_err(io)?;
    let master = plumbing.master.as_ref().map(file::duplicate).transpose().map_err(io)?;
    let process = handle(shared, slot, description, writer.journal().clone(), master, Status::Starting);
    let (reply, answer) = oneshot::channel();
    let by_file = [(&spawn.given.program, PROGRAM_TARGET), (&spawn.given.directory, DIRECTORY_TARGET)];
    let by_file = by_file.into_iter().filter_map(|(file, target)| Some((file.clone()?, target)));
    let extra = spawn.descriptors.iter().cloned().chain(by_file);
    let extra = extra.map(|(fd, target)| Ok((file::duplicate(&fd)?, target)));
    let extra = extra.collect::<outpost_sys::Result<Vec<_>>>().map_err(io)?;
    let theirs = plumbing.theirs.into_iter().zip(0..).chain(extra).collect();
    let now = Instant::now();
    let child = Child {
        process: process.clone(),
        writer,
        outputs: plumbing.outputs.map(|source| source.map(Output::new)),
        master: plumbing.master,
        master_watch: Watch::default(),
        input: Input::new(plumbing.input, dir.join("stdin")),
        input_watch: Watch::default(),
        input_blocked: false,
        starting: Some(Starting {
            reply,
            spec,
            spec_file: None,
            cgroup,
            theirs,
            recruit: manning.recruit(),
            report: None,
            failed: None,
            gate: None,
            has_executed: false,
            reported: None,
        }),
        undescribed: Some((file_for_description, encoded)),
        exit: None,
        exit_seen: now,
        last_byte: now,
        stalled: false,
        start_unrecorded: false,
        enlist_due: false,
    };
    let loser = {
        let mut table = shared.table();
        // Read under the lock: a process that enters the table later than the stop looks at it would not be stopped.
        if shared.closing.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        table.admit(process, spawn.on_taken, config.processes_max)?
    };
    Ok(Prepared { child: Box::new(child), answer, loser })
}

/// What outlives this worker. The pattern names every field: a new one does not compile until it is decided whether the
/// engine acts on it after the start.
fn describe(spawn: &Spawn, slot: Slot) -> Description {
    let Spawn {
        key,
        program,
        arguments,
        directory,
        stdio,
        at_cap,
        journal_bytes_max,
        drain,
        rest,
        started_by,
        confinement,
        // Used up when the key is claimed.
        on_taken: _,
        // Used up when the child executes its program.
        environment: _,
        given: _,
        descriptors: _,
        new_session: _,
        limits: _,
        umask: _,
        credentials: _,
        marked: _,
    } = spawn;
    let mut key = key.clone();
    if key.id.is_empty() {
        key.id = slot.to_string();
    }
    Description {
        key,
        program: program.display().to_string(),
        arguments: arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        directory: directory.as_ref().map(|path| path.display().to_string()),
        terminal: matches!(stdio, Stdio::Terminal(_)),
        started_ms: outpost_now_ms(),
        started_by: started_by.clone(),
        supervision: Supervision {
            at_cap: *at_cap,
            journal_bytes_max: *journal_bytes_max,
            drain: *drain,
            rest: *rest,
        },
        boot_id: this_boot().to_owned(),
        confined: Some(confinement.is_some()),
    }
}

/// What most children are given for their descriptors 0, 1 and 2: nothing to read, and two pipes.
pub(crate) struct Standard {
    null: OwnedFd,
    outputs: [Pipe; 2],
}

impl Standard {
    pub(crate) fn make() -> outpost_sys::Result<Standard> {
        Ok(Standard { null: null()?, outputs: [output()?, output()?] })
    }
}

/// The descriptors between us and a child.
struct Plumbing {
    outputs: [Option<Source>; 2],
    input: Target,
    master: Option<OwnedFd>,
    /// The child's ends, for its descriptors 0, 1 and 2.
    theirs: Vec<OwnedFd>,
}

impl Plumbing {
    fn make(stdio: Stdio, given: &Given, standard: Standard) -> outpost_sys::Result<Plumbing> {
        let Standard { null, outputs: [stdout, stderr] } = standard;
        match stdio {
            Stdio::Null => Ok(Plumbing {
                outputs: [None, None],
                input: Target::Closed,
                master: None,
                theirs: vec![file::duplicate(&null)?, file::duplicate(&null)?, null],
            }),
            Stdio::Pipes { stdin } => {
                let (input, its_stdin) = match &given.stdin {
                    Some(from) => (Target::Closed, file::duplicate(from)?),
                    None if stdin => {
                        let Pipe { read, write } = pipe::pipe()?;
                        file::set_nonblocking(&write)?;
                        (Target::Pipe(write), read)
                    }
                    None => (Target::Closed, null),
                };
                let (stdout, its_stdout) = match &given.stdout {
                    Some(to) => (None, file::duplicate(to)?),
                    None => (Some(Source::Pipe(stdout.read)), stdout.write),
                };
                Ok(Plumbing {
                    outputs: [stdout, Some(Source::Pipe(stderr.read))],
                    input,
                    master: None,
                    theirs: vec![its_stdin, its_stdout, stderr.write],
                })
            }
            Stdio::Terminal(size) => {
                let pty::Pty { master, slave } = pty::open(size)?;
                file::set_nonblocking(&master)?;
                let (from, to) = (private_pipe()?, private_pipe()?);
                let theirs = vec![file::duplicate(&slave)?, file::duplicate(&slave)?, slave];
                Ok(Plumbing {
                    outputs: [Some(Source::Terminal(from)), None],
                    input: Target::Terminal(to),
                    master: Some(master),
                    theirs,
                })
            }
        }
    }
}

fn null() -> outpost_sys::Result<OwnedFd> {
    file::open("/dev/null", file::Open::ReadWrite)
}

/// A pipe for output: we never wait for it.
fn output() -> outpost_sys::Result<Pipe> {
    let pipe = pipe::pipe()?;
    file::set_nonblocking(&pipe.read)?;
    Ok(pipe)
}

fn private_pipe() -> outpost_sys::Result<Pipe> {
    let pipe = pipe::pipe()?;
    file::set_nonblocking(&pipe.read)?;
    file::set_nonblocking(&pipe.write)?;
    Ok(pipe)
}

/// A role and a slot share one number in the event loop.
const _: () = assert!(role::REPORT < 16);
