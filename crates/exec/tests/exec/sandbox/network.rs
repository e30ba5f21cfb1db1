//! The network of a command: off unless requested, and announced by a variable.

use super::{Host, for_each_user, policy};
use crate::table::with;
use serde_json::{Value, json};
use std::net::TcpListener;

const VARIABLE: &str = "echo \"[${CODEX_SANDBOX_NETWORK_DISABLED-unset}]\"";

fn profile(network: Value) -> Value {
    let root = json!({"access": "read", "path": {"type": "special", "value": {"kind": "root"}}});
    json!({"permissionProfile": {"network": network, "fileSystem": {"entries": [root]}}})
}

/// Whether the variable announces a missing network, and whether the network is missing.
fn rows() -> Vec<(Value, bool, bool)> {
    vec![
        (json!({}), true, true),
        (policy(json!({"type": "readOnly"})), true, true),
        (policy(json!({"type": "readOnly", "networkAccess": false})), true, true),
        (policy(json!({"type": "readOnly", "networkAccess": true})), false, false),
        (policy(json!({"type": "workspaceWrite"})), true, true),
        (policy(json!({"type": "workspaceWrite", "networkAccess": true})), false, false),
        (policy(json!({"type": "dangerFullAccess"})), false, false),
        // Announced, and not enforced here.
        (policy(json!({"type": "externalSandbox"})), true, false),
        (policy(json!({"type": "externalSandbox", "networkAccess": "restricted"})), true, false),
        (policy(json!({"type": "externalSandbox", "networkAccess": "enabled"})), false, false),
        (profile(json!(null)), true, true),
        (profile(json!({})), true, true),
        (profile(json!({"enabled": null})), true, true),
        (profile(json!({"enabled": false})), true, true),
        (profile(json!({"enabled": true})), false, false),
    ]
}

#[test]
fn the_network_is_off_unless_it_is_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for_each_user(|options| {
        let mut host = Host::start(&options);
        for (limits, outcome, enforced) in rows() {
            let word = if outcome { "[1]\n" } else { "[unset]\n" };
            assert_eq!(host.script(&limits, VARIABLE, &[]), word, "{limits}");
            let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected");
            let command = json!({"command": ["/bin/bash", "-c", script]});
            let result = host.server.exec(&with(command, limits.clone()));
            assert_eq!(result["stdout"], if enforced { "" } else { "connected\n" }, "{limits}: {result}");
        }
    });
}

/// The client cannot set the variable to another value or remove it.
#[test]
fn the_variable_cannot_be_overruled() {
    let mut host = Host::start(&outpost_testkit::Options::default());
    for env in
        [json!({"CODEX_SANDBOX_NETWORK_DISABLED": "0"}), json!({"CODEX_SANDBOX_NETWORK_DISABLED": null})]
    {
        let limits = with(policy(json!({"type": "readOnly"})), json!({"env": env}));
        assert_eq!(host.script(&limits, VARIABLE, &[]), "[1]\n", "{env}");
    }
}

/// "socket/socketpair only for AF_UNIX", "AF_UNIX connect EPERM".
#[test]
fn sockets_of_the_host_are_out_of_reach() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let path = host.path("cwd/socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let script = r#"
            use Socket;
            sub attempt { print "$_[0] ", ($_[1]->() ? "ok" : $!{EPERM} ? "EPERM" : $!), "\n" }
            attempt("inet", sub { socket(my $s, AF_INET, SOCK_STREAM, 0) });
            attempt("inet6", sub { socket(my $s, AF_INET6, SOCK_DGRAM, 0) });
            attempt("netlink", sub { socket(my $s, 16, SOCK_RAW, 0) });
            attempt("unix", sub { my $s; socket($s, AF_UNIX, SOCK_STREAM, 0) && connect($s, sockaddr_un($ARGV[0])) });
            attempt("pair", sub { socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) });
        "#;
        let run = |limits: Value| with(json!({"command": ["/usr/bin/perl", "-e", script, path]}), limits);
        let result = host.server.exec(&run(policy(json!({"type": "readOnly"}))));
        let outcome = "inet EPERM\ninet6 EPERM\nnetlink EPERM\nunix EPERM\npair ok\n";
        assert_eq!(result["stdout"], outcome, "{result}");
        let result = host.server.exec(&run(policy(json!({"type": "readOnly", "networkAccess": true}))));
        let outcome = "inet ok\ninet6 ok\nnetlink ok\nunix ok\npair ok\n";
        assert_eq!(result["stdout"], outcome, "{result}");
        drop(listener);
    });
}
