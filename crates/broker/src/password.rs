//! The password for sudo: requested once per pipeline, and given only to the sudo processes of that pipeline.
//!
//! sudo runs an askpass program. That program is this binary (see [`program`]), and it connects to the daemon's askpass
//! socket. Before the daemon sends a password, it verifies three facts: the program executes the daemon's own file, its
//! parent is a sudo that the daemon started, and its memory is not dumpable. Arguments, environment and files never
//! contain the secret.

mod program;

pub use program::ASKPASS_ANCHOR;

use crate::disconnect;
use outpost_sys::message;
use program::{Anchor, ProcessIdentity};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::{OnceCell, mpsc, oneshot};
use zeroize::Zeroizing;

/// Attempts per sudo process, the first one included.
const ATTEMPTS_MAX: usize = 3;

/// The longest password.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Longest command in the argument of the operator's askpass program.
const PROMPT_CHARS_MAX: usize = 4096;

/// Time for a human to type the password.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(120);

/// A sudo may request the password before its pid is registered. Its request waits this long.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(2);

/// The variable that makes this binary act as askpass program. Its value is the path of the askpass socket.
pub const ASKPASS_VARIABLE: &str = "OUTPOST_ASKPASS_SOCKET";
/// The file name of the askpass socket.
pub const ASKPASS_SOCKET: &str = "askpass.sock";

/// The daemon sends `ASKPASS_VERIFIED` after it verified the askpass program. The program then makes its memory
/// undumpable and sends `ASKPASS_UNDUMPABLE`. It cannot do so earlier: the daemon cannot read `/proc/PID/exe` of an
/// undumpable process.
pub const ASKPASS_VERIFIED: u8 = b'?';
pub const ASKPASS_UNDUMPABLE: u8 = b'!';

/// Time for the askpass program to send `ASKPASS_UNDUMPABLE`.
const UNDUMPABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A password. Its memory is zeroed on drop.
pub type Secret = Zeroizing<String>;

/// How the broker obtains passwords.
#[derive(Clone, Debug)]
pub struct Askpass {
    pub source: PasswordSource,
    /// The socket to which the askpass program connects.
    pub socket: PathBuf,
}

/// Where a password comes from.
#[derive(Clone, Debug)]
pub enum PasswordSource {
    /// A program that writes the password to its standard output, as any sudo askpass program does.
    Program(PathBuf),
    /// The task at the other end of the channel. It gets the prompt. None refuses.
    Terminal(mpsc::Sender<(String, oneshot::Sender<Option<Secret>>)>),
}

/// The passwords of one pipeline: one per attempt. All stages share them.
pub(crate) struct PipelinePassword {
    source: PasswordSource,
    prompt: String,
    prompts: Weak<PasswordPrompts>,
    attempts: [OnceCell<Option<Secret>>; ATTEMPTS_MAX],
    /// The number of attempts of each sudo of this pipeline.
    attempts_made: Mutex<HashMap<ProcessIdentity, usize>>,
    anchor: Anchor,
    socket: PathBuf,
}

/// The registered sudo processes of all running pipelines.
#[derive(Default)]
pub(crate) struct PasswordPrompts {
    pipelines: Mutex<HashMap<ProcessIdentity, Weak<PipelinePassword>>>,
    registered: tokio::sync::Notify,
}

impl PasswordPrompts {
    fn pipelines(&self) -> MutexGuard<'_, HashMap<ProcessIdentity, Weak<PipelinePassword>>> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the password state of a new pipeline. Blocking: starts the anchor process.
    pub(crate) fn create(
        self: &Arc<PasswordPrompts>,
        askpass: Askpass,
        prompt: String,
    ) -> Result<Arc<PipelinePassword>, String> {
        let anchor = Anchor::start();
        let anchor =
            anchor.map_err(|error| format!("cannot start what sudo asks for a password: {error}"))?;
        let attempts = [OnceCell::new(), OnceCell::new(), OnceCell::new()];
        let Askpass { source, socket } = askpass;
        let (prompts, attempts_made) = (Arc::downgrade(self), Mutex::default());
        Ok(Arc::new(PipelinePassword { source, prompt, prompts, attempts, attempts_made, anchor, socket }))
    }

    /// Answers askpass programs. Never returns.
    pub(crate) async fn serve(self: Arc<PasswordPrompts>, listener: UnixListener) {
        const CONNECTIONS_MAX: usize = 64;
        let prompts = self.clone();
        outpost_wire::accept_all(listener, CONNECTIONS_MAX, move |stream| answer(prompts.clone(), stream))
            .await;
    }

