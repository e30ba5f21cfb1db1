//! What is entered and looked at, story by story.

use super::pane::Pane;
use super::rules::{
    age_cells, ages, fitted_columns, fixed_columns, sizes, surroundings, user_agent, verdicts,
};
use super::story::Story;
use outpost_testkit::{Sshd, SshdOptions, available, install_fake_clis};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What somebody sees who has just found the program, or whose daemon is gone.
pub(super) fn without_a_daemon(story: &mut Story) {
    for line in [
        "outpost",
        "outpost help ps",
        "outpost approvals help",
        "outpost audit help",
        "outpost config help",
        "outpost sessions help",
        "outpost token help",
        "outpost --version",
        "outpost pss",
        "outpost ps",
        "outpost ps --sort",
        "outpost status",
        "outpost run -- echo hello",
        "outpost exec -- echo hello",
        "outpost run",
        "outpost attach build",
        "outpost logs build",
        "outpost kill build",
        "outpost top",
        "outpost stop",
        "outpost reload",
        "outpost upgrade --binary /bin/true",
        "outpost ask -- true",
        "outpost approve",
        "outpost approvals list",
        "outpost sessions list",
        "outpost token list",
        "outpost audit verify",
        "outpost audit show",
        "outpost disconnect there",
        "outpost --host there ps",
        "outpost connect -- -oProxyCommand=true",
    ] {
        story.shows(line);
    }
}

/// From its start to its end, and what keeps running in between.
pub(super) fn the_daemon(story: &mut Story) {
    story.shows("outpost serve --detach");
    story.shows_with("outpost status", &[ages, sizes]);
    story.shows("outpost serve");
    story.shows("outpost reload");
    story.configure("[processes]\nended_max = 7\n[metrics]\nlisten = \"127.0.0.1:0\"\n");
    story.shows("outpost reload");
    story.configure("[proceses]\n");
    story.shows("outpost reload");
    story.configure("");
    story.said(&["run", "--detach", "--name", "build", "--", "sleep", "1000"]);
    story.shows("outpost upgrade --binary ../../bin/outpost");
    story.shows("outpost upgrade --binary nowhere");
    story.shows("outpost upgrade --binary /bin/true");
    story.shows("outpost stop --keep-children");
    story.shows_with("outpost status", &[ages, sizes]);
    story.shows("outpost run -- true");
    story.shows("outpost serve --detach");
    story.shows("outpost stop");
    story.shows("outpost stop");
    let front = story.pane();
    front.enters("outpost serve");
    let seen = front.wait_seen("try: outpost approve");
    story.record("outpost serve", &seen, &[]);
    front.presses("C-c");
    let seen = front.wait_prompt();
    story.record("outpost serve", &seen, &[]);
}

fn processes_of(story: &Story) -> Vec<Value> {
    story.told(&["ps", "--json"]).as_array().unwrap().clone()
}

/// Waits until nobody reads any more.
fn wait_unread(story: &Story) {
    story.wait("end of readers", |story| processes_of(story).iter().all(|process| process["readers"] == 0));
}

/// The daemon's number of a process, which differs from run to run.
fn know_number(story: &mut Story, id: &str) {
    let listed = processes_of(story);
    let process = listed.iter().find(|process| process["id"] == id).unwrap();
    story.knows(process["process"].as_str().unwrap(), "NUMBER");
}

pub(super) fn processes(story: &mut Story) {
    fs::write(story.path("home/project/greet"), "echo hello; echo oops >&2; exit 3\n").unwrap();
    fs::write(story.path("home/project/build"), "seq 3; exec sleep 1000\n").unwrap();
    fs::write(story.path("home/project/make"), "echo here > made; cat made; touch /etc/made\n").unwrap();
    story.serve();
    story.shows("outpost run --name greeting -- sh greet");
    story.shows("outpost run --name gone -- no-such-program");
    story.shows("outpost run --env NOVALUE -- true");
    story.shows("outpost run --network -- true");
    story.shows("outpost run --cwd nowhere -- true");
    let line = "outpost run --detach --name build -- sh build";
    let pane = story.pane();
    pane.enters(line);
    let seen = pane.wait_prompt();
    know_number(story, "build");
    story.record(line, &seen, &[]);
    story.wait("third line", |story| story.said(&["logs", "build"]).ends_with("3\n"));
    wait_unread(story);
    story.shows_with("outpost ps", &[fitted_columns]);
    story.shows("outpost logs build");
    story.shows("outpost logs --tail 1 build");
    story.shows("outpost logs nothing");
    story.shows("outpost attach nothing");
    story.shows("outpost kill nothing");
    story.shows("outpost kill --signal NOPE build");
    let follow = story.pane();
    follow.enters("outpost logs --follow build");
    follow.wait_seen("\n3");
    follow.presses("C-c");
    let seen = follow.wait_prompt();
    story.record("outpost logs --follow build", &seen, &[]);
    story.shows("outpost kill build");
    story.shows("outpost kill build");
    story.shows("outpost exec --name made -- sh make");
    story.shows("outpost exec --name not-made --sandbox read-only -- touch made");
    story.shows("outpost exec -- no-such-program");
    wait_unread(story);
    story.shows_with("outpost ps", &[fitted_columns]);
    let watch = story.pane();
    watch.enters("outpost ps --watch");
    let seen = watch.wait_seen("touch made");
    story.record("outpost ps --watch", &seen, &[fitted_columns]);
    watch.presses("C-c");
    watch.wait_prompt();
}

