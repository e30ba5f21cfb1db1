//! The agent CLIs on this host: their programs and versions.

use crate::agents::Cli;
use crate::settings::Settings;
use outpost_sys::bounded_command::{self, Limits};
use semver::Version;
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Install directories in HOME that are often missing in the daemon's PATH.
const HOME_BIN_DIRS: [&str; 4] = [".local/bin", ".npm-global/bin", ".opencode/bin", ".bun/bin"];

/// How long a search result is reused.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// How many directories above a program its `package.json` is searched.
const PACKAGE_DEPTH: usize = 5;

/// Limits of `--version`.
const VERSION_LIMITS: Limits =
    Limits { timeout: Duration::from_secs(10), output_bytes_max: 64 * 1024, merge_stderr: false };

/// A CLI on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledCli {
    pub program: PathBuf,
    pub version: Option<String>,
}

/// All CLIs with their programs, if installed. Blocking: may run each program with `--version`.
pub fn installed(settings: &Settings) -> Vec<(Cli, Option<InstalledCli>)> {
    let clis = CliCatalog::new(settings);
    Cli::ALL.into_iter().map(|cli| (cli, clis.find(cli))).collect()
}

/// Finds the CLIs and caches the result.
pub(crate) struct CliCatalog {
    /// Programs that the operator configured.
    configured: Mutex<HashMap<Cli, PathBuf>>,
    cache: Mutex<Cache>,
}

/// Path, modification time and size of a program.
type Identity = (PathBuf, Option<SystemTime>, u64);

#[derive(Default)]
struct Cache {
    found: HashMap<Cli, Option<InstalledCli>>,
    refreshed: Option<Instant>,
    is_refreshing: bool,
    /// Versions by program identity, with the time of the search.
    versions: HashMap<Identity, (Option<String>, Instant)>,
}

impl CliCatalog {
    pub(crate) fn new(settings: &Settings) -> CliCatalog {
        let clis = CliCatalog { configured: Mutex::default(), cache: Mutex::default() };
        clis.configure(settings);
        clis
    }

