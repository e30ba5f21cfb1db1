//! Communication without a network: by any protocol, by names and paths of sockets, by socket pairs.

use super::Control::{Output, Root};
use super::Limits::{Denying, Everything, Minimal, Networked, ReadOnly, Workspace};
use super::{Attempt, Limits, attempt, check};

const OFF: &[Limits] = &[ReadOnly, Workspace, Denying, Minimal, Everything];

const PROTOCOLS: &[Attempt] = &[
    attempt(
        "TCP",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_STREAM, 0) or report(0);
        report(connect $s, sockaddr_in($tcp, inet_aton("127.0.0.1")))"#,
    ),
    attempt(
        "TCP over IPv6",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket qw(:DEFAULT pack_sockaddr_in6 inet_pton AF_INET6);
        socket(my $s, AF_INET6, SOCK_STREAM, 0) or report(0); report(1) if !$tcp6;
        report(connect $s, pack_sockaddr_in6($tcp6, inet_pton(AF_INET6, "::1")))"#,
    ),
    attempt(
        "UDP, as a question for a name",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0) or report(0);
        my $question = pack("n6", 1, 256, 1, 0, 0, 0) . "\7example\3com\0" . pack("n2", 1, 1);
        report(send $s, $question, 0, sockaddr_in($udp, inet_aton("127.0.0.1")))"#,
    ),
    attempt(
        "a raw socket",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_RAW, 1); report(fileno $s)"#,
    ),
    attempt(
        "packets of the device",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("done"),
        r#"
        report(sys(41, 17, 3, 0x300))"#,
    ),
    attempt("netlink", OFF, "EPERM", Output("done"), r#"report(sys(41, 16, 3, 0))"#),
    attempt(
        "another machine's socket",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Output("yes"),
        r#"
        my $made = sys(41, 40, 1, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : report(0)"#,
    ),
    attempt(
        "the kernel's ciphers",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Output("yes"),
        r#"
        my $made = sys(41, 38, 5, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : report(0)"#,
    ),
    attempt(
        "express packets",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("yes"),
        r#"
        my $made = sys(41, 44, 3, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : report(0)"#,
    ),
    attempt(
        "keys of the network",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("yes"),
        r#"
        my $made = sys(41, 15, 3, 2); $made || $!{EAFNOSUPPORT} ? print "yes" : report(0)"#,
    ),
    attempt(
        "a family with bits that the kernel does not read",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        report(sys(41, 0x100000002, 1, 0))"#,
    ),
    attempt(
        "a device of the network is asked after",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0) or report(0); my $which = "lo" . "\0" x 62;
        report(ioctl $s, 0x8913, $which)"#,
    ),
];

#[test]
fn no_protocol_leads_out_without_a_network() {
    check(PROTOCOLS);
}

const SOCKETS: &[Attempt] = &[
    attempt(
        "a socket of the host with a path",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
        report(connect $s, sockaddr_un("$out/docker.sock"))"#,
    ),
    attempt(
        "a socket of the host with a path, by a link",
        &[Workspace],
        "EPERM",
        Output("done"),
        r#"
        use Socket; symlink("$out/docker.sock", "$ws/s") or die; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
        chdir $ws; report(connect $s, sockaddr_un("s"))"#,
    ),
    attempt(
        "a socket of the host with an abstract name",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
        report(connect $s, pack("S a*", AF_UNIX, "\0$abstract"))"#,
    ),
    attempt(
        "a datagram to a path",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_DGRAM, 0) or report(0);
        report(send $s, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a datagram to a path from one of a pair",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_DGRAM, 0) or report(0);
        report(send $a, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a raw socket, which is one for datagrams",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_RAW, 0) or report(0);
        report(send $a, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a datagram with other flags in its kind",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        report(sys(41, 1, 2 | 02000000 | 04000, 0))"#,
    ),
    attempt(
        "a packet to a path from one of a pair",
        OFF,
        "came to the other",
        Output("came to the other"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_SEQPACKET, 0) or report(0);
        send($a, "x", 0, sockaddr_un("$out/log.sock")) or report(0); recv($b, my $byte, 1, 0);
        print $byte eq "x" ? "came to the other" : "went elsewhere""#,
    ),
    attempt(
        "bytes to a path from one of a pair",
        OFF,
        "EISCONN",
        Output("EISCONN"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or report(0);
        report(send $a, "x", 0, sockaddr_un("$out/docker.sock"))"#,
    ),
    attempt(
        "a name is taken",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; report(bind $s, pack("S a*", AF_UNIX, "\0$abstract-x"))"#,
    ),
    attempt(
        "listening for connections",
        OFF,
        "EPERM",
        Output("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; bind $s, pack("S", AF_UNIX); report(listen $s, 1)"#,
    ),
    attempt(
        "pairs work",
        OFF,
        "done",
        Output("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or report(0);
        syswrite($a, "x"); report(sysread($b, my $byte, 1))"#,
    ),
];

#[test]
fn no_socket_of_the_host_is_reached_without_a_network() {
    check(SOCKETS);
}
