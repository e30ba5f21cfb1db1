//! The password that sudo may want: asked for once for a whole pipeline, given to the sudos of that pipeline only.
//!
//! Sudo runs a program to ask. That program is this binary (see [`program`]); it connects to a socket of ours. Before it
//! gets a password we check that it executes our own file, that its parent is a sudo that we have started, and that its
//! memory is hidden. Nothing secret is in arguments, environment or files.

mod program;

pub use program::ASKPASS_ANCHOR;

use crate::peer_watch;
use outpost_sys::message;
use program::{Anchor, Identity};
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

/// How often sudo may ask again after a wrong password.
const ATTEMPTS_MAX: usize = 3;

/// The longest password.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Of a command, for a program that asks for its password.
const SHOWN_CHARS_MAX: usize = 4096;

/// How long a human may take to type it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A sudo may ask before we have noted that we started it.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

/// The variable by which this binary knows that sudo runs it to ask for a password. Its value is the socket's path.
pub const ASKPASS_VARIABLE: &str = "OUTPOST_ASKPASS_SOCKET";
/// The name of that socket.
pub const ASKPASS_SOCKET: &str = "askpass.sock";

/// What the daemon sends to a program that it has recognised, and what the program answers when its memory is hidden. Not
/// before: the kernel lets nobody look at the executable of a process whose memory is hidden.
pub const ASKPASS_RECOGNISED: u8 = b'?';
pub const ASKPASS_HIDDEN: u8 = b'!';

/// How long a program may take to hide its memory.
const HIDDEN_WITHIN: Duration = Duration::from_secs(10);

pub type Typed = Zeroizing<String>;

/// How a password is asked for.
#[derive(Clone, Debug)]
pub struct Askpass {
    pub who: AskPassword,
    /// The socket on which the program asks that sudo runs.
    pub socket: PathBuf,
}

/// Who is asked for a password.
#[derive(Clone, Debug)]
pub enum AskPassword {
    /// A program that writes it to its standard output, as sudo's own askpass programs do.
    Program(PathBuf),
    /// Whoever receives these; none is a refusal. The text says what it is for.
    Terminal(mpsc::Sender<(String, oneshot::Sender<Option<Typed>>)>),
}

/// The passwords of one pipeline: one for each attempt, whichever stage makes it.
pub(crate) struct Password {
    ask: AskPassword,
    what: String,
    desk: Weak<Desk>,
    attempts: [OnceCell<Option<Typed>>; ATTEMPTS_MAX],
    /// Sudos of this pipeline, and how often each has asked.
    asked: Mutex<HashMap<Identity, usize>>,
    anchor: Anchor,
    socket: PathBuf,
}

/// Every pipeline whose sudos may ask.
#[derive(Default)]
pub(crate) struct Desk {
    pipelines: Mutex<HashMap<Identity, Weak<Password>>>,
    noted: tokio::sync::Notify,
}

impl Desk {
    fn pipelines(&self) -> MutexGuard<'_, HashMap<Identity, Weak<Password>>> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a pipeline that is about to start. Starts a process; an error says why it cannot be.
    pub(crate) fn password(
        self: &Arc<Desk>,
        askpass: Askpass,
        what: String,
    ) -> Result<Arc<Password>, String> {
        let anchor = Anchor::start();
        let anchor =
            anchor.map_err(|error| format!("cannot start what sudo asks for a password: {error}"))?;
        let attempts = [OnceCell::new(), OnceCell::new(), OnceCell::new()];
        let Askpass { who, socket } = askpass;
        let (desk, asked) = (Arc::downgrade(self), Mutex::default());
        Ok(Arc::new(Password { ask: who, what, desk, attempts, asked, anchor, socket }))
    }

    /// Answers programs that sudo has started, for ever.
    pub(crate) async fn serve(self: Arc<Desk>, listener: UnixListener) {
        const ASKING_MAX: usize = 64;
        let desk = self.clone();
        outpost_wire::accept_all(listener, ASKING_MAX, move |stream| answer(desk.clone(), stream)).await;
    }

