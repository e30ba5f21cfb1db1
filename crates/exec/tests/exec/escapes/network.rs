//! Reaching anybody without a network: by any protocol, by names and paths of sockets, by pairs.

use super::Control::{Root, Says};
use super::Limits::{Denying, Everything, Minimal, Networked, ReadOnly, Workspace};
use super::{Attempt, Limits, attempt, check};

const OFF: &[Limits] = &[ReadOnly, Workspace, Denying, Minimal, Everything];

const PROTOCOLS: &[Attempt] = &[
    attempt(
        "TCP",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_STREAM, 0) or told(0);
        told(connect $s, sockaddr_in($tcp, inet_aton("127.0.0.1")))"#,
    ),
    attempt(
        "TCP over IPv6",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket qw(:DEFAULT pack_sockaddr_in6 inet_pton AF_INET6);
        socket(my $s, AF_INET6, SOCK_STREAM, 0) or told(0); told(1) if !$tcp6;
        told(connect $s, pack_sockaddr_in6($tcp6, inet_pton(AF_INET6, "::1")))"#,
    ),
    attempt(
        "UDP, as a question for a name",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0) or told(0);
        my $question = pack("n6", 1, 256, 1, 0, 0, 0) . "\7example\3com\0" . pack("n2", 1, 1);
        told(send $s, $question, 0, sockaddr_in($udp, inet_aton("127.0.0.1")))"#,
    ),
    attempt(
        "a raw socket",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_RAW, 1); told(fileno $s)"#,
    ),
    attempt(
        "packets of the device",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("done"),
        r#"
        told(sys(41, 17, 3, 0x300))"#,
    ),
    attempt("netlink", OFF, "EPERM", Says("done"), r#"told(sys(41, 16, 3, 0))"#),
    attempt(
        "another machine's socket",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Says("yes"),
        r#"
        my $made = sys(41, 40, 1, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : told(0)"#,
    ),
    attempt(
        "the kernel's ciphers",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Says("yes"),
        r#"
        my $made = sys(41, 38, 5, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : told(0)"#,
    ),
    attempt(
        "express packets",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("yes"),
        r#"
        my $made = sys(41, 44, 3, 0); $made || $!{EAFNOSUPPORT} ? print "yes" : told(0)"#,
    ),
    attempt(
        "keys of the network",
        &[ReadOnly, Workspace, Networked],
        "EPERM",
        Root("yes"),
        r#"
        my $made = sys(41, 15, 3, 2); $made || $!{EAFNOSUPPORT} ? print "yes" : told(0)"#,
    ),
    attempt(
        "a family with bits that the kernel does not read",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        told(sys(41, 0x100000002, 1, 0))"#,
    ),
    attempt(
        "a device of the network is asked after",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0) or told(0); my $which = "lo" . "\0" x 62;
        told(ioctl $s, 0x8913, $which)"#,
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
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
        told(connect $s, sockaddr_un("$out/docker.sock"))"#,
    ),
    attempt(
        "a socket of the host with a path, by a link",
        &[Workspace],
        "EPERM",
        Says("done"),
        r#"
        use Socket; symlink("$out/docker.sock", "$ws/s") or die; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
        chdir $ws; told(connect $s, sockaddr_un("s"))"#,
    ),
    attempt(
        "a socket of the host with an abstract name",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
        told(connect $s, pack("S a*", AF_UNIX, "\0$abstract"))"#,
    ),
    attempt(
        "a datagram to a path",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_DGRAM, 0) or told(0);
        told(send $s, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a datagram to a path from one of a pair",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_DGRAM, 0) or told(0);
        told(send $a, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a raw socket, which is one for datagrams",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_RAW, 0) or told(0);
        told(send $a, "x", 0, sockaddr_un("$out/log.sock"))"#,
    ),
    attempt(
        "a datagram with other flags in its kind",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        told(sys(41, 1, 2 | 02000000 | 04000, 0))"#,
    ),
    attempt(
        "a packet to a path from one of a pair",
        OFF,
        "came to the other",
        Says("came to the other"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_SEQPACKET, 0) or told(0);
        send($a, "x", 0, sockaddr_un("$out/log.sock")) or told(0); recv($b, my $byte, 1, 0);
        print $byte eq "x" ? "came to the other" : "went elsewhere""#,
    ),
    attempt(
        "bytes to a path from one of a pair",
        OFF,
        "EISCONN",
        Says("EISCONN"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or told(0);
        told(send $a, "x", 0, sockaddr_un("$out/docker.sock"))"#,
    ),
    attempt(
        "a name is taken",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; told(bind $s, pack("S a*", AF_UNIX, "\0$abstract-x"))"#,
    ),
    attempt(
        "somebody is waited for",
        OFF,
        "EPERM",
        Says("done"),
        r#"
        use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; bind $s, pack("S", AF_UNIX); told(listen $s, 1)"#,
    ),
    attempt(
        "pairs work",
        OFF,
        "done",
        Says("done"),
        r#"
        use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or told(0);
        syswrite($a, "x"); told(sysread($b, my $byte, 1))"#,
    ),
];

#[test]
fn no_socket_of_the_host_is_reached_without_a_network() {
    check(SOCKETS);
}