/// A process on a terminal, which is left and come back to.
pub(super) fn terminals(story: &mut Story) {
    story.serve();
    let pane = story.pane();
    pane.enters("outpost run --tty --name shell -- sh");
    pane.wait("prompt within", |seen| seen.ends_with("-- sh\n[0]\n$"));
    pane.enters("echo within; false");
    pane.wait_seen("within\n[1]\n$");
    know_number(story, "shell");
    pane.presses("C-\\");
    let seen = pane.wait_seen("comes back to it\n[0]\n$");
    story.record("outpost run --tty --name shell -- sh", &seen, &[]);
    let again = story.pane();
    again.enters("outpost attach shell");
    again.wait_seen("within\n[1]\n$");
    let watcher = story.pane();
    watcher.enters("outpost attach --read-only shell");
    watcher.wait_seen("within\n[1]\n$");
    again.enters("exit 4");
    let seen = again.wait_seen("[4]\n$");
    story.record("outpost attach shell", &seen, &[]);
    let seen = watcher.wait_seen("[4]\n$");
    story.record("outpost attach --read-only shell", &seen, &[]);
}

pub(super) fn top(story: &mut Story) {
    story.serve();
    for (name, command) in [("build", "sleep 1000"), ("done", "true")] {
        let command: Vec<&str> = command.split(' ').collect();
        story.said(&[&["run", "--detach", "--name", name, "--"], command.as_slice()].concat());
    }
    story.wait("end", |story| processes_of(story).iter().any(|process| process["exit"]["code"] == 0));
    let pane = story.pane();
    pane.enters("outpost top --all");
    pane.wait_seen("exited 0");
    // By name.
    pane.presses("n");
    // Rates are known from the second look on.
    let seen = pane.wait("rate, by name", |seen| seen.contains("[ID]") && seen.contains("B/s"));
    story.record("outpost top --all", &seen, &[fixed_columns, ages, sizes]);
    pane.presses("q");
    let seen = pane.wait_prompt();
    story.record("outpost top --all", &seen, &[]);
    story.shows("outpost top | cat");
}

pub(super) fn configuration(story: &mut Story) {
    story.shows("outpost config check");
    story.shows("outpost config show");
    story.configure("[processes]\nended = 7\njournal_bytes_max = \"much\"\n[borker]\n");
    story.shows("outpost config check");
    story.shows("outpost config show");
    story.shows("outpost serve");
    story.shows("outpost config check --config nowhere.toml");
    story.configure("[processes]\nended_max = 7\n");
    story.serve();
    story.shows("outpost config show | grep -v default");
}

/// What an approver is told, which the audit says.
fn approver_told(story: &Story, what: &str) -> Vec<Value> {
    story.told(&["approvals", what, "--json"]).as_array().unwrap().clone()
}

/// Asks in a pane, and waits until it is asked. Returns the question's id.
fn ask(story: &mut Story, line: &str) -> (Pane, String) {
    let pane = story.pane();
    pane.enters(line);
    story.wait("question", |story| story.told(&["status", "--json"])["waiting"]["questions"] == 1);
    let question = approver_told(story, "list").pop().unwrap();
    story.knows(&question["digest"].as_str().unwrap()[..8], "00000000");
    (pane, question["id"].as_str().unwrap().to_owned())
}

