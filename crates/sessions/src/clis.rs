//! Which agent CLIs this host has: where their programs are, and which versions they are.

use crate::agents::Cli;
use crate::settings::Settings;
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Where people install programs for themselves without telling their PATH.
const BELOW_HOME: [&str; 4] = [".local/bin", ".npm-global/bin", ".opencode/bin", ".bun/bin"];

/// How long what was found is believed.
const BELIEVED: Duration = Duration::from_secs(60);

/// How far above a program the description of its package is looked for.
const PACKAGE_DEPTH: usize = 5;

/// How long a CLI may take to say its version, and how much.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);
const VERSION_BYTES_MAX: usize = 64 * 1024;

/// Since which version each has the interface that we know; claude has it in all that are in use.
const CODEX_RICH: [u32; 3] = [0, 120, 0];
const GEMINI_RICH: [u32; 3] = [0, 50, 0];
const OPENCODE_RICH: [u32; 3] = [1, 0, 0];

/// A CLI on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub program: PathBuf,
    pub version: Option<String>,
}

/// Which of them this host has. Takes as long as a program takes to say its version.
pub fn installed(settings: &Settings) -> Vec<(Cli, Option<Found>)> {
    let clis = Clis::new(settings);
    Cli::ALL.into_iter().map(|cli| (cli, clis.find(cli))).collect()
}

/// What is known of the CLIs, and how they are found.
pub(crate) struct Clis {
    /// Those that the operator says where they are.
    named: Mutex<HashMap<Cli, PathBuf>>,
    known: Mutex<Known>,
}

/// A program by its path, when it was changed, and its size.
type Identity = (PathBuf, Option<SystemTime>, u64);

#[derive(Default)]
struct Known {
    found: HashMap<Cli, Option<Found>>,
    looked: Option<Instant>,
    is_looking: bool,
    /// Versions of programs by what identifies a file.
    versions: HashMap<Identity, (Option<String>, Instant)>,
}

impl Clis {
    pub(crate) fn new(settings: &Settings) -> Clis {
        let clis = Clis { named: Mutex::default(), known: Mutex::default() };
        clis.name(settings);
        clis
    }

    /// As the operator says now where they are.
    pub(crate) fn name(&self, settings: &Settings) {
        let named = Cli::ALL.into_iter().filter_map(|cli| Some((cli, settings.agent(cli).program.clone()?)));
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = named.collect();
        self.known().looked = None;
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a CLI's program is now. Looks at the disk.
    pub(crate) fn program(&self, cli: Cli) -> Option<PathBuf> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner).get(&cli).cloned();
        if named.is_some() {
            return named;
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let home = outpost_sys::user::home().unwrap_or_default();
        let own = BELOW_HOME.iter().map(|dir| home.join(dir));
        let dirs = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(own);
        dirs.map(|dir| dir.join(cli.name())).find(|program| is_executable(program))
    }

    /// What was found when somebody last looked; looks again, elsewhere, when that is long ago.
    pub(crate) fn all(self: &Arc<Clis>) -> Vec<(Cli, Option<Found>)> {
        let mut known = self.known();
        let is_old = known.looked.is_none_or(|looked| looked.elapsed() > BELIEVED);
        if is_old && !known.is_looking {
            known.is_looking = true;
            let clis = self.clone();
            tokio::task::spawn_blocking(move || clis.look());
        }
        Cli::ALL.into_iter().map(|cli| (cli, known.found.get(&cli).cloned().flatten())).collect()
    }

    /// Looks for all of them. Takes as long as a program takes to say its version.
    pub(crate) fn look(&self) {
        let found: HashMap<Cli, Option<Found>> =
            Cli::ALL.into_iter().map(|cli| (cli, self.find(cli))).collect();
        let mut known = self.known();
        known.found = found;
        known.looked = Some(Instant::now());
        known.is_looking = false;
    }

    fn find(&self, cli: Cli) -> Option<Found> {
        let program = self.program(cli).filter(|program| is_executable(program))?;
        let version = self.version(cli, &program);
        Some(Found { program, version })
    }

    /// Whether this CLI is known to have its richer interface. One that we cannot tell is called as scripts call it.
    pub(crate) fn is_rich(&self, cli: Cli) -> bool {
        let since = match cli {
            Cli::Codex => CODEX_RICH,
            Cli::Opencode => OPENCODE_RICH,
            Cli::Claude => return true,
            Cli::Gemini => GEMINI_RICH,
        };
        let Some(program) = self.program(cli) else { return false };
        self.version(cli, &program)
            .and_then(|version| numbers(&version))
            .is_some_and(|version| version >= since)
    }

