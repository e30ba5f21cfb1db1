//! Checks of the agent CLIs: path, version and login. Credentials are never read.

use super::{Check, Verdict};
use crate::config::{AgentTable, Config};
use crate::paths::Paths;
use outpost_sessions::{Cli, Settings, installed};
use std::path::PathBuf;

/// The login of one agent CLI.
struct Login {
    name: &'static str,
    variables: &'static [&'static str],
    files: Vec<PathBuf>,
    install: &'static str,
    log_in: &'static str,
}

pub(super) fn checks(paths: &Paths, config: &Config) -> Vec<Check> {
    let found = installed(&Settings { agents: config.sessions.agents(), ..Settings::new(&paths.state) });
    found
        .into_iter()
        .map(|(cli, found)| {
            let login = login(cli);
            let Some(found) = found else {
                let effect = format!("sessions with {} are refused", login.name);
                return Check::bad(login.name, Verdict::Warning, "not installed", effect, login.install);
            };
            let version = found.version.unwrap_or_else(|| "(unknown version)".into());
            let program = format!("{} {version}", found.program.display());
            match login_source(&login, table(config, cli)) {
                Some(source) => Check::ok(login.name, format!("{program}; login: {source}")),
                None => Check::bad(
                    login.name,
                    Verdict::Warning,
                    format!("{program}; no login found"),
                    "turns fail with an error of the agent, unless it has another login",
                    login.log_in,
                ),
            }
        })
        .collect()
}

fn table(config: &Config, cli: Cli) -> &AgentTable {
    let sessions = &config.sessions;
    match cli {
        Cli::Claude => &sessions.claude,
        Cli::Codex => &sessions.codex,
        Cli::Gemini => &sessions.gemini,
        Cli::Opencode => &sessions.opencode,
    }
}

/// A variable in the agent's environment, or an existing credential file.
fn login_source(login: &Login, table: &AgentTable) -> Option<String> {
    let given = table.env.as_ref();
    let dropped = |name: &str| table.drop_env.iter().flatten().any(|drop| drop == name);
    for name in login.variables {
        if given.is_some_and(|given| given.contains_key(*name)) {
            return Some(format!("{name} in the configuration"));
        }
        if !dropped(name) && std::env::var_os(name).is_some_and(|value| !value.is_empty()) {
            return Some(format!("{name} in this environment"));
        }
    }
    let file = login.files.iter().find(|file| file.metadata().is_ok_and(|found| found.len() > 0));
    file.map(|file| file.display().to_string())
}

fn login(cli: Cli) -> Login {
    let home = outpost_sys::user::home().unwrap_or_default();
    let dir = |variable: &str, default: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(default), PathBuf::from)
    };
    match cli {
        Cli::Claude => Login {
            name: "claude",
            variables: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
            files: vec![dir("CLAUDE_CONFIG_DIR", ".claude").join(".credentials.json")],
            install: "npm install -g @anthropic-ai/claude-code",
            log_in: "run claude and /login; or set ANTHROPIC_API_KEY in [sessions.claude] env",
        },
        Cli::Codex => Login {
            name: "codex",
            variables: &["OPENAI_API_KEY", "CODEX_API_KEY"],
            files: vec![dir("CODEX_HOME", ".codex").join("auth.json")],
            install: "npm install -g @openai/codex",
            log_in: "codex login",
        },
        Cli::Gemini => Login {
            name: "gemini",
            variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            files: vec![home.join(".gemini/oauth_creds.json")],
            install: "npm install -g @google/gemini-cli",
            log_in: "run gemini and choose a login; or set GEMINI_API_KEY in [sessions.gemini] env",
        },
        Cli::Opencode => Login {
            name: "opencode",
            variables: &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"],
            files: vec![dir("XDG_DATA_HOME", ".local/share").join("opencode/auth.json")],
            install: "npm install -g opencode-ai",
            log_in: "opencode auth login",
        },
    }
}
