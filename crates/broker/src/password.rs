//! The password that sudo may want: asked for once for a whole pipeline, given to the sudos of that pipeline only.
//!
//! Sudo runs a program to ask. That program is this binary under another name; it connects to a socket of ours, and the
//! kernel tells whether its parent is a sudo that we have started. Nothing secret is in arguments, environment or files.

use crate::peer_watch;
use outpost_sys::{message, procfs};
use std::collections::HashMap;
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

/// The name under which this binary is called by sudo.
pub const ASKPASS_NAME: &str = "outpost-askpass";
/// The socket beside it.
pub const ASKPASS_SOCKET: &str = "askpass.sock";

pub type Typed = Zeroizing<String>;

/// How a password is asked for.
#[derive(Clone, Debug)]
pub struct Askpass {
    pub who: AskPassword,
    /// What sudo runs to ask: this binary by the name of [`ASKPASS_NAME`], beside [`ASKPASS_SOCKET`].
    pub link: PathBuf,
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
    asked: Mutex<HashMap<i32, usize>>,
}

/// Every pipeline whose sudos may ask.
#[derive(Default)]
pub(crate) struct Desk {
    pipelines: Mutex<HashMap<i32, Weak<Password>>>,
    noted: tokio::sync::Notify,
}

impl Desk {
    fn pipelines(&self) -> MutexGuard<'_, HashMap<i32, Weak<Password>>> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn password(self: &Arc<Desk>, ask: AskPassword, what: String) -> Arc<Password> {
        let attempts = [OnceCell::new(), OnceCell::new(), OnceCell::new()];
        Arc::new(Password { ask, what, desk: Arc::downgrade(self), attempts, asked: Mutex::default() })
    }

    /// Answers programs that sudo has started, for ever.
    pub(crate) async fn serve(self: Arc<Desk>, listener: UnixListener) {
        const ASKING_MAX: usize = 64;
        let desk = self.clone();
        outpost_wire::accept_all(listener, ASKING_MAX, move |stream| answer(desk.clone(), stream)).await;
    }

    async fn of_parent(&self, parent: i32) -> Option<Arc<Password>> {
        let deadline = tokio::time::Instant::now() + NOTED_WITHIN;
        loop {
            let noted = self.noted.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            if let Some(password) = self.pipelines().get(&parent).and_then(Weak::upgrade) {
                return Some(password);
            }
            tokio::time::timeout_at(deadline, noted).await.ok()?;
        }
    }
}

impl Password {
    /// One of the pipeline's sudos.
    pub(crate) fn may_be_asked_for(self: &Arc<Password>, sudo: i32) {
        let Some(desk) = self.desk.upgrade() else { return };
        let mut pipelines = desk.pipelines();
        pipelines.retain(|_, password| password.strong_count() > 0);
        pipelines.insert(sudo, Arc::downgrade(self));
        drop(pipelines);
        desk.noted.notify_waiters();
    }

    async fn for_sudo(&self, sudo: i32) -> Option<&Typed> {
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
    let parent = procfs::stat(peer.pid).map(|stat| stat.parent).unwrap_or_default();
    let Some(password) = desk.of_parent(parent).await else {
        return tracing::warn!(
            pid = peer.pid,
            "a program that no sudo of ours has started asked for a password"
        );
    };
    // Nobody goes on typing for a sudo that is gone.
    let typed = tokio::select! {
        typed = password.for_sudo(parent) => typed,
        () = peer_watch::gone(&stream) => None,
    };
    if let Some(typed) = typed {
        let _gone = stream.write_all(typed.as_bytes()).await;
        let _gone = stream.shutdown().await;
    }
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
