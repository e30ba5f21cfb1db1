//! Flags of `outpost serve`, which its worker gets again.

use crate::config::{self, Config, Effective};
use crate::listen::Listen;
use crate::log::Format;
use crate::paths::Paths;
use crate::{broker_face, sessions_face};
use clap::{Args, ValueEnum};
use std::ffi::CString;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct Flags {
    /// The configuration file [default: $XDG_CONFIG_HOME/outpost/outpost.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Offer the exec face as a websocket on this loopback address too, to clients that have its token; or none
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) exec_websocket: Option<Listen>,
    #[command(flatten)]
    pub(crate) sessions: sessions_face::Flags,
    #[command(flatten)]
    pub(crate) broker: broker_face::Flags,
    /// Offer metrics for Prometheus on this loopback address; or none
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics_listen: Option<Listen>,
    /// What lines of the log look like [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<Format>,
    /// The configuration where none is named.
    #[arg(skip)]
    pub(crate) default_config: Option<PathBuf>,
}

impl Flags {
    /// As the worker is told them.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        let flags = [
            ("--config", self.config.as_ref().map(|path| path.display().to_string())),
            ("--exec-websocket", self.exec_websocket.map(|at| at.to_string())),
            ("--metrics-listen", self.metrics_listen.map(|at| at.to_string())),
            (
                "--log-format",
                self.log_format.and_then(|format| Some(format.to_possible_value()?.get_name().to_owned())),
            ),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        let own = given.filter_map(|flag| CString::new(flag).ok());
        own.chain(self.sessions.arguments()).chain(self.broker.arguments()).collect()
    }

    /// As the daemon with these directories takes them. The guard's configuration is in one place.
    pub(crate) fn of(mut self, paths: &Paths) -> Result<Flags, String> {
        if !paths.is_guard {
            return Ok(self);
        }
        if self.config.is_some() || self.broker.rules.is_some() {
            let etc = paths.guard.etc();
            return Err(format!(
                "--config and --rules are not for the guard: it reads {} only",
                etc.display()
            ));
        }
        paths.guard.check_configuration()?;
        self.default_config = Some(paths.guard.config());
        Ok(self)
    }

    /// With paths that mean the same to a process that begins elsewhere.
    pub(crate) fn absolute(mut self) -> Flags {
        for path in [&mut self.config, &mut self.broker.rules].into_iter().flatten() {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        self
    }

    /// What they settle, as the file would.
    fn settle(&self) -> Config {
        let mut config = Config::default();
        config.exec.websocket = self.exec_websocket;
        config.metrics.listen = self.metrics_listen;
        config.log.format = self.log_format;
        config.sessions.listen = self.sessions.sessions_listen;
        config.sessions.tls_cert = self.sessions.tls_cert.clone();
        config.sessions.tls_key = self.sessions.tls_key.clone();
        config.broker.ask_timeout_s = self.broker.ask_timeout;
        config.broker.run_timeout_s = self.broker.run_timeout;
        config.approvals.rules = self.broker.rules.clone();
        config
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.config.clone().or_else(|| self.default_config.clone()).unwrap_or_else(config::default_file)
    }

    /// The text of the file. One that was named must be there; where nobody named one, there may be none.
    pub(crate) fn text(&self) -> Result<String, String> {
        let file = self.file();
        match config::read(&file)? {
            Some(text) => Ok(text),
            None if self.config.is_none() => Ok(String::new()),
            None => {
                Err(format!("{}: there is no such file; write it or leave --config away", file.display()))
            }
        }
    }

    /// What holds with this text.
    pub(crate) fn effective(&self, text: &str, state: &Path) -> Result<Effective, String> {
        Effective::new(&self.file(), text, &self.settle(), state)
    }
}