    /// Applies the configured programs of these settings.
    pub(crate) fn configure(&self, settings: &Settings) {
        let configured =
            Cli::ALL.into_iter().filter_map(|cli| Some((cli, settings.agent(cli).program.clone()?)));
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = configured.collect();
        self.cache().refreshed = None;
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a CLI's program. Blocking.
    pub(crate) fn program(&self, cli: Cli) -> Option<PathBuf> {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner).get(&cli).cloned();
        if configured.is_some() {
            return configured;
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let home = outpost_sys::user::home().unwrap_or_default();
        let own = HOME_BIN_DIRS.iter().map(|dir| home.join(dir));
        let dirs = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(own);
        dirs.map(|dir| dir.join(cli.name())).find(|program| is_executable(program))
    }

    /// The cached result. Starts a refresh on a blocking thread if it is old.
    pub(crate) fn all(self: &Arc<CliCatalog>) -> Vec<(Cli, Option<InstalledCli>)> {
        let mut cache = self.cache();
        let is_old = cache.refreshed.is_none_or(|at| at.elapsed() > CACHE_TTL);
        if is_old && !cache.is_refreshing {
            cache.is_refreshing = true;
            let clis = self.clone();
            tokio::task::spawn_blocking(move || clis.refresh());
        }
        Cli::ALL.into_iter().map(|cli| (cli, cache.found.get(&cli).cloned().flatten())).collect()
    }

    /// Searches all CLIs. Blocking: may run each program with `--version`.
    pub(crate) fn refresh(&self) {
        let found: HashMap<Cli, Option<InstalledCli>> =
            Cli::ALL.into_iter().map(|cli| (cli, self.find(cli))).collect();
        let mut cache = self.cache();
        cache.found = found;
        cache.refreshed = Some(Instant::now());
        cache.is_refreshing = false;
    }

    fn find(&self, cli: Cli) -> Option<InstalledCli> {
        let program = self.program(cli).filter(|program| is_executable(program))?;
        let version = self.version(cli, &program);
        Some(InstalledCli { program, version })
    }

    /// Whether the CLI has its interactive interface. A CLI of unknown version is run like a script would run it.
    pub(crate) fn has_interactive_mode(&self, cli: Cli) -> bool {
        let Some(since) = &cli.profile().interactive_since else { return true };
        let Some(program) = self.program(cli) else { return false };
        self.version(cli, &program)
            .and_then(|version| parse_release(&version))
            .is_some_and(|version| version >= *since)
    }

    /// Whether the program is the real CLI rather than a substitute: only that has a known version.
    pub(crate) fn is_genuine(&self, cli: Cli) -> bool {
        self.program(cli).is_some_and(|program| self.version(cli, &program).is_some())
    }

    fn version(&self, cli: Cli, program: &Path) -> Option<String> {
        let real = program.canonicalize().ok()?;
        let metadata = real.metadata().ok()?;
        let identity = (real.clone(), metadata.modified().ok(), metadata.len());
        // An unknown version is searched again, because the program may have failed for lack of memory or descriptors.
        if let Some((version, searched)) = self.cache().versions.get(&identity)
            && (version.is_some() || searched.elapsed() < CACHE_TTL)
        {
            return version.clone();
        }
        let version = packaged_version(cli, &real)
            .or_else(|| version_in_name(&real))
            .or_else(|| reported_version(&real));
        self.cache().versions.insert(identity, (version.clone(), Instant::now()));
        version
    }
}

fn is_executable(program: &Path) -> bool {
    program.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The version in the `package.json` above the program.
fn packaged_version(cli: Cli, program: &Path) -> Option<String> {
    program.ancestors().skip(1).take(PACKAGE_DEPTH).find_map(|dir| {
        let text = std::fs::read_to_string(dir.join("package.json")).ok()?;
        let package: serde_json::Value = serde_json::from_str(&text).ok()?;
        let name = package.get("name")?.as_str()?;
        let is_ours = cli.profile().packages.iter().any(|package| name.starts_with(package));
        let version = package.get("version")?.as_str()?;
        is_ours.then(|| version.split('-').next().unwrap_or(version).to_owned())
    })
}

/// Installers with several versions name the program or its directory by version.
fn version_in_name(program: &Path) -> Option<String> {
    let names = program.iter().rev().take(2).filter_map(|name| name.to_str());
    names.filter(|name| parse_release(name).is_some()).map(str::to_owned).next()
}

/// The output of `--version`. Only of ELF programs: a script may do anything with the flag.
fn reported_version(program: &Path) -> Option<String> {
    let mut head = [0; 4];
    std::fs::File::open(program).ok()?.read_exact(&mut head).ok()?;
    if head != *b"\x7fELF" {
        return None;
    }
    let mut command = Command::new(program);
    command.arg("--version").env("DISABLE_AUTOUPDATER", "1").env("OPENCODE_DISABLE_AUTOUPDATE", "1");
    // A process that the program leaves behind may hold its output open.
    let has_release = |stdout: &[u8]| first_release(stdout).is_some();
    let output = bounded_command::run(&mut command, &VERSION_LIMITS, has_release).ok()?;
    match output.killed {
        true => first_release(&output.stdout),
        false => first_release(&[&output.stdout[..], b"\n"].concat()),
    }
}

/// The first complete word that is the version of a release.
fn first_release(stdout: &[u8]) -> Option<String> {
    let end = stdout.iter().rposition(u8::is_ascii_whitespace)?;
    let text = String::from_utf8_lossy(stdout.get(..end)?);
    text.split_whitespace().find(|word| parse_release(word).is_some()).map(str::to_owned)
}

/// Parses the version of a release, such as `1.18.33`.
fn parse_release(text: &str) -> Option<Version> {
    Version::parse(text).ok().filter(|version| version.pre.is_empty() && version.build.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_package_and_no_script_is_run() {
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
        assert_eq!(reported_version(&program), None);
        assert_eq!(parse_release("2.1.325"), Some(Version::new(2, 1, 325)));
        for text in ["2.1", "2.1.325.0", "2.1.325-beta.1", "v2.1.325", "codex"] {
            assert_eq!(parse_release(text), None, "{text}");
        }
    }
}
