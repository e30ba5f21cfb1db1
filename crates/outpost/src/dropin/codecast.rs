//! The `codecast-daemon` drop-in: the sessions face alone, with the configuration, port and token files of the original.

use crate::daemon::serve;
use crate::daemon::serve::ServeError;
use outpost_cli::config::SESSIONS_ADDRESS;
use outpost_cli::flags::{Flags, SessionsFlags};
use outpost_cli::listen::ListenAddress;
use outpost_cli::paths::{Dirs, Paths};
use outpost_cli::{ServeOptions, errln, log, outln};
use serde::Deserialize;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) const NAME: &str = "codecast-daemon";

/// `~/.codecast/daemon.yaml`. Unknown keys are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    port: Option<u16>,
    bind: Option<String>,
    tokens_file: Option<String>,
    tls_cert: Option<String>,
    tls_key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokensFile {
    tokens: Vec<OriginalToken>,
}

#[derive(Debug, Deserialize)]
struct OriginalToken {
    token: String,
}

/// "everything else is ignored": unknown flags are no error.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if arguments.into_iter().any(|argument| argument == "--version" || argument == "-V") {
        outln!("{NAME} {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    log::init("info");
    match start() {
        Ok(code) => code,
        Err(reason) => {
            errln!("{NAME}: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<ExitCode, String> {
    let config = load(&dir().join("daemon.yaml"));
    let address = address(&config, std::env::var("DAEMON_BIND").ok(), std::env::var("DAEMON_PORT").ok())?;
    std::fs::create_dir_all(dir()).map_err(|error| format!("{}: {error}", dir().display()))?;
    let sessions = SessionsFlags {
        sessions_listen: Some(ListenAddress::At(address)),
        codecast: true,
        codecast_tokens: Some(
            config.tokens_file.map_or_else(|| dir().join("tokens.yaml"), |file| expand(&file)),
        ),
        tls_cert: config.tls_cert.as_deref().map(expand),
        tls_key: config.tls_key.as_deref().map(expand),
    };
    let flags = Flags { sessions, ..Flags::default() };
    let served = serve::serve(&paths()?, &ServeOptions { detach: false, flags });
    match (served, std::fs::read_to_string(port_file())) {
        // There is one daemon per user. A second start reports the port of the running one.
        (Err(ServeError::AlreadyRunning(reason)), Ok(port)) => {
            outln!("DAEMON_PORT={}", port.trim());
            errln!("{NAME}: {reason}");
            Ok(ExitCode::SUCCESS)
        }
        (Err(error), _) => Err(error.reason()),
        (Ok(()), _) => Ok(ExitCode::SUCCESS),
    }
}

/// Directories apart from those of `outpost serve`, so that both can run.
fn paths() -> Result<Paths, String> {
    let paths = Dirs::from_environment().resolve()?;
    let state = paths.state.join("codecast");
    Ok(Paths { runtime: state.join("run"), state, ..paths })
}

/// The token file of `outpost token`, which uses the state directory of `outpost serve`.
pub(crate) fn own_tokens(paths: &Paths) -> PathBuf {
    let state = paths.state.parent().unwrap_or(&paths.state);
    Paths { state: state.to_owned(), ..paths.clone() }.tokens()
}

fn home() -> PathBuf {
    outpost_sys::user::home().unwrap_or_default()
}

fn dir() -> PathBuf {
    home().join(".codecast")
}

/// The file from which the original's clients read the port.
pub(crate) fn port_file() -> PathBuf {
    dir().join("daemon.port")
}

/// Files of the original that every sandbox hides: the plain tokens and the port.
pub(crate) fn private() -> [PathBuf; 2] {
    [dir().join("tokens.yaml"), port_file()]
}

fn expand(path: &str) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home().join(rest),
        None => path.into(),
    }
}

/// "bad YAML -> warning and defaults".
fn load(path: &Path) -> Config {
    let Ok(text) = std::fs::read_to_string(path) else { return Config::default() };
    serde_yaml_ng::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!("{}: {error}; defaults are used", path.display());
        Config::default()
    })
}

fn address(config: &Config, bind: Option<String>, port: Option<String>) -> Result<SocketAddr, String> {
    let port = match port.filter(|text| !text.is_empty()) {
        Some(text) => text.trim().parse().map_err(|_| format!("DAEMON_PORT is not a port: {text:?}"))?,
        None => config.port.unwrap_or(SESSIONS_ADDRESS.port()),
    };
    let bind = bind.filter(|text| !text.is_empty()).or_else(|| config.bind.clone());
    let ip = match bind.as_deref().map(str::trim) {
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some(name) if name.eq_ignore_ascii_case("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some("::1" | "[::1]") => IpAddr::V6(Ipv6Addr::LOCALHOST),
        Some(text) => text.parse().map_err(|_| format!("cannot listen on {text:?}: not an address"))?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// The tokens in the original's file, which contains them in plain text.
pub(crate) fn tokens(file: &Path) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(file) else { return Vec::new() };
    match serde_yaml_ng::from_str::<TokensFile>(&text) {
        Ok(found) => {
            found.tokens.into_iter().map(|token| token.token).filter(|token| !token.is_empty()).collect()
        }
        Err(_) => {
            tracing::warn!("cannot parse {}; its tokens are not accepted", file.display());
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_loopback_interface_are_addresses() {
        let config = Config { port: Some(9200), bind: Some("0.0.0.0".into()), ..Config::default() };
        let at = |bind: Option<&str>, port: Option<&str>| {
            address(&config, bind.map(str::to_owned), port.map(str::to_owned)).unwrap().to_string()
        };
        assert_eq!(at(None, None), "0.0.0.0:9200");
        assert_eq!(at(Some("localhost"), Some("9300")), "127.0.0.1:9300");
        assert_eq!(at(Some("::1"), Some("")), "[::1]:9200");
        assert!(address(&config, None, Some("x".into())).is_err());
        assert_eq!(address(&Config::default(), None, None).unwrap(), SESSIONS_ADDRESS);
    }

    #[test]
    fn files_of_the_original_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.yaml");
        std::fs::write(&file, "tokens:\n- token: ccast_ab\n  label: laptop\n  created: '2026-01-01'\n")
            .unwrap();
        assert_eq!(tokens(&file), ["ccast_ab"]);
        let config = dir.path().join("daemon.yaml");
        std::fs::write(&config, "port: 9111\nbind: 127.0.0.1\nsomething: else\n").unwrap();
        assert_eq!(load(&config).port, Some(9111));
        std::fs::write(&config, "port: [").unwrap();
        assert_eq!(load(&config).port, None);
    }
}
