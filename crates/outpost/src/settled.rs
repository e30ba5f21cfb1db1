//! The configuration of a running daemon: what it began with, and what becomes of it when it is read again.

use crate::config::{Config, Effective, needs_restart};
use crate::faces::Faces;
use crate::flags::Flags;
use crate::paths::Paths;
use crate::{log, redact, roles};
use outpost_control::wire::{Reloaded, Settings};
use outpost_engine::Engine;
use outpost_sys::file;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// More than any file that we take.
const BYTES_MAX: u64 = 2 * 1024 * 1024;

/// What is in force. The keeper has the text that was last accepted: a worker that comes after us begins with that, and not
/// with whatever somebody is just writing.
pub(crate) struct Settled {
    flags: Flags,
    paths: Paths,
    text: String,
    effective: watch::Sender<Arc<Effective>>,
}

/// A text as the keeper holds it. It may have secrets in it.
pub(crate) fn to_memory(text: &str) -> Result<OwnedFd, String> {
    file::sealed_memory("outpost-config", text.as_bytes())
        .map_err(|errno| format!("cannot keep the configuration: {errno}"))
}

impl Settled {
    pub(crate) fn begin(flags: &Flags, paths: &Paths, own: &HashMap<u8, OwnedFd>) -> Result<Settled, String> {
        let held = own.get(&roles::CONFIG).and_then(|memory| file::read_whole(memory, BYTES_MAX).ok());
        let text = match held.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(text) => text,
            None => flags.text()?,
        };
        let effective = flags.effective(&text, &paths.state)?;
        in_effect(&effective.config);
        let effective = watch::Sender::new(Arc::new(effective));
        Ok(Settled { flags: flags.clone(), paths: paths.clone(), text, effective })
    }

    /// The file that it comes from.
    pub(crate) fn file(&self) -> PathBuf {
        self.flags.file()
    }

    pub(crate) fn config(&self) -> Arc<Effective> {
        self.effective.borrow().clone()
    }

    /// For who shows it.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Effective>> {
        self.effective.subscribe()
    }

    /// Sees to it that the next worker has the same.
    pub(crate) async fn hold(&self, engine: &Engine) -> Result<(), String> {
        engine.hold(roles::CONFIG, to_memory(&self.text)?).await.map_err(|error| error.to_string())
    }

    /// Reads the file again. One that is wrong changes nothing.
    pub(crate) async fn reload(&mut self, engine: &Engine, faces: &Faces) -> Result<Reloaded, String> {
        let reloaded = self.try_reload(engine, faces).await;
        match &reloaded {
            Ok(reloaded) => {
                let Reloaded { file, changed, needs_restart } = reloaded;
                tracing::info!(%file, changed = %changed.join(" "), "the configuration was read again");
                if !needs_restart.is_empty() {
                    tracing::warn!(keys = %needs_restart.join(" "), "these take a restart of the daemon to change");
                }
            }
            Err(reason) => {
                for line in reason.lines() {
                    tracing::error!("the configuration stays as it was: {line}");
                }
            }
        }
        reloaded
    }

    async fn try_reload(&mut self, engine: &Engine, faces: &Faces) -> Result<Reloaded, String> {
        if self.paths.is_guard {
            self.paths.guard.check_configuration()?;
        }
        let text = self.flags.text()?;
        let running = self.config();
        let read = self.flags.effective(&text, &self.paths.state)?;
        let (needs_restart, changed) = running.changes(&read).into_iter().partition(|key| needs_restart(key));
        let new = read.held_back(&running)?;
        // The only one that can fail goes first.
        faces.configure(&self.paths, &new.config)?;
        engine.configure(|engine| new.config.limit_engine(engine));
        in_effect(&new.config);
        self.text = text;
        self.effective.send_replace(Arc::new(new));
        self.hold(engine).await?;
        Ok(Reloaded { file: self.flags.file().display().to_string(), changed, needs_restart })
    }
}

/// What concerns the whole process.
fn in_effect(config: &Config) {
    let sessions = &config.sessions;
    for agent in [&sessions.claude, &sessions.codex, &sessions.gemini, &sessions.opencode] {
        redact::learn_environment(agent.env.iter().flatten());
    }
    log::configure(&config.log);
}

/// What of it may be seen.
pub(crate) fn shown(file: String, effective: &Effective) -> Settings {
    Settings { file, settings: effective.shown() }
}
