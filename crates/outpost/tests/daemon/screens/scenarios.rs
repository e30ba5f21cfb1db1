//! The scenarios: the commands of each, in order.

use super::pane::Pane;
use super::rules::{
    age_cells, ages, fitted_columns, fixed_columns, host_specifics, sizes, user_agent, verdicts,
};
use super::scenario::Scenario;
use outpost_testkit::{Sshd, SshdOptions, available, install_fake_clis};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Commands without a daemon.
pub(super) fn without_a_daemon(scenario: &mut Scenario) {
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
        scenario.shows(line);
    }
}

/// Start, reload, upgrade and stop of a daemon.
pub(super) fn the_daemon(scenario: &mut Scenario) {
    scenario.shows("outpost serve --detach");
    scenario.shows_with("outpost status", &[ages, sizes]);
    scenario.shows("outpost serve");
    scenario.shows("outpost reload");
    scenario.configure("[processes]\nended_max = 7\n[metrics]\nlisten = \"127.0.0.1:0\"\n");
    scenario.shows("outpost reload");
    scenario.configure("[proceses]\n");
    scenario.shows("outpost reload");
    scenario.configure("");
    scenario.stdout_of(&["run", "--detach", "--name", "build", "--", "sleep", "1000"]);
    scenario.shows("outpost upgrade --binary ../../bin/outpost");
    scenario.shows("outpost upgrade --binary nowhere");
    scenario.shows("outpost upgrade --binary /bin/true");
    scenario.shows("outpost stop --keep-children");
    scenario.shows_with("outpost status", &[ages, sizes]);
    scenario.shows("outpost run -- true");
    scenario.shows("outpost serve --detach");
    scenario.shows("outpost stop");
    scenario.shows("outpost stop");
    let front = scenario.pane();
    front.enters("outpost serve");
    let seen = front.wait_seen("try: outpost approve");
    scenario.record("outpost serve", &seen, &[]);
    front.presses("C-c");
    let seen = front.wait_prompt();
    scenario.record("outpost serve", &seen, &[]);
}

fn processes_of(scenario: &Scenario) -> Vec<Value> {
    scenario.json_of(&["ps", "--json"]).as_array().unwrap().clone()
}

/// Waits until the daemon counts no readers.
fn wait_unread(scenario: &Scenario) {
    scenario.wait("end of readers", |scenario| {
        processes_of(scenario).iter().all(|process| process["readers"] == 0)
    });
}

/// Substitutes the slot number of a process, which varies between runs.
fn substitute_number(scenario: &mut Scenario, id: &str) {
    let listed = processes_of(scenario);
    let process = listed.iter().find(|process| process["id"] == id).unwrap();
    scenario.substitute(process["process"].as_str().unwrap(), "NUMBER");
}

pub(super) fn processes(scenario: &mut Scenario) {
    fs::write(scenario.path("home/project/greet"), "echo hello; echo oops >&2; exit 3\n").unwrap();
    fs::write(scenario.path("home/project/build"), "seq 3; exec sleep 1000\n").unwrap();
    fs::write(scenario.path("home/project/make"), "echo here > made; cat made; touch /etc/made\n").unwrap();
    scenario.serve();
    scenario.shows("outpost run --name greeting -- sh greet");
    scenario.shows("outpost run --name gone -- no-such-program");
    scenario.shows("outpost run --env NOVALUE -- true");
    scenario.shows("outpost run --network -- true");
    scenario.shows("outpost run --cwd nowhere -- true");
    let line = "outpost run --detach --name build -- sh build";
    let pane = scenario.pane();
    pane.enters(line);
    let seen = pane.wait_prompt();
    substitute_number(scenario, "build");
    scenario.record(line, &seen, &[]);
    scenario.wait("third line", |scenario| scenario.stdout_of(&["logs", "build"]).ends_with("3\n"));
    wait_unread(scenario);
    scenario.shows_with("outpost ps", &[fitted_columns]);
    scenario.shows("outpost logs build");
    scenario.shows("outpost logs --tail 1 build");
    scenario.shows("outpost logs nothing");
    scenario.shows("outpost attach nothing");
    scenario.shows("outpost kill nothing");
    scenario.shows("outpost kill --signal NOPE build");
    let follow = scenario.pane();
    follow.enters("outpost logs --follow build");
    follow.wait_seen("\n3");
    follow.presses("C-c");
    let seen = follow.wait_prompt();
    scenario.record("outpost logs --follow build", &seen, &[]);
    scenario.shows("outpost kill build");
    scenario.shows("outpost kill build");
    scenario.shows("outpost exec --name made -- sh make");
    scenario.shows("outpost exec --name not-made --sandbox read-only -- touch made");
    scenario.shows("outpost exec -- no-such-program");
    wait_unread(scenario);
    scenario.shows_with("outpost ps", &[fitted_columns]);
    let watch = scenario.pane();
    watch.enters("outpost ps --watch");
    let seen = watch.wait_seen("touch made");
    scenario.record("outpost ps --watch", &seen, &[fitted_columns]);
    watch.presses("C-c");
    watch.wait_prompt();
}

