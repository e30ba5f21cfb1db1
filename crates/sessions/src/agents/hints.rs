//! What a person can do about a failure of a CLI, by what the CLI said.

use super::Cli;

/// What kind of failure it is, where we know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    NotFound,
    NotLoggedIn,
    RootGuard,
    /// The conversation is not there: the next message begins a new one.
    UnknownConversation,
}

impl Hint {
    pub(crate) fn text(self, cli: Cli) -> String {
        let name = cli.name();
        match self {
            Hint::NotFound => {
                let package = match cli {
                    Cli::Claude => "@anthropic-ai/claude-code",
                    Cli::Codex => "@openai/codex",
                    Cli::Gemini => "@google/gemini-cli",
                    Cli::Opencode => "opencode-ai",
                };
                format!(
                    "install it (npm install -g {package}), put it on the daemon's PATH or in ~/.local/bin, or name it in outpost.toml ([sessions.{name}] program)"
                )
            }
            Hint::NotLoggedIn => {
                let (command, key) = match cli {
                    Cli::Claude => ("`claude` and /login", "ANTHROPIC_API_KEY"),
                    Cli::Codex => ("`codex login`", "OPENAI_API_KEY"),
                    Cli::Gemini => ("`gemini` once", "GEMINI_API_KEY"),
                    Cli::Opencode => ("`opencode auth login`", "the variable of its provider's key"),
                };
                format!(
                    "log in on this host as the daemon's user: run {command}, or set {key} in outpost.toml ([sessions.{name}] env)"
                )
            }
            Hint::RootGuard => {
                "claude refuses mode auto as root: run the daemon as another user, use mode code or ask, or, if this host is a sandbox, set IS_SANDBOX=1 for it in outpost.toml ([sessions.claude] env)".to_owned()
            }
            Hint::UnknownConversation => {
                "the conversation to resume is not on this host any more: the next message begins a new one".to_owned()
            }
        }
    }
}

/// Words of the CLIs, in lower case, and what they mean. The first that fits counts.
const WORDS: [(&str, Hint); 16] = [
    ("no conversation found", Hint::UnknownConversation),
    ("no rollout found", Hint::UnknownConversation),
    ("no saved session found", Hint::UnknownConversation),
    ("thread not found", Hint::UnknownConversation),
    ("session not found", Hint::UnknownConversation),
    ("invalid session identifier", Hint::UnknownConversation),
    ("no previous sessions found", Hint::UnknownConversation),
    ("cannot be used with root/sudo privileges", Hint::RootGuard),
    ("not logged in", Hint::NotLoggedIn),
    ("please run /login", Hint::NotLoggedIn),
    ("401 unauthorized", Hint::NotLoggedIn),
    ("failed to authenticate", Hint::NotLoggedIn),
    ("invalid api key", Hint::NotLoggedIn),
    ("authentication_error", Hint::NotLoggedIn),
    ("please set an auth method", Hint::NotLoggedIn),
    ("invalid auth method", Hint::NotLoggedIn),
];

/// What the CLI's words, on any of its streams, point to.
pub(crate) fn hint(said: &str) -> Option<Hint> {
    let said = said.to_lowercase();
    WORDS.into_iter().find(|(words, _)| said.contains(words)).map(|(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_real_clis_are_known() {
        let said = [
            ("No conversation found with session ID: 1111", Hint::UnknownConversation),
            (
                "--dangerously-skip-permissions cannot be used with root/sudo privileges for security",
                Hint::RootGuard,
            ),
            ("Not logged in · Please run /login", Hint::NotLoggedIn),
            ("unexpected status 401 Unauthorized: invalid api key", Hint::NotLoggedIn),
        ];
        for (text, expected) in said {
            assert_eq!(hint(text), Some(expected), "{text}");
        }
        assert_eq!(hint("a tool printed something"), None);
    }
}
