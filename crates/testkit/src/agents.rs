//! Real agent CLIs that talk to a fake model: a home with their settings, their environment, and where they are.
//!
//! `scripts/setup-agent-clis` installs them.

use crate::daemon::{kill_marked, owner};
use crate::lack::Lack;
use crate::model::Model;
use outpost_sys::epoll::wait_readable;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// For a turn. opencode computes for six seconds before it asks anything, and a machine may have other things to do.
const TURN_TIMEOUT: Duration = Duration::from_secs(120);

/// What every home is known by, in the environment of all that runs in it.
const MARKER: &str = "OUTPOST_TEST_AGENTS";

/// A home where claude, codex, gemini and opencode find a fake model, and nothing that would leave the host.
pub struct AgentHome {
    env: Vec<(String, String)>,
    /// Last field: dropped after the processes that use it.
    dir: TempDir,
}

/// Exit status and output of a CLI.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Every line of its output, which must be JSON.
    pub fn lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        self.stdout.lines().map(parse).collect()
    }
}

impl AgentHome {
    pub fn new(model: &Model) -> AgentHome {
        // codex makes no helpers below the place for temporary files.
        let dir = tempfile::Builder::new().prefix("outpost-agents-").tempdir_in("/var/tmp").unwrap();
        let home = dir.path().join("home");
        for name in ["home/.codex", "home/.gemini", "home/.config/opencode/node_modules", "work", "tmp"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::fs::write(home.join(".codex/config.toml"), codex_config(model)).unwrap();
        std::fs::write(home.join(".gemini/settings.json"), gemini_settings().to_string()).unwrap();
        // What opencode would fetch otherwise, at every start and without being asked.
        let lock = json!({"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}});
        std::fs::write(home.join(".config/opencode/package-lock.json"), lock.to_string()).unwrap();
        let opencode = dir.path().join("opencode.json");
        std::fs::write(&opencode, opencode_config(model).to_string()).unwrap();
        let env = environment(model, dir.path(), &home, &opencode);
        AgentHome { env, dir }
    }

    /// The program itself, not what npm puts before it.
    pub fn cli(name: &str) -> Result<PathBuf, Lack> {
        let program = programs().and_then(|programs| std::fs::canonicalize(programs.join(name)).ok());
        let lack = || format!("{name} is not installed; scripts/setup-agent-clis installs it");
        program.ok_or_else(|| Lack::of_setup(lack()))
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// An empty directory to work in.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// What all of them need, whichever is run.
    pub fn env(&self) -> &[(String, String)] {
        &self.env
    }

    /// A CLI with this environment and no other, in [`AgentHome::work`].
    pub fn command(&self, name: &str) -> Result<Command, Lack> {
        let mut command = Command::new(AgentHome::cli(name)?);
        command.env_clear().envs(self.env.iter().cloned()).current_dir(self.work());
        // Two of them read it to its end before they begin.
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a CLI to its end, which it must reach.
    pub fn run(&self, name: &str, arguments: &[&str]) -> Result<Ran, Lack> {
        let mut command = self.command(name)?;
        let (stdout, stderr) = (self.dir.path().join("stdout"), self.dir.path().join("stderr"));
        command.args(arguments).stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        let process = crate::process(child.id().cast_signed()).unwrap();
        let is_over = wait_readable(&process, TURN_TIMEOUT).unwrap();
        assert!(is_over, "{name} {arguments:?} still runs: {}\n{}", read(&stdout), read(&stderr));
        let status = child.wait().unwrap();
        Ok(Ran { status, stdout: read(&stdout), stderr: read(&stderr) })
    }
}

impl Drop for AgentHome {
    fn drop(&mut self) {
        // Tools of a CLI that was killed live on: each is in a session of its own.
        kill_marked(&format!("{MARKER}={}", self.dir.path().display()));
    }
}

/// Where `scripts/setup-agent-clis` puts them.
fn programs() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let place = variable("OUTPOST_AGENT_CLIS").or_else(|| Some(cache()?.join("outpost/agent-clis")))?;
    Some(place.join("bin"))
}

fn environment(model: &Model, dir: &Path, home: &Path, opencode: &Path) -> Vec<(String, String)> {
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // The Node for gemini is among them where the system's is too old.
    let path = programs().map_or(system.to_owned(), |programs| format!("{}:{system}", programs.display()));
    let text = |path: &Path| path.display().to_string();
    let owner = owner();
    let mut env = vec![
        ("HOME", text(home)),
        ("PATH", path),
        ("SHELL", "/bin/bash".to_owned()),
        ("TMPDIR", text(&dir.join("tmp"))),
        (MARKER, text(dir)),
        (owner.0, owner.1),
        ("XDG_CACHE_HOME", text(&home.join(".cache"))),
        ("XDG_CONFIG_HOME", text(&home.join(".config"))),
        ("XDG_DATA_HOME", text(&home.join(".local/share"))),
        ("XDG_STATE_HOME", text(&home.join(".local/state"))),
        ("ANTHROPIC_BASE_URL", model.url()),
        ("CODEX_HOME", text(&home.join(".codex"))),
        ("GOOGLE_GEMINI_BASE_URL", model.url()),
        ("OPENCODE_CONFIG", text(opencode)),
    ];
    let fixed = [
        // claude asks a proxy even for loopback.
        ("NO_PROXY", "127.0.0.1,localhost"),
        ("no_proxy", "127.0.0.1,localhost"),
        ("ANTHROPIC_API_KEY", "sk-ant-fake"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        // Or claude refuses to skip permissions as root.
        ("IS_SANDBOX", "1"),
        ("FAKE_KEY", "sk-fake"),
        ("GEMINI_API_KEY", "fake"),
        ("GEMINI_CLI_NO_RELAUNCH", "true"),
        ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
        ("GEMINI_MODEL", "gemini-2.5-flash"),
        ("GEMINI_TELEMETRY_ENABLED", "false"),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ];
    env.extend(fixed.map(|(name, value)| (name, value.to_owned())));
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// With a model that codex does not know: it gets plain tools then.
fn codex_config(model: &Model) -> String {
    format!(
        r#"model = "fake-model"
model_provider = "fake"
check_for_update_on_startup = false

[model_providers.fake]
name = "fake"
base_url = "{}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
request_max_retries = 1
stream_max_retries = 1

[analytics]
enabled = false

[features]
plugins = false
unbounded_connection_retries = false
"#,
        model.url()
    )
}

fn gemini_settings() -> Value {
    json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {
            "enableAutoUpdate": false,
            "enableAutoUpdateNotification": false,
            "maxAttempts": 2,
            // Or a session that was loaded once is removed at the next start.
            "sessionRetention": {"enabled": false},
        },
        "privacy": {"usageStatisticsEnabled": false},
        "telemetry": {"enabled": false},
    })
}

fn opencode_config(model: &Model) -> Value {
    let models = json!({"fake-model": {"name": "Fake"}, "no-such-model": {"name": "Missing"}});
    let options = json!({"baseURL": format!("{}/v1", model.url()), "apiKey": "fake"});
    let provider =
        json!({"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": options, "models": models});
    json!({
        "provider": {"fake": provider},
        "model": "fake/fake-model",
        "small_model": "fake/fake-model",
        "autoupdate": false,
        "share": "disabled",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn what_a_cli_left_behind_ends_with_its_home() {
        let home = AgentHome::new(&Model::start());
        let mut command = Command::new("sleep");
        let mut tool = command.arg("infinity").envs(home.env().iter().cloned()).spawn().unwrap();
        drop(home);
        assert_eq!(tool.wait().unwrap().signal(), Some(9));
    }
}