/// A process on a terminal: detach and attach.
pub(super) fn terminals(scenario: &mut Scenario) {
    scenario.serve();
    let pane = scenario.pane();
    pane.enters("outpost run --tty --name shell -- sh");
    pane.wait("prompt within", |seen| seen.ends_with("-- sh\n[0]\n$"));
    pane.enters("echo within; false");
    pane.wait_seen("within\n[1]\n$");
    substitute_number(scenario, "shell");
    pane.presses("C-\\");
    let seen = pane.wait_seen("`\n[0]\n$");
    scenario.record("outpost run --tty --name shell -- sh", &seen, &[]);
    let again = scenario.pane();
    again.enters("outpost attach shell");
    again.wait_seen("within\n[1]\n$");
    let watcher = scenario.pane();
    watcher.enters("outpost attach --read-only shell");
    watcher.wait_seen("within\n[1]\n$");
    again.enters("exit 4");
    let seen = again.wait_seen("[4]\n$");
    scenario.record("outpost attach shell", &seen, &[]);
    let seen = watcher.wait_seen("[4]\n$");
    scenario.record("outpost attach --read-only shell", &seen, &[]);
}

pub(super) fn top(scenario: &mut Scenario) {
    scenario.serve();
    for (name, command) in [("build", "sleep 1000"), ("done", "true")] {
        let command: Vec<&str> = command.split(' ').collect();
        scenario.stdout_of(&[&["run", "--detach", "--name", name, "--"], command.as_slice()].concat());
    }
    scenario
        .wait("end", |scenario| processes_of(scenario).iter().any(|process| process["exit"]["code"] == 0));
    let pane = scenario.pane();
    pane.enters("outpost top --all");
    pane.wait_seen("exited 0");
    // Sort by name.
    pane.presses("n");
    // Rates appear with the second sample.
    let seen = pane.wait("rate, by name", |seen| seen.contains("[ID]") && seen.contains("B/s"));
    scenario.record("outpost top --all", &seen, &[fixed_columns, ages, sizes]);
    pane.presses("q");
    let seen = pane.wait_prompt();
    scenario.record("outpost top --all", &seen, &[]);
    scenario.shows("outpost top | cat");
}

pub(super) fn configuration(scenario: &mut Scenario) {
    scenario.shows("outpost config check");
    scenario.shows("outpost config show");
    scenario.configure("[processes]\nended = 7\njournal_bytes_max = \"much\"\n[borker]\n");
    scenario.shows("outpost config check");
    scenario.shows("outpost config show");
    scenario.shows("outpost serve");
    scenario.shows("outpost config check --config nowhere.toml");
    scenario.configure("[processes]\nended_max = 7\n");
    scenario.serve();
    scenario.shows("outpost config show | grep -v default");
}

/// A list of `outpost approvals` as JSON.
fn listed_for_approver(scenario: &Scenario, what: &str) -> Vec<Value> {
    scenario.json_of(&["approvals", what, "--json"]).as_array().unwrap().clone()
}

/// Enters a request in a pane and waits for its question. Returns the question's id.
fn ask(scenario: &mut Scenario, line: &str) -> (Pane, String) {
    let pane = scenario.pane();
    pane.enters(line);
    scenario
        .wait("question", |scenario| scenario.json_of(&["status", "--json"])["waiting"]["questions"] == 1);
    let question = listed_for_approver(scenario, "list").pop().unwrap();
    scenario.substitute(&question["digest"].as_str().unwrap()[..8], "00000000");
    (pane, question["id"].as_str().unwrap().to_owned())
}

