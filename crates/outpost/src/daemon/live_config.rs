//! The configuration of a running daemon: its load at the start, and its reload.

use super::faces::Faces;
use super::fd_roles;
use outpost_cli::config::{Config, Effective, Processes, needs_restart};
use outpost_cli::flags::Flags;
use outpost_cli::paths::Paths;
use outpost_cli::{log, redact};
use outpost_control::wire::Reloaded;
use outpost_engine::Engine;
use outpost_sys::file;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Larger than the largest accepted configuration file.
const BYTES_MAX: u64 = 2 * 1024 * 1024;

/// The current configuration. The keeper holds the text that was last accepted. The next worker starts from that text, not
/// from a file that may just be being edited.
pub(crate) struct LiveConfig {
    flags: Flags,
    paths: Paths,
    text: String,
    effective: watch::Sender<Arc<Effective>>,
}

/// Writes the text to a memfd, since it may contain secrets.
pub(crate) fn to_memory(text: &str) -> Result<OwnedFd, String> {
    file::sealed_memory("outpost-config", text.as_bytes())
        .map_err(|errno| format!("cannot hold the configuration in memory: {errno}"))
}

impl LiveConfig {
    pub(crate) fn load(
        flags: &Flags,
        paths: &Paths,
        inherited: &HashMap<u8, OwnedFd>,
    ) -> Result<LiveConfig, String> {
        let held =
            inherited.get(&fd_roles::CONFIG).and_then(|memory| file::read_whole(memory, BYTES_MAX).ok());
        let text = match held.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(text) => text,
            None => flags.config_text()?,
        };
        let effective = flags.effective(&text, &paths.state)?;
        apply_process_wide(&effective.config);
        let effective = watch::Sender::new(Arc::new(effective));
        Ok(LiveConfig { flags: flags.clone(), paths: paths.clone(), text, effective })
    }

    /// The configuration file.
    pub(crate) fn file(&self) -> PathBuf {
        self.flags.config_file()
    }

    pub(crate) fn current(&self) -> Arc<Effective> {
        self.effective.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Effective>> {
        self.effective.subscribe()
    }

    /// Gives the text to the keeper for the next worker.
    pub(crate) async fn hold(&self, engine: &Engine) -> Result<(), String> {
        engine.hold(fd_roles::CONFIG, to_memory(&self.text)?).await.map_err(|error| error.to_string())
    }

    /// Reads the file again and applies it. An invalid file changes nothing.
    pub(crate) async fn reload(&mut self, engine: &Engine, faces: &Faces) -> Result<Reloaded, String> {
        let reloaded = match self.apply(engine, faces) {
            Ok(reloaded) => reloaded,
            Err(reason) => {
                for line in reason.lines() {
                    tracing::error!("the configuration is unchanged: {line}");
                }
                return Err(reason);
            }
        };
        let Reloaded { file, changed, needs_restart } = &reloaded;
        tracing::info!(%file, changed = %changed.join(" "), "the configuration was reloaded");
        if !needs_restart.is_empty() {
            tracing::warn!(keys = %needs_restart.join(" "), "these keys change only when the daemon restarts");
        }
        if let Err(error) = self.hold(engine).await {
            let reason = format!(
                "the configuration was reloaded, but the next worker starts with the previous one: {error}"
            );
            tracing::error!("{reason}");
            return Err(reason);
        }
        Ok(reloaded)
    }

    /// Applies the file's settings to this worker.
    fn apply(&mut self, engine: &Engine, faces: &Faces) -> Result<Reloaded, String> {
        if self.paths.is_guard {
            self.paths.guard.check_configuration().map_err(|error| error.to_string())?;
        }
        let text = self.flags.config_text()?;
        let running = self.current();
        let read = self.flags.effective(&text, &self.paths.state)?;
        let (needs_restart, changed) = running.changes(&read).into_iter().partition(|key| needs_restart(key));
        let new = read.with_fixed_keys_of(&running)?;
        // This step can reject the configuration, so it comes before any change.
        faces.configure(&self.paths, &new.config)?;
        engine.configure(|engine| limit_engine(&new.config.processes, engine));
        apply_process_wide(&new.config);
        self.text = text;
        self.effective.send_replace(Arc::new(new));
        Ok(Reloaded { file: self.flags.config_file().display().to_string(), changed, needs_restart })
    }
}

/// Applies the settings that concern the whole process: redaction and log.
fn apply_process_wide(config: &Config) {
    let sessions = &config.sessions;
    for agent in [&sessions.claude, &sessions.codex, &sessions.gemini, &sessions.opencode] {
        redact::learn_environment(agent.env.iter().flatten());
    }
    log::configure(&config.log);
}

/// Copies the `[processes]` table into the engine's configuration.
pub(crate) fn limit_engine(processes: &Processes, engine: &mut outpost_engine::Config) {
    let set = |to: &mut u64, from: Option<u64>| *to = from.unwrap_or(*to);
    set(&mut engine.process_bytes_max, processes.output_bytes_max);
    set(&mut engine.host_bytes_max, processes.journal_bytes_max);
    set(&mut engine.stdin_waiting_max, processes.input_bytes_max);
    engine.processes_max = processes.running_max.unwrap_or(engine.processes_max);
    engine.exited_max = processes.ended_max.unwrap_or(engine.exited_max);
    engine.exited_kept = seconds(processes.ended_kept_s, engine.exited_kept);
    engine.sync_interval = seconds(processes.sync_s, engine.sync_interval);
}

pub(super) fn seconds(given: Option<u64>, default: Duration) -> Duration {
    given.map_or(default, Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_defaults_of_the_configuration_are_the_defaults_of_the_engine() {
        let [default, explicit] = [Processes::default(), Config::defaults(Path::new("/state")).processes]
            .map(|processes| {
                let mut engine = outpost_engine::Config::new("/state");
                limit_engine(&processes, &mut engine);
                format!("{engine:?}")
            });
        assert_eq!(explicit, default);
    }
}
