//! The arguments of the tool `execute`, and their conversion to a broker request.

use crate::error::{Error, Result};
use outpost_broker_client::new_request;
use outpost_broker_wire::{Action, Request};
use rmcp::model::Implementation;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The broker's default limit. It also bounds the size of a result, which has an entry per stage.
const STAGES_MAX: usize = 32;

/// Longest client name and session label.
const CLAIM_CHARS_MAX: usize = 60;

/// Optional arguments may be null, since models send it. The schema does not mention null: some clients reject a type
/// with alternatives.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Execute {
    /// One command: the program and its arguments, each a string of its own. There is no shell: no quoting, no variables,
    /// no redirection. Give either this or `pipeline`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(min = 1))]
    argv: Option<Vec<String>>,
    /// Several commands, each reading what the one before it writes, as `a | b | c` would. Give either this or `argv`.
    #[serde(default)]
    #[schemars(with = "Vec<Vec<String>>", length(min = 1, max = 32))]
    pipeline: Option<Vec<Vec<String>>>,
    /// Why this is needed, in one sentence. The human who decides reads it.
    #[schemars(length(min = 1))]
    reason: String,
    /// Environment variables. Only LANG, LC_*, TERM, TZ and DEBIAN_FRONTEND are allowed, and HOME without root's rights; any
    /// other is an error.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    env: Option<BTreeMap<String, String>>,
    /// The directory to run in, an absolute path. `/` if left out.
    #[serde(default)]
    #[schemars(with = "String")]
    cwd: Option<String>,
    /// Whether to run as root. True if left out: set false for commands that need no root.
    #[serde(default)]
    #[schemars(with = "bool", extend("default" = true))]
    privileged: Option<bool>,
    /// Whether the command may use the human's SSH agent. Only with `privileged` false.
    #[serde(default)]
    #[schemars(with = "bool", extend("default" = false))]
    forward_agent: Option<bool>,
    /// A name for what you are working on, shown to the human beside the name of your client.
    #[serde(default)]
    #[schemars(with = "String")]
    session: Option<String>,
}

impl Execute {
    /// Every call gets a fresh id.
    pub(crate) fn into_request(self, client: Option<&Implementation>) -> Result<Request> {
        let invalid = |why: &str| Err(Error::Arguments(why.to_owned()));
        let pipeline = match (self.argv, self.pipeline) {
            (Some(argv), None) => vec![argv],
            (None, Some(pipeline)) => pipeline,
            (None, None) => return invalid("Give either `argv` or `pipeline`: neither is there"),
            (Some(_), Some(_)) => return invalid("Give either `argv` or `pipeline`, not both"),
        };
        if pipeline.is_empty() || pipeline.iter().any(Vec::is_empty) {
            return invalid("Every command needs at least the name of a program");
        }
        if pipeline.len() > STAGES_MAX {
            let count = pipeline.len();
            return invalid(&format!("`pipeline` has {count} commands, and the limit is {STAGES_MAX}"));
        }
        if self.reason.trim().is_empty() {
            return invalid("`reason` is empty: a human decides by it, so state why this is needed");
        }
        Ok(Request {
            session: session(client, self.session.as_deref()),
            pipeline,
            env: self.env.unwrap_or_default(),
            reason: self.reason,
            privileged: self.privileged.unwrap_or(true),
            forward_agent: self.forward_agent.unwrap_or(false),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cwd: self.cwd,
            ..new_request(Action::Exec)
        })
    }
}

/// The session shown to the human. The client's name is unverified. The pid is of this process, the broker's peer.
fn session(client: Option<&Implementation>, label: Option<&str>) -> String {
    let name = client.map(|client| printable(&format!("{} {}", client.name, client.version)));
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| "an MCP client".to_owned());
    let client = format!("{name}, pid {}", std::process::id());
    match label.map(printable).filter(|label| !label.is_empty()) {
        Some(label) => format!("{label} ({client})"),
        None => client,
    }
}

/// Drops the characters that the broker would refuse: a caller cannot change its client's name.
fn printable(text: &str) -> String {
    let plain: String = text.chars().filter(|letter| matches!(letter, ' '..='~')).collect();
    plain.trim().chars().take(CLAIM_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn request(arguments: Value) -> std::result::Result<Request, String> {
        let arguments: Execute = serde_json::from_value(arguments).map_err(|error| error.to_string())?;
        arguments.into_request(None).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_and_null_arguments_get_the_strictest_default() {
        for arguments in [
            json!({"argv": ["id"], "reason": "why"}),
            json!({"argv": ["id"], "reason": "why", "pipeline": null, "privileged": null, "env": null}),
        ] {
            let request = request(arguments).unwrap();
            assert!(request.privileged && !request.forward_agent && request.host.is_empty());
            assert_eq!(request.pipeline, [["id"]]);
            assert_eq!((request.cwd, request.env.len()), (None, 0));
        }
    }

    #[test]
    fn each_call_gets_its_own_id() {
        let call = || request(json!({"argv": ["id"], "reason": "why"})).unwrap();
        assert_ne!(call().id, call().id);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for (arguments, why) in [
            (json!({"reason": "why"}), "neither is there"),
            (json!({"argv": ["a"], "pipeline": [["a"]], "reason": "why"}), "not both"),
            (json!({"argv": [], "reason": "why"}), "name of a program"),
            (json!({"pipeline": [], "reason": "why"}), "name of a program"),
            (json!({"pipeline": [["a"], []], "reason": "why"}), "name of a program"),
            (json!({"pipeline": vec![["a"]; 33], "reason": "why"}), "has 33 commands"),
            (json!({"argv": ["a"], "reason": " \n"}), "`reason` is empty"),
            (json!({"argv": ["a"]}), "missing field `reason`"),
            (json!({"argv": ["a"], "reason": "why", "sudo": true}), "unknown field `sudo`"),
            (json!({"argv": "a", "reason": "why"}), "expected a sequence"),
        ] {
            let message = request(arguments.clone()).unwrap_err();
            assert!(message.contains(why), "{arguments}: {message}");
        }
    }

    #[test]
    fn a_clients_name_cannot_make_its_requests_invalid() {
        let client = Implementation::new("evil\u{202e}\u{1b}[2J".repeat(100), "1\n2");
        let claimed = session(Some(&client), Some("\u{200b}"));
        assert!(claimed.starts_with("evil[2Jevil[2J"), "{claimed}");
        assert!(claimed.is_ascii() && claimed.len() < 100, "{claimed}");
        let client = Implementation::new("claude-code", "2.1");
        assert_eq!(
            session(Some(&client), Some("web")),
            format!("web (claude-code 2.1, pid {})", std::process::id())
        );
        assert!(session(None, None).starts_with("an MCP client, pid "));
    }
}