pub(super) fn approvals(scenario: &mut Scenario) {
    let own = |words: &str| format!("outpost approvals {words}");
    scenario.serve();
    scenario.shows("outpost approvals list");
    scenario.shows("outpost approvals enroll < /dev/null");
    scenario.shows("outpost approvals enroll --no-passphrase --name laptop");
    scenario.shows("outpost approvals keys");
    scenario.shows("outpost approvals rename laptop fixture");
    scenario.shows("outpost approvals expire fixture 2999-01-01T00:00:00Z");
    scenario.shows("outpost approvals revoke-key fixture");
    scenario.shows(&own("list"));
    let line = "outpost ask --unprivileged --reason 'to see it' -- echo approved";
    let (asking, id) = ask(scenario, line);
    scenario.shows_with(&own("list"), &[fixed_columns]);
    scenario.shows_with(&own(&format!("show {id}")), &[ages, host_specifics]);
    scenario.shows(&own("show 123"));
    scenario.shows(&own("approve ffffffff"));
    scenario.shows(&own(&format!("approve --digest 0 {id}")));
    let watch = scenario.pane();
    watch.enters(&own("watch"));
    watch.wait_seen("pending  ");
    scenario.shows(&own(&format!("approve --times 2 {id}")));
    let seen = asking.wait_prompt();
    scenario.record(line, &seen, &[]);
    watch.wait_seen("settled  ");
    watch.presses("C-c");
    let seen = watch.wait_prompt();
    scenario.record(&own("watch"), &seen, &[age_cells]);
    scenario.shows(&own("grants"));
    let grant = listed_for_approver(scenario, "grants").pop().unwrap();
    let grant = grant["id"].as_str().unwrap();
    scenario.shows(&own(&format!("revoke {grant}")));
    scenario.shows(&own(&format!("revoke {grant}")));
    let line = "outpost ask --unprivileged -- echo denied";
    let (asking, id) = ask(scenario, line);
    scenario.shows(&own(&format!("deny --note 'not now' {id}")));
    let seen = asking.wait_prompt();
    scenario.record(line, &seen, &[]);
    scenario.shows("outpost ask --unprivileged -- no-such-program");
    let line = "outpost approve";
    let pane = scenario.pane();
    pane.enters(line);
    let seen = pane.wait_seen("connected as");
    scenario.record(line, &seen, &[]);
    let (asking, _) = ask(scenario, "outpost ask --unprivileged -- echo withdrawn");
    let seen = pane.wait_seen("1 pending question");
    scenario.record(line, &seen, &[fixed_columns]);
    asking.presses("C-c");
    let seen = asking.wait_prompt();
    scenario.record("outpost ask --unprivileged -- echo withdrawn", &seen, &[]);
    pane.wait_seen("no pending questions");
    pane.presses("q");
    let seen = pane.wait_prompt();
    scenario.record(line, &seen, &[]);
    scenario.shows("outpost approve < /dev/null");
    scenario.shows("outpost audit show --event decided");
    scenario.shows("outpost audit show --event decided --since yesterday");
    scenario.shows("outpost audit verify");
    scenario.shows("outpost audit export | head -n 2 | cut -d , -f 1,4");
    scenario.stdout_of(&["stop"]);
    scenario
        .shows("sed -i 's/not now/do it!!/' ~/.local/state/outpost/approvals/audit/*; outpost audit verify");
}

pub(super) fn sessions(scenario: &mut Scenario) {
    install_fake_clis(&scenario.path("bin"), &["claude"]);
    scenario.serve();
    scenario.shows("outpost sessions list");
    let create = scenario.pane();
    create.enters("outpost sessions create .");
    let seen = create.wait_prompt();
    scenario.record("outpost sessions create .", &seen, &[]);
    let id = scenario.json_of(&["sessions", "list", "--json"])[0]["sessionId"].as_str().unwrap().to_owned();
    scenario.substitute(&id[..8], "00000000");
    scenario.shows("outpost sessions create nowhere");
    scenario.shows(&format!("outpost sessions send {id} echo:hello"));
    scenario.shows(&format!("outpost sessions send {id} tools"));
    scenario.shows(&format!("outpost sessions send {id} error"));
    scenario.shows("outpost sessions send no-session hello");
    scenario.wait("idle session", |scenario| {
        scenario.json_of(&["sessions", "list", "--json"])[0]["status"] == "idle"
    });
    scenario.shows("outpost sessions list");
    scenario.shows(&format!("outpost sessions interrupt {id}"));
    let send = scenario.pane();
    fs::write(scenario.path("home/project/message"), "do:init\npartial begun\nhang").unwrap();
    let line = format!("outpost sessions send {id} < message");
    send.enters(&line);
    send.wait_seen("\nbegun");
    scenario.shows(&format!("outpost sessions interrupt {id}"));
    let seen = send.wait_prompt();
    scenario.record(&line, &seen, &[]);
    scenario.shows(&format!("outpost sessions watch {id}"));
    scenario.shows(&format!("outpost sessions destroy {id}"));
    scenario.shows(&format!("outpost sessions destroy {id}"));
    scenario.shows("outpost token create laptop");
    scenario.shows("outpost token create laptop");
    scenario.shows("outpost token list");
    scenario.shows("outpost token revoke laptop");
    scenario.shows("outpost token revoke laptop");
}

