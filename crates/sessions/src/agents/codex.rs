//! codex: its profile, and the selection of `app-server` or `exec` by version.

use super::profile::{AgentDir, ConversationStore, EntryPolicy, Flags, Login, Profile};
use super::{Invocation, TurnRequest, codex_app_server, codex_exec};
use semver::Version;

/// codex's properties. The flags are those of `exec`.
pub(super) static PROFILE: Profile = Profile {
    name: "codex",
    title: "Codex",
    packages: &["@openai/codex"],
    interactive_since: Some(Version::new(0, 120, 0)),
    can_stay_warm: false,
    login: Login { command: "`codex login`", key: "OPENAI_API_KEY" },
    instructions: "AGENTS.md",
    skills: &[],
    flags: Flags {
        command: &["exec", "--json", "--skip-git-repo-check"],
        auto: &["--dangerously-bypass-approvals-and-sandbox"],
        code: &["--sandbox", "workspace-write"],
        plan: &["--sandbox", "read-only"],
        // `exec` cannot ask for permissions, so ask mode is read-only.
        ask: &["--sandbox", "read-only"],
        model: "--model",
        resume: "resume",
    },
    acp: None,
    conversations: Some(ConversationStore { variable: "CODEX_HOME", default: ".codex", subdir: "sessions" }),
    dirs: &[AgentDir {
        variable: Some("CODEX_HOME"),
        default: Some(".codex"),
        subdir: None,
        entries: DIR_ENTRIES,
        is_hidden: false,
    }],
    project_dir: None,
    invocation,
};

const DIR_ENTRIES: &[(&str, EntryPolicy)] = &[
    ("sessions", EntryPolicy::Conversations),
    ("archived_sessions", EntryPolicy::Conversations),
    ("thread-writer-locks", EntryPolicy::Conversations),
    ("auth.json", EntryPolicy::Login),
    ("goals_*", EntryPolicy::SessionOnly),
    ("history.jsonl", EntryPolicy::SessionOnly),
    ("log", EntryPolicy::SessionOnly),
    ("logs_*", EntryPolicy::SessionOnly),
    ("memories_*", EntryPolicy::SessionOnly),
    ("queue_*", EntryPolicy::SessionOnly),
    ("session_index.jsonl", EntryPolicy::SessionOnly),
    ("shell_snapshots", EntryPolicy::SessionOnly),
    ("state_*", EntryPolicy::SessionOnly),
    ("thread_history_*", EntryPolicy::SessionOnly),
    ("tmp", EntryPolicy::SessionOnly),
    (".tmp", EntryPolicy::SessionOnly),
];

fn invocation(request: &TurnRequest) -> Invocation {
    match request.is_interactive {
        true => codex_app_server::invocation(),
        false => codex_exec::invocation(request, &PROFILE.flags),
    }
}
