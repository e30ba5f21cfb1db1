//! Flags of `outpost serve`; the keeper passes them on to every worker.

use crate::config::{self, Config, Effective};
use crate::daemon::{broker_face, sessions_face};
use crate::listen::ListenAddress;
use crate::log::Format;
use crate::paths::Paths;
use clap::{Args, ValueEnum};
use std::ffi::CString;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct Flags {
    /// The configuration file [default: $XDG_CONFIG_HOME/outpost/outpost.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Serve the exec face as a websocket on this loopback address, or none; clients need its token
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) exec_websocket: Option<ListenAddress>,
    #[command(flatten)]
    pub(crate) sessions: sessions_face::Flags,
    #[command(flatten)]
    pub(crate) broker: broker_face::Flags,
    /// Serve Prometheus metrics on this loopback address, or none
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics_listen: Option<ListenAddress>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<Format>,
    /// The configuration file if `--config` is not given.
    #[arg(skip)]
    pub(crate) default_config: Option<PathBuf>,
}

impl Flags {
    /// The same flags as arguments for the worker's command line.
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

    /// Checks the flags against the kind of daemon. The guard reads its fixed configuration file only.
    pub(crate) fn for_daemon(mut self, paths: &Paths) -> Result<Flags, String> {
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
        paths.guard.check_configuration().map_err(|error| error.to_string())?;
        self.default_config = Some(paths.guard.config());
        Ok(self)
    }

    /// Makes all paths absolute, so that they do not depend on the worker's working directory.
    pub(crate) fn absolute(mut self) -> Flags {
        for path in [&mut self.config, &mut self.broker.rules].into_iter().flatten() {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        self
    }

    /// The configuration layer that these flags form.
    fn as_config(&self) -> Config {
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

    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.clone().or_else(|| self.default_config.clone()).unwrap_or_else(config::default_file)
    }

    /// Reads the configuration file. A missing file is an error only if `--config` names it.
    pub(crate) fn config_text(&self) -> Result<String, String> {
        let file = self.config_file();
        match config::read(&file)? {
            Some(text) => Ok(text),
            None if self.config.is_none() => Ok(String::new()),
            None => {
                Err(format!("config file not found: {}\nhint: create it, or omit `--config`", file.display()))
            }
        }
    }

    /// Merges defaults, this text of the configuration file and the flags.
    pub(crate) fn effective(&self, text: &str, state: &Path) -> Result<Effective, String> {
        Effective::new(&self.config_file(), text, &self.as_config(), state)
    }
}
