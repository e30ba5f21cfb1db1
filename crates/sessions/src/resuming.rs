//! Whether a conversation is still there to be resumed, as far as that can be known without asking its agent.

use crate::agents::Cli;
use crate::face::Face;
use crate::session::Session;
use crate::settings::AgentSettings;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How deep and how many files are looked at.
const DEPTH_MAX: usize = 5;
const ENTRIES_MAX: usize = 100_000;

/// True only if the agent is the real one, keeps its conversations where we know, and has none of this name.
pub(crate) async fn is_lost(face: &Arc<Face>, session: &Session, sdk_id: &str) -> bool {
    let (face, cli, sdk_id) = (face.clone(), session.cli, sdk_id.to_owned());
    let path = session.path.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let is_real = face.clis.is_real(cli);
        // A path that is relative is so to where the agent works.
        let store = store(cli, face.settings().agent(cli)).map(|store| path.join(store));
        is_real && store.is_some_and(|store| store.is_dir() && !holds(&store, &sdk_id))
    });
    looked.await.unwrap_or(false)
}

/// Where an agent keeps a file per conversation, named after it: its environment says so, which is not all ours.
fn store(cli: Cli, settings: &AgentSettings) -> Option<PathBuf> {
    let home = settings.home()?;
    let own = |variable: &str, default: &str| {
        settings.variable(variable).map(PathBuf::from).unwrap_or_else(|| home.join(default))
    };
    match cli {
        Cli::Claude => Some(own("CLAUDE_CONFIG_DIR", ".claude").join("projects")),
        Cli::Codex => Some(own("CODEX_HOME", ".codex").join("sessions")),
        // Named after times, or in a database.
        Cli::Gemini | Cli::Opencode => None,
    }
}

fn holds(dir: &Path, id: &str) -> bool {
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
    fn a_conversation_is_found_by_its_name_below_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let day = dir.path().join("2026/11/16");
        std::fs::create_dir_all(&day).unwrap();
        std::fs::write(day.join("rollout-2026-abc.jsonl"), "").unwrap();
        assert!(holds(dir.path(), "abc"));
        assert!(!holds(dir.path(), "def"));
    }

    #[test]
    fn the_store_is_where_the_agents_own_environment_says() {
        let set = |set: &[(&str, &str)]| AgentSettings {
            set: set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            drop: vec!["CODEX_HOME".into(), "CLAUDE_CONFIG_DIR".into()],
            program: None,
        };
        let cases = [
            (Cli::Codex, set(&[("CODEX_HOME", "/c")]), "/c/sessions"),
            (Cli::Codex, set(&[("HOME", "/h")]), "/h/.codex/sessions"),
            (Cli::Claude, set(&[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "/c")]), "/c/projects"),
            (Cli::Claude, set(&[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "")]), "/h/.claude/projects"),
        ];
        for (cli, settings, expected) in cases {
            assert_eq!(store(cli, &settings).as_deref(), Some(Path::new(expected)), "{settings:?}");
        }
    }
}
