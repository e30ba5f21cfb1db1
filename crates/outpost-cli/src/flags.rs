//! Flags of `outpost serve`; the keeper passes them on to every worker.

use crate::config::{self, Config, Effective};
use crate::listen::ListenAddress;
use crate::log::Format;
use crate::paths::Paths;
use clap::{Args, ValueEnum};
use std::ffi::CString;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Flags {
    /// The configuration file [default: $XDG_CONFIG_HOME/outpost/outpost.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve the exec face as a websocket on this loopback address, or none; clients need its token
    #[arg(long, value_name = "IP:PORT")]
    pub exec_websocket: Option<ListenAddress>,
    #[command(flatten)]
    pub sessions: SessionsFlags,
    #[command(flatten)]
    pub broker: BrokerFlags,
    /// Serve Prometheus metrics on this loopback address, or none
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_listen: Option<ListenAddress>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Format>,
    /// The configuration file if `--config` is not given.
    #[arg(skip)]
    pub default_config: Option<PathBuf>,
}

impl Flags {
    /// The same flags as arguments for the worker's command line.
    pub fn arguments(&self) -> Vec<CString> {
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
    pub fn for_daemon(mut self, paths: &Paths) -> Result<Flags, String> {
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
    pub fn absolute(mut self) -> Flags {
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

    pub fn config_file(&self) -> PathBuf {
        self.config.clone().or_else(|| self.default_config.clone()).unwrap_or_else(config::default_file)
    }

    /// Reads the configuration file. A missing file is an error only if `--config` names it.
    pub fn config_text(&self) -> Result<String, String> {
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
    pub fn effective(&self, text: &str, state: &Path) -> Result<Effective, String> {
        Effective::new(&self.config_file(), text, &self.as_config(), state)
    }
}

/// Flags of `serve` for sessions; the keeper passes them on to every worker.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub struct SessionsFlags {
    /// Where the sessions face listens, or none [default: 127.0.0.1:9100, or the first free port after it]
    #[arg(long, value_name = "IP:PORT")]
    pub sessions_listen: Option<ListenAddress>,
    /// Run as the codecast drop-in: the sessions face only, with the files of the original
    #[arg(long, hide = true)]
    pub codecast: bool,
    #[arg(long, hide = true)]
    pub codecast_tokens: Option<PathBuf>,
    #[arg(long, hide = true, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    #[arg(long, hide = true, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl SessionsFlags {
    /// The same flags as arguments for the worker's command line.
    fn arguments(&self) -> Vec<CString> {
        let path = |path: &PathBuf| path.display().to_string();
        let flags = [
            ("--sessions-listen", self.sessions_listen.map(|at| at.to_string())),
            ("--codecast-tokens", self.codecast_tokens.as_ref().map(path)),
            ("--tls-cert", self.tls_cert.as_ref().map(path)),
            ("--tls-key", self.tls_key.as_ref().map(path)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        let drop_in = self.codecast.then(|| "--codecast".to_owned());
        given.chain(drop_in).filter_map(|flag| CString::new(flag).ok()).collect()
    }
}

/// Flags of `serve` for the broker; the keeper passes them on to every worker.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub struct BrokerFlags {
    /// How long a question waits for an approver, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub ask_timeout: Option<u64>,
    /// How long an approved command may run, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub run_timeout: Option<u64>,
    /// The rules file; if /etc/outpost exists, only rules there can allow [default: rules.toml beside the configuration]
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
}

impl BrokerFlags {
    /// The same flags as arguments for the worker's command line.
    fn arguments(&self) -> Vec<CString> {
        let path = |path: &PathBuf| path.display().to_string();
        let number = |number: u64| number.to_string();
        let flags = [
            ("--ask-timeout", self.ask_timeout.map(number)),
            ("--run-timeout", self.run_timeout.map(number)),
            ("--rules", self.rules.as_ref().map(path)),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value?)));
        given.filter_map(|flag| CString::new(flag).ok()).collect()
    }
}
