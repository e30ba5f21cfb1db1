//! An agent's own directories in a sandbox: its login and its conversations are the host's, its settings can only be read,
//! and everything else that it writes stays with the session.
//!
//! Settings, hooks, plugins and MCP servers of an agent run outside of any sandbox the next time a human starts it. So a
//! confined agent must not write them, whatever their names are in the next version. Each of its directories is shown as a
//! directory of the session's ([`Shadow`]), in which the host's files appear read-only under their names, and login and
//! conversations writable. What the agent makes under other names is in the session's directory, and goes with it.

use crate::agents::Cli;
use crate::settings::{AgentSettings, Settings};
use outpost_sandbox::{Shadow, Shown};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What becomes of a name in one of an agent's directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// The host's, writable: logins and conversations. A directory is made if it is missing.
    Login,
    Conversations,
    /// The session's own. The host's is not seen: databases (their logs lie beside them, and two views of one file would
    /// spoil it), caches, and repositories whose hooks an agent outside would run.
    Own,
    /// The session's own, which begins as a copy of the host's at each start.
    Copy,
}

/// One of an agent's directories or files, and the names in it that are not just read.
struct Place {
    path: PathBuf,
    names: &'static [(&'static str, Kept)],
    /// What becomes of the other names that the host has: none of them is seen, or all of them are read-only.
    is_hidden: bool,
}

/// A name that ends in `*` stands for all that begin so.
fn is_named(pattern: &str, name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    pattern.strip_suffix('*').map_or(pattern == name, |begin| name.starts_with(begin))
}

const CLAUDE: &[(&str, Kept)] = &[
    ("projects", Kept::Conversations),
    (".credentials.json", Kept::Login),
    (".claude.json", Kept::Copy),
    ("backups", Kept::Own),
    ("cache", Kept::Own),
    ("debug", Kept::Own),
    ("file-history", Kept::Own),
    ("history.jsonl", Kept::Own),
    ("ide", Kept::Own),
    ("paste-cache", Kept::Own),
    ("plans", Kept::Own),
    // The socket and the token of a relay.
    ("remote", Kept::Own),
    ("session-env", Kept::Own),
    ("sessions", Kept::Own),
    ("shell-snapshots", Kept::Own),
    ("statsig", Kept::Own),
    ("stats-cache.json", Kept::Own),
    ("tasks", Kept::Own),
    ("telemetry", Kept::Own),
    ("todos", Kept::Own),
];

const CODEX: &[(&str, Kept)] = &[
    ("sessions", Kept::Conversations),
    ("archived_sessions", Kept::Conversations),
    ("thread-writer-locks", Kept::Conversations),
    ("auth.json", Kept::Login),
    ("goals_*", Kept::Own),
    ("history.jsonl", Kept::Own),
    ("log", Kept::Own),
    ("logs_*", Kept::Own),
    ("memories_*", Kept::Own),
    ("queue_*", Kept::Own),
    ("session_index.jsonl", Kept::Own),
    ("shell_snapshots", Kept::Own),
    ("state_*", Kept::Own),
    ("thread_history_*", Kept::Own),
    ("tmp", Kept::Own),
    (".tmp", Kept::Own),
];

/// Beside its conversations lie programs that it has fetched (`tmp/bin`), so all of `tmp` is the session's.
const GEMINI: &[(&str, Kept)] = &[
    ("oauth_creds.json", Kept::Login),
    ("google_accounts.json", Kept::Login),
    ("gemini-credentials.json", Kept::Login),
    ("projects.json", Kept::Copy),
    ("history", Kept::Own),
    ("state.json", Kept::Own),
    ("tmp", Kept::Own),
];

/// Its conversations are in a database that also has what a human has allowed for ever.
const OPENCODE_DATA: &[(&str, Kept)] = &[
    ("auth.json", Kept::Login),
    ("log", Kept::Own),
    ("opencode*", Kept::Own),
    ("project", Kept::Own),
    ("repos", Kept::Own),
    ("snapshot", Kept::Own),
    ("storage", Kept::Own),
    ("tool-output", Kept::Own),
    ("worktree", Kept::Own),
];

/// Where an agent keeps everything, as its environment says.
fn places(cli: Cli, settings: &AgentSettings) -> Vec<Place> {
    let Some(home) = settings.home() else { return Vec::new() };
    places_in(cli, &home, &|variable| settings.variable(variable))
}

fn places_in(cli: Cli, home: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Place> {
    let set = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below = |variable: &str, default: &str| set(variable).unwrap_or_else(|| home.join(default));
    let place = |path: PathBuf, names| Place { path, names, is_hidden: false };
    match cli {
        Cli::Claude => {
            let dir = place(below("CLAUDE_CONFIG_DIR", ".claude"), CLAUDE);
            let file = place(home.join(".claude.json"), &[(".claude.json", Kept::Copy)]);
            vec![dir, file]
        }
        Cli::Codex => vec![place(below("CODEX_HOME", ".codex"), CODEX)],
        Cli::Gemini => {
            let home = set("GEMINI_CLI_HOME").unwrap_or_else(|| home.to_owned());
            vec![place(home.join(".gemini"), GEMINI)]
        }
        Cli::Opencode => {
            let state = below("XDG_STATE_HOME", ".local/state").join("opencode");
            let own = set("OPENCODE_CONFIG_DIR").map(|dir| place(dir, &[]));
            let all = [
                place(below("XDG_DATA_HOME", ".local/share").join("opencode"), OPENCODE_DATA),
                Place { path: state, names: &[], is_hidden: true },
                place(below("XDG_CACHE_HOME", ".cache").join("opencode"), &[]),
                place(below("XDG_CONFIG_HOME", ".config").join("opencode"), &[]),
            ];
            all.into_iter().chain(own).collect()
        }
    }
}

/// What every agent reads its settings from, with the environment that it has here or with that of a human's shell: nothing
/// that is confined writes there.
pub(crate) fn settings_of_all(settings: &Settings) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for cli in Cli::ALL {
        let agent = settings.agent(cli);
        let usual = agent.home().map(|home| places_in(cli, &home, &|_| None)).unwrap_or_default();
        all.extend(places(cli, agent).into_iter().chain(usual).map(|place| place.path));
    }
    all
}