pub(super) fn approvals(story: &mut Story) {
    let own = |words: &str| format!("outpost approvals {words}");
    story.serve();
    story.shows("outpost approvals list");
    story.shows("outpost approvals enroll < /dev/null");
    story.shows("outpost approvals enroll --no-passphrase --name laptop");
    story.shows("outpost approvals keys");
    story.shows("outpost approvals rename laptop desk");
    story.shows("outpost approvals expire desk 2999-01-01T00:00:00Z");
    story.shows("outpost approvals revoke-key desk");
    story.shows(&own("list"));
    let line = "outpost ask --unprivileged --reason 'to see it' -- echo approved";
    let (asking, id) = ask(story, line);
    story.shows_with(&own("list"), &[fixed_columns]);
    story.shows_with(&own(&format!("show {id}")), &[ages, surroundings]);
    story.shows(&own("show 123"));
    story.shows(&own("allow ffffffff"));
    story.shows(&own(&format!("allow --digest 0 {id}")));
    let watch = story.pane();
    watch.enters(&own("watch"));
    watch.wait_seen("waits  ");
    story.shows(&own(&format!("allow --times 2 {id}")));
    let seen = asking.wait_prompt();
    story.record(line, &seen, &[]);
    watch.wait_seen("settled  ");
    watch.presses("C-c");
    let seen = watch.wait_prompt();
    story.record(&own("watch"), &seen, &[age_cells]);
    story.shows(&own("grants"));
    let grant = approver_told(story, "grants").pop().unwrap();
    let grant = grant["id"].as_str().unwrap();
    story.shows(&own(&format!("revoke {grant}")));
    story.shows(&own(&format!("revoke {grant}")));
    let line = "outpost ask --unprivileged -- echo denied";
    let (asking, id) = ask(story, line);
    story.shows(&own(&format!("deny --note 'not now' {id}")));
    let seen = asking.wait_prompt();
    story.record(line, &seen, &[]);
    story.shows("outpost ask --unprivileged -- no-such-program");
    let line = "outpost approve";
    let pane = story.pane();
    pane.enters(line);
    let seen = pane.wait_seen("connected as");
    story.record(line, &seen, &[]);
    let (asking, _) = ask(story, "outpost ask --unprivileged -- echo withdrawn");
    let seen = pane.wait_seen("1 question waits");
    story.record(line, &seen, &[fixed_columns]);
    asking.presses("C-c");
    let seen = asking.wait_prompt();
    story.record("outpost ask --unprivileged -- echo withdrawn", &seen, &[]);
    pane.wait_seen("nothing waits");
    pane.presses("q");
    let seen = pane.wait_prompt();
    story.record(line, &seen, &[]);
    story.shows("outpost approve < /dev/null");
    story.shows("outpost audit show --event decided");
    story.shows("outpost audit show --event decided --since yesterday");
    story.shows("outpost audit verify");
    story.shows("outpost audit export | head -n 2 | cut -d , -f 1,4");
    story.said(&["stop"]);
    story.shows("sed -i 's/not now/do it!!/' ~/.local/state/outpost/approvals/audit/*; outpost audit verify");
}

pub(super) fn sessions(story: &mut Story) {
    install_fake_clis(&story.path("bin"), &["claude"]);
    story.serve();
    story.shows("outpost sessions list");
    let create = story.pane();
    create.enters("outpost sessions create .");
    let seen = create.wait_prompt();
    story.record("outpost sessions create .", &seen, &[]);
    let id = story.told(&["sessions", "list", "--json"])[0]["sessionId"].as_str().unwrap().to_owned();
    story.knows(&id[..8], "00000000");
    story.shows("outpost sessions create nowhere");
    story.shows(&format!("outpost sessions send {id} echo:hello"));
    story.shows(&format!("outpost sessions send {id} tools"));
    story.shows(&format!("outpost sessions send {id} error"));
    story.shows("outpost sessions send nobody hello");
    story.wait("idle session", |story| story.told(&["sessions", "list", "--json"])[0]["status"] == "idle");
    story.shows("outpost sessions list");
    story.shows(&format!("outpost sessions interrupt {id}"));
    let send = story.pane();
    fs::write(story.path("home/project/message"), "do:init\npartial begun\nhang").unwrap();
    let line = format!("outpost sessions send {id} < message");
    send.enters(&line);
    send.wait_seen("\nbegun");
    story.shows(&format!("outpost sessions interrupt {id}"));
    let seen = send.wait_prompt();
    story.record(&line, &seen, &[]);
    story.shows(&format!("outpost sessions watch {id}"));
    story.shows(&format!("outpost sessions destroy {id}"));
    story.shows(&format!("outpost sessions destroy {id}"));
    story.shows("outpost token create laptop");
    story.shows("outpost token create laptop");
    story.shows("outpost token list");
    story.shows("outpost token revoke laptop");
    story.shows("outpost token revoke laptop");
}