/// Commands about the local host and outpost's own files.
pub(super) fn local_host(scenario: &mut Scenario) {
    scenario.shows_with("outpost doctor", &[verdicts]);
    scenario.configure("[borker]\n");
    scenario.shows_with("outpost doctor", &[verdicts]);
    scenario.configure("");
    scenario.shows("outpost install-service --user --print");
    scenario.shows_with("outpost install-service --user", &[host_specifics]);
    scenario.shows_with("outpost install-service --user", &[host_specifics]);
    let unit = scenario.path("home/.config/systemd/user/outpost.service");
    fs::write(&unit, "[Service]\n").unwrap();
    scenario.shows("outpost install-service --user");
    scenario.shows("outpost completions bash | head -n 3");
    scenario.shows("outpost completions nosh");
    scenario.shows("outpost man pages; ls -1 pages");
    scenario.shows("outpost man /dev/null/pages");
    scenario.shows("outpost man");
}

/// Faces for programs, used by hand.
pub(super) fn faces(scenario: &mut Scenario) {
    scenario.serve();
    let server = scenario.pane();
    server.enters("outpost app-server");
    server.enters(r#"{"id":0,"method":"initialize","params":{"clientInfo":{"name":"me","version":"1"}}}"#);
    server.wait_seen(r#""id":0,"result""#);
    server.enters(r#"{"id":5,"method":"command/exec","params":{"command":[]}}"#);
    server.wait_seen("must not be empty");
    server.presses("C-d");
    let seen = server.wait_prompt();
    scenario.record("outpost app-server", &seen, &[user_agent]);
    let mcp = scenario.pane();
    mcp.enters("outpost mcp");
    mcp.enters(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    mcp.wait_seen(r#""result""#);
    mcp.presses("C-d");
    let seen = mcp.wait_prompt();
    scenario.record("outpost mcp", &seen, &[]);
    scenario.shows("outpost relay");
    scenario.shows("outpost relay -help");
    scenario.shows("outpost relay -nonsense");
    scenario.shows("outpost relay -version");
    scenario.shows("outpost relay -bridge -socket nowhere.sock");
}

/// A remote host: this one, over ssh.
pub(super) fn remote_host(scenario: &mut Scenario) {
    let at = |name: &str| scenario.path(name).display().to_string();
    let environment = [
        ("HOME", at("there")),
        ("XDG_CONFIG_HOME", at("home/.config")),
        ("XDG_STATE_HOME", at("there/state")),
        ("XDG_RUNTIME_DIR", at("there/run")),
    ];
    fs::create_dir_all(at("ssh")).unwrap();
    fs::create_dir_all(at("there/.local/bin")).unwrap();
    let options = SshdOptions { environment: &environment, ..SshdOptions::PLAIN };
    let Some(sshd) = available!(Sshd::start(&scenario.path("ssh"), &options)) else { return scenario.skip() };
    let destination = sshd.destination();
    let (user, address) = destination.split_once('@').unwrap();
    let mut config = format!("Host there\nPort {}\nHost nowhere\nPort 1\n", sshd.port());
    config += &format!("Host *\nHostName {address}\nUser {user}\n");
    config.extend(sshd.client_options().iter().map(|option| option.replacen('=', " ", 1) + "\n"));
    fs::write(at("ssh/config"), config).unwrap();
    // ssh reads ~/.ssh/config from the home in /etc/passwd, so a wrapper passes the file.
    let ssh = format!("#!/bin/sh\nPATH=\"${{PATH#*:}}\" exec ssh -F {} \"$@\"\n", at("ssh/config"));
    fs::write(at("bin/ssh"), ssh).unwrap();
    fs::set_permissions(at("bin/ssh"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::copy(crate::support::outpost(), at("there/.local/bin/outpost")).unwrap();
    scenario.shows("outpost connect nowhere");
    let connect = scenario.pane();
    connect.enters("outpost connect there");
    let seen = connect.wait_seen("try: outpost --host there ps");
    scenario.record("outpost connect there", &seen, &[]);
    scenario.shows("outpost connect there");
    scenario.shows("outpost --host there run -- pwd");
    scenario.shows("outpost --host there config check");
    scenario.shows("outpost --host there token list");
    scenario.shows("outpost --host there stop");
    scenario.shows("outpost disconnect there");
    let seen = connect.wait_prompt();
    scenario.record("outpost connect there", &seen, &[]);
    scenario.shows("outpost disconnect there");
}
