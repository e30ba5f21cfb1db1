//! Finds out whether a conversation to resume still exists, by the files of its CLI.

use crate::agents::Cli;
use crate::face::Face;
use crate::session::Session;
use crate::settings::AgentSettings;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Limits of the search: depth and number of directory entries.
const DEPTH_MAX: usize = 5;
const ENTRIES_MAX: usize = 100_000;

/// True only if the CLI is genuine, its store is known, and the store has no such conversation.
pub(crate) async fn is_missing(face: &Arc<Face>, session: &Session, conversation_id: &str) -> bool {
    let (face, cli, conversation_id) = (face.clone(), session.cli, conversation_id.to_owned());
    let path = session.path.clone();
    let searched = tokio::task::spawn_blocking(move || {
        let is_genuine = face.clis.is_genuine(cli);
        // A relative path is relative to the CLI's working directory.
        let store = store(cli, face.settings().agent(cli)).map(|store| path.join(store));
        is_genuine && store.is_some_and(|store| store.is_dir() && !contains(&store, &conversation_id))
    });
    searched.await.unwrap_or(false)
}

/// The directory with one file per conversation, named after its id. The CLI's environment can move it.
fn store(cli: Cli, settings: &AgentSettings) -> Option<PathBuf> {
    let store = cli.profile().conversations.as_ref()?;
    let home = settings.home()?;
    let dir = settings.variable(store.variable).map_or_else(|| home.join(store.default), PathBuf::from);
    Some(dir.join(store.subdir))
}

fn contains(dir: &Path, id: &str) -> bool {
    let mut left = vec![(dir.to_owned(), 0)];
    let mut seen = 0;
    while let Some((dir, depth)) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX || entry.file_name().to_string_lossy().contains(id) {
                return true;
            }
            if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push((entry.path(), depth + 1));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_found_by_its_name_in_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let day = dir.path().join("2026/11/16");
        std::fs::create_dir_all(&day).unwrap();
        std::fs::write(day.join("rollout-2026-abc.jsonl"), "").unwrap();
        assert!(contains(dir.path(), "abc"));
        assert!(!contains(dir.path(), "def"));
    }

    #[test]
    fn the_environment_of_the_cli_moves_its_store() {
        let settings = |env: &[(&str, &str)]| AgentSettings {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            drop_env: vec!["CODEX_HOME".into(), "CLAUDE_CONFIG_DIR".into()],
            program: None,
        };
        let cases = [
            (Cli::Codex, settings(&[("CODEX_HOME", "/c")]), "/c/sessions"),
            (Cli::Codex, settings(&[("HOME", "/h")]), "/h/.codex/sessions"),
            (Cli::Claude, settings(&[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "/c")]), "/c/projects"),
            (Cli::Claude, settings(&[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "")]), "/h/.claude/projects"),
        ];
        for (cli, settings, expected) in cases {
            assert_eq!(store(cli, &settings).as_deref(), Some(Path::new(expected)), "{settings:?}");
        }
    }
}