/// What is about the host and the program's own files.
pub(super) fn the_host(story: &mut Story) {
    story.shows_with("outpost doctor", &[verdicts]);
    story.configure("[borker]\n");
    story.shows_with("outpost doctor", &[verdicts]);
    story.configure("");
    story.shows("outpost install-service --user --print");
    story.shows_with("outpost install-service --user", &[surroundings]);
    story.shows_with("outpost install-service --user", &[surroundings]);
    let unit = story.path("home/.config/systemd/user/outpost.service");
    fs::write(&unit, "[Service]\n").unwrap();
    story.shows("outpost install-service --user");
    story.shows("outpost completions bash | head -n 3");
    story.shows("outpost completions nosh");
    story.shows("outpost man pages; ls -1 pages");
    story.shows("outpost man /dev/null/pages");
    story.shows("outpost man");
}

/// Those that programs speak with, by hand.
pub(super) fn faces(story: &mut Story) {
    story.serve();
    let server = story.pane();
    server.enters("outpost app-server");
    server.enters(r#"{"id":0,"method":"initialize","params":{"clientInfo":{"name":"me","version":"1"}}}"#);
    server.wait_seen(r#""id":0,"result""#);
    server.enters(r#"{"id":5,"method":"command/exec","params":{"command":[]}}"#);
    server.wait_seen("must not be empty");
    server.presses("C-d");
    let seen = server.wait_prompt();
    story.record("outpost app-server", &seen, &[user_agent]);
    let mcp = story.pane();
    mcp.enters("outpost mcp");
    mcp.enters(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    mcp.wait_seen(r#""result""#);
    mcp.presses("C-d");
    let seen = mcp.wait_prompt();
    story.record("outpost mcp", &seen, &[]);
    story.shows("outpost relay");
    story.shows("outpost relay -help");
    story.shows("outpost relay -nonsense");
    story.shows("outpost relay -version");
    story.shows("outpost relay -bridge -socket nowhere.sock");
}

/// Another host, which is this one over ssh.
pub(super) fn elsewhere(story: &mut Story) {
    let at = |name: &str| story.path(name).display().to_string();
    let environment = [
        ("HOME", at("there")),
        ("XDG_CONFIG_HOME", at("home/.config")),
        ("XDG_STATE_HOME", at("there/state")),
        ("XDG_RUNTIME_DIR", at("there/run")),
    ];
    fs::create_dir_all(at("ssh")).unwrap();
    fs::create_dir_all(at("there/.local/bin")).unwrap();
    let options = SshdOptions { environment: &environment, ..SshdOptions::PLAIN };
    let Some(sshd) = available!(Sshd::start(&story.path("ssh"), &options)) else { return story.skip() };
    let destination = sshd.destination();
    let (user, address) = destination.split_once('@').unwrap();
    let mut config = format!("Host there\nPort {}\nHost nowhere\nPort 1\n", sshd.port());
    config += &format!("Host *\nHostName {address}\nUser {user}\n");
    config.extend(sshd.client_options().iter().map(|option| option.replacen('=', " ", 1) + "\n"));
    fs::write(at("ssh/config"), config).unwrap();
    // In the place of ~/.ssh/config, which ssh looks for in the home of /etc/passwd.
    let ssh = format!("#!/bin/sh\nPATH=\"${{PATH#*:}}\" exec ssh -F {} \"$@\"\n", at("ssh/config"));
    fs::write(at("bin/ssh"), ssh).unwrap();
    fs::set_permissions(at("bin/ssh"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::copy(crate::support::outpost(), at("there/.local/bin/outpost")).unwrap();
    story.shows("outpost connect nowhere");
    let connect = story.pane();
    connect.enters("outpost connect there");
    let seen = connect.wait_seen("try: outpost --host there ps");
    story.record("outpost connect there", &seen, &[]);
    story.shows("outpost connect there");
    story.shows("outpost --host there run -- pwd");
    story.shows("outpost --host there config check");
    story.shows("outpost --host there token list");
    story.shows("outpost --host there stop");
    story.shows("outpost disconnect there");
    let seen = connect.wait_prompt();
    story.record("outpost connect there", &seen, &[]);
    story.shows("outpost disconnect there");
}