/// The shadows of an agent's directories, made ready below `dir`, which is the session's. Looks at the disk and writes.
pub(crate) fn shadows(cli: Cli, settings: &AgentSettings, dir: &Path) -> Result<Vec<Shadow>, String> {
    let mut shadows: Vec<Shadow> = Vec::new();
    for (number, place) in places(cli, settings).iter().enumerate() {
        let from = dir.join(number.to_string());
        let fail =
            |error: std::io::Error| format!("cannot make {} ready for a sandbox: {error}", from.display());
        let Some(shadow) = shadow(place, &from).map_err(fail)? else { continue };
        if !shadows.iter().any(|known| known.at == shadow.at) {
            shadows.push(shadow);
        }
    }
    Ok(shadows)
}

/// opencode writes into `.opencode` of its project whenever that is there, and ends if it cannot. Where a sandbox holds the
/// missing name, it is there.
pub(crate) fn project_shadow(cli: Cli, project: &Path, dir: &Path) -> Result<Option<Shadow>, String> {
    if cli != Cli::Opencode {
        return Ok(None);
    }
    let (path, from) = (project.join(".opencode"), dir.join("project"));
    let fail = |error: std::io::Error| format!("cannot make {} ready for a sandbox: {error}", from.display());
    if path.is_dir() {
        return shadow(&Place { path, names: &[], is_hidden: false }, &from).map_err(fail);
    }
    make_directory(&from).and_then(|()| remove_old_places(&from, &[])).map_err(fail)?;
    let project = std::fs::canonicalize(project).map_err(fail)?;
    Ok(Some(Shadow { at: project.join(".opencode"), from, directory: true, shown: Vec::new() }))
}

/// None where the agent has nothing and can make nothing.
fn shadow(place: &Place, from: &Path) -> std::io::Result<Option<Shadow>> {
    make_directory(from)?;
    if let [(name, Kept::Copy)] = place.names {
        let Ok(at) = std::fs::canonicalize(&place.path) else { return Ok(None) };
        copy(&at, &from.join(name))?;
        let from = from.join(name);
        return Ok(Some(Shadow { at, from, directory: false, shown: Vec::new() }));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&place.path);
    let (Ok(()), Ok(at)) = (made, std::fs::canonicalize(&place.path)) else { return Ok(None) };
    for (name, _) in place.names.iter().filter(|(_, kept)| *kept == Kept::Conversations) {
        let _not_writable = make_directory(&at.join(name));
    }
    let mut shown = Vec::new();
    for entry in std::fs::read_dir(&at)?.flatten() {
        let name = entry.file_name();
        let kept = place.names.iter().find(|(pattern, _)| is_named(pattern, &name)).map(|(_, kept)| *kept);
        // One whose end is not there shows nothing.
        let Ok(source) = std::fs::canonicalize(entry.path()) else { continue };
        match kept {
            Some(Kept::Own) => continue,
            None if place.is_hidden => continue,
            Some(Kept::Copy) => copy(&source, &from.join(&name))?,
            Some(Kept::Login | Kept::Conversations) | None => {
                make_place(&from.join(&name), source.is_dir())?;
                shown.push(Shown { name, source, writable: kept.is_some() });
            }
        }
    }
    remove_old_places(from, &shown)?;
    Ok(Some(Shadow { at, from: from.to_owned(), directory: true, shown }))
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The agent could write here before: nothing that it has left, no link above all, is followed.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn new_file(path: &Path) -> std::io::Result<std::fs::File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn copy(source: &Path, to: &Path) -> std::io::Result<()> {
    let text = std::fs::read(source)?;
    remove(to)?;
    new_file(to)?.write_all(&text)
}

/// Something for the host's file or directory to be mounted upon.
fn make_place(path: &Path, directory: bool) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if directory && found.is_dir() || !directory && found.is_file() => return Ok(()),
        _ => remove(path)?,
    }
    match directory {
        true => DirBuilder::new().mode(0o700).create(path),
        false => new_file(path).map(drop),
    }
}

/// An empty file where the host had one before would be read as settings that say nothing.
fn remove_old_places(from: &Path, shown: &[Shown]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let found = entry.metadata()?;
        if shown.iter().any(|shown| shown.name == name) {
            continue;
        }
        match found.is_file() {
            true if found.len() == 0 => std::fs::remove_file(path)?,
            // One that is not empty is the agent's.
            _ if found.is_dir() => drop(std::fs::remove_dir(path)),
            _ => {}
        }
    }
    Ok(())
}
