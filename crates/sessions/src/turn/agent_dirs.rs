//! An agent's own directories inside a sandbox: login and conversations are shared with the host, settings are
//! read-only, and everything else is private to the session.
//!
//! Settings, hooks, plugins and MCP servers of an agent run outside of any sandbox when a user starts the agent. So a
//! confined agent must not write them, under any name of any version. The sandbox covers each of its directories with a
//! directory of the session ([`Shadow`]). The host's files appear in it read-only, login and conversations writable.
//! Files with other names are created in the session's directory, and are deleted with it.

use super::sandbox::SandboxError;
use crate::agents::Cli;
use crate::agents::profile::{AgentDir, EntryPolicy};
use crate::settings::{AgentSettings, Settings};
use outpost_sandbox::{Shadow, Shown};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

type Entries = &'static [(&'static str, EntryPolicy)];

/// An agent's directory or file at its path.
struct Located {
    path: PathBuf,
    dir: &'static AgentDir,
}

/// A pattern that ends with `*` matches a prefix.
fn matches(pattern: &str, name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    pattern.strip_suffix('*').map_or(pattern == name, |begin| name.starts_with(begin))
}

/// The directories of an agent, by its environment.
fn dirs(cli: Cli, settings: &AgentSettings) -> Vec<Located> {
    let Some(home) = settings.home() else { return Vec::new() };
    dirs_in(cli, &home, &|variable| settings.variable(variable))
}

fn dirs_in(cli: Cli, home: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Located> {
    let dirs = cli.profile().dirs.iter();
    dirs.filter_map(|dir| Some(Located { path: dir.path(home, variable)?, dir })).collect()
}

/// The directories of all agents, both with the daemon's settings and with the default environment of a user's shell.
/// No confined process may write them.
pub(crate) fn of_all_agents(settings: &Settings) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for cli in Cli::ALL {
        let agent = settings.agent(cli);
        let default = agent.home().map(|home| dirs_in(cli, &home, &|_| None)).unwrap_or_default();
        all.extend(dirs(cli, agent).into_iter().chain(default).map(|located| located.path));
    }
    all
}

/// Prepares the shadows of an agent's directories below `dir`, a directory of the session. Blocking.
pub(crate) fn shadows(cli: Cli, settings: &AgentSettings, dir: &Path) -> Result<Vec<Shadow>, SandboxError> {
    let mut shadows: Vec<Shadow> = Vec::new();
    for (number, located) in dirs(cli, settings).iter().enumerate() {
        let from = dir.join(number.to_string());
        let fail = |cause| SandboxError::Shadow { from: from.clone(), cause };
        let Some(shadow) =
            shadow(&located.path, located.dir.entries, located.dir.is_hidden, &from).map_err(fail)?
        else {
            continue;
        };
        if !shadows.iter().any(|known| known.at == shadow.at) {
            shadows.push(shadow);
        }
    }
    Ok(shadows)
}

/// The shadow of the directory in the project that the CLI must be able to write.
pub(crate) fn project_shadow(cli: Cli, project: &Path, dir: &Path) -> Result<Option<Shadow>, SandboxError> {
    let Some(name) = cli.profile().project_dir else { return Ok(None) };
    let (path, from) = (project.join(name), dir.join("project"));
    let fail = |cause| SandboxError::Shadow { from: from.clone(), cause };
    if path.is_dir() {
        return shadow(&path, &[], false, &from).map_err(fail);
    }
    create_dir(&from).and_then(|()| remove_stale_mount_points(&from, &[])).map_err(fail)?;
    let project = std::fs::canonicalize(project).map_err(fail)?;
    Ok(Some(Shadow { at: project.join(name), from, directory: true, shown: Vec::new() }))
}

/// `None` if the directory does not exist and cannot be created.
fn shadow(path: &Path, entries: Entries, is_hidden: bool, from: &Path) -> std::io::Result<Option<Shadow>> {
    create_dir(from)?;
    if let [(name, EntryPolicy::Copy)] = entries {
        let Ok(at) = std::fs::canonicalize(path) else { return Ok(None) };
        copy(&at, &from.join(name))?;
        let from = from.join(name);
        return Ok(Some(Shadow { at, from, directory: false, shown: Vec::new() }));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    let (Ok(()), Ok(at)) = (made, std::fs::canonicalize(path)) else { return Ok(None) };
    for (name, _) in entries.iter().filter(|(_, policy)| *policy == EntryPolicy::Conversations) {
        let _not_writable = create_dir(&at.join(name));
    }
    let mut shown = Vec::new();
    for entry in std::fs::read_dir(&at)?.flatten() {
        let name = entry.file_name();
        let policy = entries.iter().find(|(pattern, _)| matches(pattern, &name)).map(|(_, policy)| *policy);
        // A dangling symlink is not shown.
        let Ok(source) = std::fs::canonicalize(entry.path()) else { continue };
        match policy {
            Some(EntryPolicy::SessionOnly) => continue,
            None if is_hidden => continue,
            Some(EntryPolicy::Copy) => copy(&source, &from.join(&name))?,
            Some(EntryPolicy::Login | EntryPolicy::Conversations) | None => {
                create_mount_point(&from.join(&name), source.is_dir())?;
                shown.push(Shown { name, source, writable: policy.is_some() });
            }
        }
    }
    remove_stale_mount_points(from, &shown)?;
    Ok(Some(Shadow { at, from: from.to_owned(), directory: true, shown }))
}

fn create_dir(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes what the agent left behind. Never follows a symlink.
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

/// Creates the mount point for a file or directory of the host.
fn create_mount_point(path: &Path, directory: bool) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if directory && found.is_dir() || !directory && found.is_file() => return Ok(()),
        _ => remove(path)?,
    }
    match directory {
        true => DirBuilder::new().mode(0o700).create(path),
        false => new_file(path).map(drop),
    }
}

/// Removes empty mount points of files that the host no longer has. The agent would read them as empty settings.
fn remove_stale_mount_points(from: &Path, shown: &[Shown]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let found = entry.metadata()?;
        if shown.iter().any(|shown| shown.name == name) {
            continue;
        }
        match found.is_file() {
            true if found.len() == 0 => std::fs::remove_file(path)?,
            // A directory that is not empty belongs to the agent.
            _ if found.is_dir() => drop(std::fs::remove_dir(path)),
            _ => {}
        }
    }
    Ok(())
}