    async fn of_sudo(&self, sudo: Identity) -> Option<Arc<Password>> {
        let deadline = tokio::time::Instant::now() + NOTED_WITHIN;
        loop {
            let noted = self.noted.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            if let Some(password) = self.pipelines().get(&sudo).and_then(Weak::upgrade) {
                return Some(password);
            }
            tokio::time::timeout_at(deadline, noted).await.ok()?;
        }
    }
}

impl Password {
    /// One of the pipeline's sudos.
    pub(crate) fn may_be_asked_for(self: &Arc<Password>, sudo: i32) {
        let (Some(desk), Some(sudo)) = (self.desk.upgrade(), Identity::of(sudo)) else { return };
        let mut pipelines = desk.pipelines();
        pipelines.retain(|_, password| password.strong_count() > 0);
        pipelines.insert(sudo, Arc::downgrade(self));
        drop(pipelines);
        desk.noted.notify_waiters();
    }

    /// What sudo needs to know to ask for it.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        [
            ("SUDO_ASKPASS".into(), self.anchor.program().into()),
            (ASKPASS_VARIABLE.into(), self.socket.clone().into()),
        ]
    }

    async fn for_sudo(&self, sudo: Identity) -> Option<&Typed> {
        let attempt = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let count = asked.entry(sudo).or_default();
            *count += 1;
            *count - 1
        };
        let attempt = self.attempts.get(attempt)?;
        attempt.get_or_init(|| ask(&self.ask, &self.what)).await.as_ref()
    }
}

async fn answer(desk: Arc<Desk>, mut stream: UnixStream) {
    let Ok(peer) = message::peer(&stream) else { return };
    let refuse = |why: &str| tracing::warn!(pid = peer.pid, why, "a program may not ask for a password");
    let Some(program) = Identity::of(peer.pid) else { return };
    if !program.is_this_binary() {
        return refuse("it executes another file than the daemon");
    }
    let password = match program.of_parent() {
        Some(sudo) => desk.of_sudo(sudo).await.map(|password| (sudo, password)),
        None => None,
    };
    let Some((sudo, password)) = password else {
        return refuse("its parent is no sudo of this daemon's");
    };
    if !hides(&mut stream).await {
        return refuse("it did not hide its memory");
    }
    // Nobody goes on typing for a sudo that is gone.
    let typed = tokio::select! {
        typed = password.for_sudo(sudo) => typed,
        () = peer_watch::gone(&stream) => None,
    };
    if let Some(typed) = typed {
        let _gone = stream.write_all(typed.as_bytes()).await;
        let _gone = stream.shutdown().await;
    }
}

/// Has the program hide its memory, in which the password will be.
async fn hides(stream: &mut UnixStream) -> bool {
    let hidden = async {
        stream.write_all(&[ASKPASS_RECOGNISED]).await.ok()?;
        stream.read_u8().await.ok()
    };
    tokio::time::timeout(HIDDEN_WITHIN, hidden).await.ok().flatten() == Some(ASKPASS_HIDDEN)
}

async fn ask(how: &AskPassword, what: &str) -> Option<Typed> {
    let asked = async {
        match how {
            AskPassword::Terminal(desk) => {
                let (reply, answer) = oneshot::channel();
                desk.send((what.to_owned(), reply)).await.ok()?;
                answer.await.ok()?
            }
            AskPassword::Program(program) => by_program(program, what).await,
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.ok()?
}

async fn by_program(program: &PathBuf, what: &str) -> Option<Typed> {
    let mut command = Command::new(program);
    // The kernel takes no argument of more than 128 KiB. All of it was shown when it was approved.
    let shown: String = what.chars().take(SHOWN_CHARS_MAX).collect();
    let rest = if shown.len() < what.len() { " ... (the rest was shown before):" } else { "" };
    command.arg(shown + rest).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, program = %program.display(), "the askpass program cannot be run");
            return None;
        }
    };
    let mut typed = Typed::default();
    let stdout = child.stdout.take()?;
    stdout.take(PASSWORD_BYTES_MAX).read_to_string(&mut typed).await.ok()?;
    if !child.wait().await.ok()?.success() {
        return None;
    }
    let end = typed.find('\n').unwrap_or(typed.len());
    Some(Zeroizing::new(typed.get(..end)?.to_owned()))
}
