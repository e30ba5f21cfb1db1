//! The arguments of `execute`, and the request that they become.

use crate::broker;
use crate::error::{Error, Result};
use outpost_broker_wire::{Action, Request};
use rmcp::model::Implementation;
use rmcp::schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// As the broker has it; the answer has something for each.
const STAGES_MAX: usize = 32;

/// Of what a client says about itself.
const CLAIM_CHARS_MAX: usize = 60;

/// What is optional may be null as well, since models write that; the schema does not offer it, since not every client
/// understands a type that is two.
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
    /// Whether to run as root. True if left out: say false for what needs no root.
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
    /// Under a fresh id: every call is a request of its own.
    pub(crate) fn into_request(self, client: Option<&Implementation>) -> Result<Request> {
        let wrong = |why: &str| Err(Error::Arguments(why.to_owned()));
        let pipeline = match (self.argv, self.pipeline) {
            (Some(argv), None) => vec![argv],
            (None, Some(pipeline)) => pipeline,
            (None, None) => return wrong("Give either `argv` or `pipeline`: neither is there"),
            (Some(_), Some(_)) => return wrong("Give either `argv` or `pipeline`, not both"),
        };
        if pipeline.is_empty() || pipeline.iter().any(Vec::is_empty) {
            return wrong("Every command needs at least the name of a program");
        }
        if pipeline.len() > STAGES_MAX {
            let count = pipeline.len();
            return wrong(&format!("`pipeline` has {count} commands, and {STAGES_MAX} are the most"));
        }
        if self.reason.trim().is_empty() {
            return wrong("`reason` is empty: say why this is needed, a human decides by it");
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
            ..broker::request(Action::Exec)
        })
    }
}

/// What the human is told about who asks: nobody has checked it. Our process is what the broker sees.
fn session(client: Option<&Implementation>, label: Option<&str>) -> String {
    let name = client.map(|client| claim(&format!("{} {}", client.name, client.version)));
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| "an MCP client".to_owned());
    let client = format!("{name}, pid {}", std::process::id());
    match label.map(claim).filter(|label| !label.is_empty()) {
        Some(label) => format!("{label} ({client})"),
        None => client,
    }
}

/// Without what the broker would refuse, which nobody could mend from within a call.
fn claim(text: &str) -> String {
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
    fn what_is_left_out_or_null_has_the_strictest_default() {
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
    fn two_calls_are_two_requests() {
        let call = || request(json!({"argv": ["id"], "reason": "why"})).unwrap();
        assert_ne!(call().id, call().id);
    }

    #[test]
    fn a_pipeline_that_is_none_is_refused_before_anyone_is_asked() {
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
