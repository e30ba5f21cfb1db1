//! Commands in a sandbox, as a client sees it: what they can reach, what is refused, what stays on the host.
//!
//! Everything here runs as root and as an ordinary user where the tests may become one: the kernel asks each of them
//! other questions.

mod confinement;
mod network;
mod policies;
mod profiles;

use crate::table::with;
use outpost_testkit::{AppServer, Options};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A user without rights.
const NOBODY: u32 = 65534;

/// A server with directories that its user owns.
pub(crate) struct Host {
    pub(crate) server: AppServer,
    uid: Option<u32>,
}

impl Host {
    pub(crate) fn start(options: &Options) -> Host {
        Host { server: AppServer::start(options), uid: options.uid }
    }

    /// A path in the directory of the test, which is outside of the server's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.server.dir().join(name)
    }

    /// Makes it with all its parents, of the server's user.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        let mut at = path.as_path();
        while at != self.server.dir() {
            self.own(at);
            at = at.parent().unwrap();
        }
        path
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        self.dir(Path::new(name).parent().unwrap().to_str().unwrap());
        std::fs::write(&path, content).unwrap();
        self.own(&path);
        path
    }

    fn own(&self, path: &Path) {
        if let Some(uid) = self.uid {
            std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
        }
    }

    /// Runs a script; what it wrote to standard output. Its words are `$1` and so on.
    pub(crate) fn script(&mut self, limits: &Value, script: &str, words: &[&Path]) -> String {
        let mut command = vec![json!("/bin/sh"), json!("-c"), json!(script), json!("sh")];
        command.extend(words.iter().map(|word| json!(word)));
        let result = self.server.exec(&with(json!({"command": command}), limits.clone()));
        format!("{}{}", result["stdout"].as_str().unwrap(), result["stderr"].as_str().unwrap())
    }

    /// Checks which of these directories the command can write to, and reports every deviation.
    pub(crate) fn check_writes(&mut self, what: &str, limits: &Value, rows: &[(&Path, bool)]) {
        // Others try the same in the same directories.
        let name = self.server.dir().file_name().unwrap().to_str().unwrap().to_owned();
        let script = r#"
            for dir; do
                if { echo x > "$dir/NAME"; } 2>/dev/null; then rm "$dir/NAME"; echo true; else echo false; fi
            done"#;
        let paths: Vec<&Path> = rows.iter().map(|(path, _)| *path).collect();
        let outcome = self.script(limits, &script.replace("NAME", &name), &paths);
        let expected: String = rows.iter().map(|(_, writes)| format!("{writes}\n")).collect();
        assert_eq!(outcome, expected, "{what}: {limits}: {paths:?}, user {:?}", self.uid);
    }

    /// Which of these files the command can read: their content, or a dash.
    pub(crate) fn check_reads(&mut self, what: &str, limits: &Value, rows: &[(&Path, &str)]) {
        let script = r#"
            for file; do
                content=$(cat "$file" 2>/dev/null)
                echo "${content:--}"
            done"#;
        let paths: Vec<&Path> = rows.iter().map(|(path, _)| *path).collect();
        let outcome = self.script(limits, script, &paths);
        let expected: String = rows.iter().map(|(_, content)| format!("{content}\n")).collect();
        assert_eq!(outcome, expected, "{what}: {limits}: {paths:?}, user {:?}", self.uid);
    }
}

/// Runs a test for each user there can be.
pub(crate) fn for_each_user(test: impl Fn(Options)) {
    test(Options::default());
    if outpost_sys::process::effective_uid() == 0 {
        test(Options::default().uid(NOBODY));
    }
}

/// Params with a policy.
pub(crate) fn policy(policy: Value) -> Value {
    json!({"sandboxPolicy": policy})
}

/// Params with a profile of entries: an access and a path, or `:kind` for a special one.
pub(crate) fn profile(entries: &[(&str, &str)]) -> Value {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(access, path)| {
            let path = match path.split_at(1) {
                (":", kind) => json!({"type": "special", "value": {"kind": kind}}),
                ("*", pattern) => json!({"type": "glob_pattern", "pattern": pattern}),
                _ => json!({"type": "path", "path": path}),
            };
            json!({"access": access, "path": path})
        })
        .collect();
    json!({"permissionProfile": {"fileSystem": {"entries": entries}}})
}
