//! Hints for people: what to do about a failure, derived from the text of the CLI.

use super::Cli;
use super::profile::Login;

/// The known kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    NotFound,
    NotLoggedIn,
    RootGuard,
    /// The conversation does not exist: the next message starts a new one.
    UnknownConversation,
}

impl Hint {
    pub(crate) fn text(self, cli: Cli) -> String {
        let profile = cli.profile();
        let name = profile.name;
        match self {
            Hint::NotFound => {
                let package = profile.packages.first().unwrap_or(&name);
                format!(
                    "install it (npm install -g {package}), put it on the daemon's PATH or in ~/.local/bin, or name it in outpost.toml ([sessions.{name}] program)"
                )
            }
            Hint::NotLoggedIn => {
                let Login { command, key } = profile.login;
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

/// Texts of the CLIs in lower case. The first match wins.
const PATTERNS: [(&str, Hint); 16] = [
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

/// The hint for a text from any stream of the CLI.
pub(crate) fn hint_for(text: &str) -> Option<Hint> {
    let text = text.to_lowercase();
    PATTERNS.into_iter().find(|(pattern, _)| text.contains(pattern)).map(|(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_real_clis_are_recognized() {
        let texts = [
            ("No conversation found with session ID: 1111", Hint::UnknownConversation),
            (
                "--dangerously-skip-permissions cannot be used with root/sudo privileges for security",
                Hint::RootGuard,
            ),
            ("Not logged in · Please run /login", Hint::NotLoggedIn),
            ("unexpected status 401 Unauthorized: invalid api key", Hint::NotLoggedIn),
        ];
        for (text, expected) in texts {
            assert_eq!(hint_for(text), Some(expected), "{text}");
        }
        assert_eq!(hint_for("a tool printed something"), None);
    }
}