    /// Whether it is the agent itself, as far as its package or its own word tell.
    pub(crate) fn is_real(&self, cli: Cli) -> bool {
        self.program(cli).is_some_and(|program| self.version(cli, &program).is_some())
    }

    fn version(&self, cli: Cli, program: &Path) -> Option<String> {
        let real = program.canonicalize().ok()?;
        let metadata = real.metadata().ok()?;
        let identity = (real.clone(), metadata.modified().ok(), metadata.len());
        // A program whose version is not known is looked at again: it may have lacked memory or descriptors to tell.
        if let Some((version, looked)) = self.known().versions.get(&identity)
            && (version.is_some() || looked.elapsed() < BELIEVED)
        {
            return version.clone();
        }
        let version =
            packaged_version(cli, &real).or_else(|| version_in_name(&real)).or_else(|| asked_version(&real));
        self.known().versions.insert(identity, (version.clone(), Instant::now()));
        version
    }
}

fn is_executable(program: &Path) -> bool {
    program.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// As the package says that the program came in.
fn packaged_version(cli: Cli, program: &Path) -> Option<String> {
    let packages: &[&str] = match cli {
        Cli::Claude => &["@anthropic-ai/claude-code"],
        Cli::Codex => &["@openai/codex"],
        Cli::Gemini => &["@google/gemini-cli"],
        Cli::Opencode => &["opencode-ai", "opencode-linux-"],
    };
    program.ancestors().skip(1).take(PACKAGE_DEPTH).find_map(|dir| {
        let text = std::fs::read_to_string(dir.join("package.json")).ok()?;
        let package: serde_json::Value = serde_json::from_str(&text).ok()?;
        let name = package.get("name")?.as_str()?;
        let is_ours = packages.iter().any(|package| name.starts_with(package));
        let version = package.get("version")?.as_str()?;
        is_ours.then(|| version.split('-').next().unwrap_or(version).to_owned())
    })
}

/// Installers that keep several name each after its version.
fn version_in_name(program: &Path) -> Option<String> {
    let names = program.iter().rev().take(2).filter_map(|name| name.to_str());
    names.filter(|name| numbers(name).is_some()).map(str::to_owned).next()
}

/// As the program says itself. A script is not asked: who knows what it takes the question for.
fn asked_version(program: &Path) -> Option<String> {
    let mut head = [0; 4];
    std::fs::File::open(program).ok()?.read_exact(&mut head).ok()?;
    if head != *b"\x7fELF" {
        return None;
    }
    let mut asked = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env("DISABLE_AUTOUPDATER", "1")
        .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
        .spawn()
        .ok()?;
    let said = asked.stdout.take().and_then(said_in_time);
    let _gone_already = asked.kill();
    let _reaped = asked.wait();
    let text = said?;
    text.split_whitespace().find(|word| numbers(word).is_some()).map(str::to_owned)
}

/// What comes until the other side is closed, if that is soon.
fn said_in_time(mut pipe: std::process::ChildStdout) -> Option<String> {
    let deadline = Instant::now() + VERSION_PATIENCE;
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while said.len() < VERSION_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if !outpost_sys::epoll::wait_readable(&pipe, left).ok()? {
            return None;
        }
        match pipe.read(&mut piece).ok()? {
            0 => break,
            read => said.extend_from_slice(piece.get(..read)?),
        }
    }
    Some(String::from_utf8_lossy(&said).into_owned())
}

/// `1.18.33` as numbers.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_package_and_never_by_running_a_script() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("node_modules/@openai/codex/bin");
        std::fs::create_dir_all(&bin).unwrap();
        let package = r#"{"name":"@openai/codex","version":"0.166.0-linux-x64"}"#;
        std::fs::write(bin.parent().unwrap().join("package.json"), package).unwrap();
        let program = bin.join("codex.js");
        std::fs::write(&program, "#!/bin/sh\ntouch ran\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(packaged_version(Cli::Codex, &program).as_deref(), Some("0.166.0"));
        assert_eq!(packaged_version(Cli::Claude, &program), None);
        assert_eq!(asked_version(&program), None);
        assert_eq!(numbers("2.1.325"), Some([2, 1, 325]));
        assert_eq!(numbers("2.1"), None);
    }
}
