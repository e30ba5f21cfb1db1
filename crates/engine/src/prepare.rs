//! The preparation of a start: the child with its journal and its descriptors, up to the request to the keeper.

use crate::adoption::handle;
use crate::child::{Child, Output, Source, Watch};
use crate::input::{Input, Target};
use crate::kill;
use crate::launch::Launch;
use crate::link::role;
use crate::prepared_slots::PreparedSlot;
use crate::process::{Process, Status};
use crate::process_dir::{DESCRIPTION_RESERVED_BYTES, Description, reserve};
use crate::reactor::outpost_now_ms;
use crate::shared::Shared;
use crate::spec::{OpenFiles, Slot, Spawn, Stdio, Supervision};
use crate::{Error, Result};
use outpost_sys::identity::this_boot;
use outpost_sys::pipe::Pipe;
use outpost_sys::{file, pipe, pty};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// A child that is ready to be requested.
pub(crate) struct Prepared {
    pub(crate) child: Box<Child>,
    /// The result of the start.
    pub(crate) answer: oneshot::Receiver<Result<()>>,
    /// An ended process that had the same key. Its record is dropped.
    pub(crate) replaced: Option<Process>,
}

/// Prepares a child in a prepared slot. Does not touch the disk.
pub(crate) fn prepare(shared: &Arc<Shared>, spawn: &Spawn, prepared: PreparedSlot) -> Result<Prepared> {
    let slot = prepared.slot;
    let prepared = make_child(shared, spawn, prepared);
    if prepared.is_err() {
        shared.housekeeping.remove_slot(slot);
    }
    prepared
}

fn make_child(shared: &Arc<Shared>, spawn: &Spawn, prepared: PreparedSlot) -> Result<Prepared> {
    let PreparedSlot { slot, dir, mut writer, description: description_file, stdio, cgroup } = prepared;
    let io = |errno| Error::io("make", "descriptors for a child", errno);
    let marker = (spawn.marked && shared.cgroups.is_none()).then(|| kill::marker(&shared.name, slot));
    let config = shared.config();
    let specification = spawn.keeper_spec(marker.as_deref(), &config.limits, config.oom_score)?;
    let specification = file::sealed_memory("outpost-spec", &specification).map_err(io)?;
    let description = describe(spawn, slot);
    let encoded = description.encode()?;
    if encoded.len() as u64 > DESCRIPTION_RESERVED_BYTES {
        reserve(&description_file, encoded.len() as u64)?;
    }
    if let Some(bytes_max) = spawn.journal_bytes_max {
        writer.set_bytes_max(bytes_max);
    }
    let plumbing = Plumbing::make(spawn.stdio, &spawn.open_files, stdio).map_err(io)?;
    let master = plumbing.master.as_ref().map(file::duplicate).transpose().map_err(io)?;
    let process = handle(shared, slot, description, writer.journal().clone(), master, Status::Starting);
    let (reply, answer) = oneshot::channel();
    let copy = |fd: &Option<Arc<OwnedFd>>| fd.as_ref().map(file::duplicate).transpose().map_err(io);
    let (program, directory) = (copy(&spawn.open_files.program)?, copy(&spawn.open_files.directory)?);
    let of_sandbox = spawn.confinement.iter().flat_map(|prepared| &prepared.descriptors);
    let extra =
        spawn.descriptors.iter().chain(of_sandbox).map(|(fd, target)| Ok((file::duplicate(fd)?, *target)));
    let extra = extra.collect::<outpost_sys::Result<Vec<_>>>().map_err(io)?;
    let given = plumbing.given.into_iter().zip(0..).chain(extra).collect();
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
        launch: Some(Launch {
            reply,
            specification,
            cgroup,
            program,
            directory,
            given,
            exec_gate: None,
            has_executed: false,
            reported_pid: None,
        }),
        unwritten_description: Some((description_file, encoded)),
        exit: None,
        exit_seen: now,
        last_byte: now,
        stalled: false,
        start_unrecorded: false,
    };
    let replaced = {
        let mut table = shared.table();
        // Read under the lock: a stop that reads the table before this insert would not stop the process.
        if shared.closing.load(Ordering::Acquire) {
            return Err(Error::Stopping);
        }
        table.admit(process, spawn.on_taken, config.processes_max)?
    };
    Ok(Prepared { child: Box::new(child), answer, replaced })
}

/// The description on disk. The pattern names every field, so that a new one does not compile before it is decided
/// whether the engine needs it after the start.
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
        descendants,
        started_by,
        confinement,
        // Used when the key is claimed.
        on_taken: _,
        // Used before the exec.
        environment: _,
        open_files: _,
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
            descendants: *descendants,
        },
        boot_id: this_boot().to_owned(),
        confined: Some(confinement.is_some()),
    }
}

/// The descriptors 0, 1 and 2 of most children: `/dev/null` and two pipes.
pub(crate) struct StandardPipes {
    null: OwnedFd,
    outputs: [Pipe; 2],
}

impl StandardPipes {
    pub(crate) fn new() -> outpost_sys::Result<StandardPipes> {
        Ok(StandardPipes { null: null()?, outputs: [output()?, output()?] })
    }
}

/// The descriptors between the worker and a child.
struct Plumbing {
    outputs: [Option<Source>; 2],
    input: Target,
    master: Option<OwnedFd>,
    /// The child's ends, for its descriptors 0, 1 and 2.
    given: Vec<OwnedFd>,
}

impl Plumbing {
    fn make(stdio: Stdio, files: &OpenFiles, standard: StandardPipes) -> outpost_sys::Result<Plumbing> {
        let StandardPipes { null, outputs: [stdout, stderr] } = standard;
        match stdio {
            Stdio::Null => Ok(Plumbing {
                outputs: [None, None],
                input: Target::Closed,
                master: None,
                given: vec![file::duplicate(&null)?, file::duplicate(&null)?, null],
            }),
            Stdio::Pipes { stdin } => {
                let (input, its_stdin) = match &files.stdin {
                    Some(from) => (Target::Closed, file::duplicate(from)?),
                    None if stdin => {
                        let Pipe { read, write } = pipe::pipe()?;
                        file::set_nonblocking(&write)?;
                        (Target::Pipe(write), read)
                    }
                    None => (Target::Closed, null),
                };
                let (stdout, its_stdout) = match &files.stdout {
                    Some(to) => (None, file::duplicate(to)?),
                    None => (Some(Source::Pipe(stdout.read)), stdout.write),
                };
                Ok(Plumbing {
                    outputs: [stdout, Some(Source::Pipe(stderr.read))],
                    input,
                    master: None,
                    given: vec![its_stdin, its_stdout, stderr.write],
                })
            }
            Stdio::Terminal(size) => {
                let pty::Pty { master, slave } = pty::open(size)?;
                file::set_nonblocking(&master)?;
                let (from, to) = (private_pipe()?, private_pipe()?);
                let given = vec![file::duplicate(&slave)?, file::duplicate(&slave)?, slave];
                Ok(Plumbing {
                    outputs: [Some(Source::Terminal(from)), None],
                    input: Target::Terminal(to),
                    master: Some(master),
                    given,
                })
            }
        }
    }
}

fn null() -> outpost_sys::Result<OwnedFd> {
    file::open("/dev/null", file::Open::ReadWrite)
}

/// A pipe for output. Reading from it does not block.
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

/// A token of the event loop has four bits for the role.
const _: () = assert!(role::STDIN_LOG < 16);