    /// The password of the pipeline that started this sudo. Waits for its registration.
    async fn find_by_sudo(&self, sudo: ProcessIdentity) -> Option<Arc<PipelinePassword>> {
        let deadline = tokio::time::Instant::now() + REGISTRATION_TIMEOUT;
        loop {
            let registered = self.registered.notified();
            tokio::pin!(registered);
            registered.as_mut().enable();
            if let Some(password) = self.pipelines().get(&sudo).and_then(Weak::upgrade) {
                return Some(password);
            }
            tokio::time::timeout_at(deadline, registered).await.ok()?;
        }
    }
}

impl PipelinePassword {
    /// Registers a sudo of this pipeline, which may then request the password.
    pub(crate) fn register_sudo(self: &Arc<PipelinePassword>, pid: i32) {
        let (Some(prompts), Some(sudo)) = (self.prompts.upgrade(), ProcessIdentity::of(pid)) else { return };
        let mut pipelines = prompts.pipelines();
        pipelines.retain(|_, password| password.strong_count() > 0);
        pipelines.insert(sudo, Arc::downgrade(self));
        drop(pipelines);
        prompts.registered.notify_waiters();
    }

    /// The variables with which sudo finds the askpass program, and the program finds the socket.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        [
            ("SUDO_ASKPASS".into(), self.anchor.program().into()),
            (ASKPASS_VARIABLE.into(), self.socket.clone().into()),
        ]
    }

    /// The password for the next attempt of this sudo. None after the last attempt or a refusal.
    async fn next_attempt(&self, sudo: ProcessIdentity) -> Option<&Secret> {
        let attempt = {
            let mut attempts_made = self.attempts_made.lock().unwrap_or_else(PoisonError::into_inner);
            let count = attempts_made.entry(sudo).or_default();
            *count += 1;
            *count - 1
        };
        let attempt = self.attempts.get(attempt)?;
        attempt.get_or_init(|| ask(&self.source, &self.prompt)).await.as_ref()
    }
}

/// Verifies an askpass program and sends it the password.
async fn answer(prompts: Arc<PasswordPrompts>, mut stream: UnixStream) {
    let Ok(peer) = message::peer(&stream) else { return };
    let refuse = |why: &str| tracing::warn!(pid = peer.pid, why, "a program may not request a password");
    let Some(program) = ProcessIdentity::of(peer.pid) else { return };
    if !program.is_this_binary() {
        return refuse("it executes another file than the daemon");
    }
    let password = match program.parent() {
        Some(sudo) => prompts.find_by_sudo(sudo).await.map(|password| (sudo, password)),
        None => None,
    };
    let Some((sudo, password)) = password else {
        return refuse("its parent is not a sudo that this daemon started");
    };
    if !becomes_undumpable(&mut stream).await {
        return refuse("it did not make its memory undumpable");
    }
    // Cancels the prompt if sudo exits.
    let secret = tokio::select! {
        secret = password.next_attempt(sudo) => secret,
        () = disconnect::wait(&stream) => None,
    };
    if let Some(secret) = secret {
        let _disconnected = stream.write_all(secret.as_bytes()).await;
        let _disconnected = stream.shutdown().await;
    }
}

/// Asks the program to make its memory undumpable, since the password will be in it. False if it does not.
async fn becomes_undumpable(stream: &mut UnixStream) -> bool {
    let reply = async {
        stream.write_all(&[ASKPASS_VERIFIED]).await.ok()?;
        stream.read_u8().await.ok()
    };
    tokio::time::timeout(UNDUMPABLE_TIMEOUT, reply).await.ok().flatten() == Some(ASKPASS_UNDUMPABLE)
}

async fn ask(source: &PasswordSource, prompt: &str) -> Option<Secret> {
    let asked = async {
        match source {
            PasswordSource::Terminal(terminal) => {
                let (reply, answer) = oneshot::channel();
                terminal.send((prompt.to_owned(), reply)).await.ok()?;
                answer.await.ok()?
            }
            PasswordSource::Program(program) => ask_program(program, prompt).await,
        }
    };
    tokio::time::timeout(ENTRY_TIMEOUT, asked).await.ok()?
}

async fn ask_program(program: &PathBuf, prompt: &str) -> Option<Secret> {
    let mut command = Command::new(program);
    // The kernel limits an argument to 128 KiB. The approver has already seen the whole command.
    let shown: String = prompt.chars().take(PROMPT_CHARS_MAX).collect();
    let rest = if shown.len() < prompt.len() { " ... (the rest was shown before):" } else { "" };
    command.arg(shown + rest).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, program = %program.display(), "cannot run the askpass program");
            return None;
        }
    };
    let mut output = Secret::default();
    let stdout = child.stdout.take()?;
    stdout.take(PASSWORD_BYTES_MAX).read_to_string(&mut output).await.ok()?;
    if !child.wait().await.ok()?.success() {
        return None;
    }
    let end = output.find('\n').unwrap_or(output.len());
    Some(Zeroizing::new(output.get(..end)?.to_owned()))
}
