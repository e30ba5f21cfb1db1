//! Interprets the filter as the kernel would.

use super::*;

/// The filter's verdict on a call with these arguments.
fn verdict(network: bool, architecture: u32, call: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(call.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend([0; 8]);
    arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
    let program = build(network);
    let (mut at, mut value) = (0usize, 0u32);
    loop {
        let [a, b, yes, no, c, d, e, f] = *program[at * 8..].first_chunk::<8>().unwrap();
        let (code, number) = (u16::from_ne_bytes([a, b]), u32::from_ne_bytes([c, d, e, f]));
        at += 1;
        let mut jump = |taken: bool| at += usize::from(if taken { yes } else { no });
        match code {
            LOAD => value = u32::from_ne_bytes(*data[number as usize..].first_chunk().unwrap()),
            AND => value &= number,
            JUMP => at += number as usize,
            IF_EQUAL => jump(value == number),
            IF_AT_LEAST => jump(value >= number),
            IF_ANY_BIT => jump(value & number != 0),
            RETURN => return number,
            other => panic!("{other:#x}"),
        }
    }
}

fn verdict_of(network: bool, call: c_long, arguments: [u64; 6]) -> u32 {
    verdict(network, ARCHITECTURE, call as u32, arguments)
}

const NONE: [u64; 6] = [0; 6];

/// Calls that no command may make, with or without network access. Written out: a test over the filter's own
/// lists would not notice a missing call.
const NEVER: &[(c_long, &str)] = &[
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_chroot, "chroot"),
    (428, "open_tree"),
    (429, "move_mount"),
    (430, "fsopen"),
    (431, "fsconfig"),
    (432, "fsmount"),
    (433, "fspick"),
    (442, "mount_setattr"),
    (467, "open_tree_attr"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_swapoff, "swapoff"),
    (libc::SYS_quotactl, "quotactl"),
    (443, "quotactl_fd"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_init_module, "init_module"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setdomainname, "setdomainname"),
    (libc::SYS_vhangup, "vhangup"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_fanotify_init, "fanotify_init"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (427, "io_uring_register"),
    (438, "pidfd_getfd"),
];

#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[(c_long, &str)] = &[
    (320, "kexec_file_load"),
    (172, "iopl"),
    (173, "ioperm"),
    (134, "uselib"),
    (136, "ustat"),
    (139, "sysfs"),
    (154, "modify_ldt"),
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[(c_long, &str)] = &[];

/// Calls that only a command with network access may make.
const NEVER_WITHOUT_NETWORK: &[(c_long, &str)] = &[
    (libc::SYS_connect, "connect"),
    (libc::SYS_bind, "bind"),
    (libc::SYS_listen, "listen"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_readv, "process_vm_readv"),
    (libc::SYS_process_vm_writev, "process_vm_writev"),
];

#[test]
fn every_number_gets_the_verdict_of_its_rule() {
    let refused: Vec<_> = NEVER.iter().chain(NEVER_HERE).collect();
    for (call, name) in &refused {
        assert_eq!(verdict_of(false, *call, NONE), EPERM, "{name}");
        assert_eq!(verdict_of(true, *call, NONE), EPERM, "{name}");
    }
    for (call, name) in NEVER_WITHOUT_NETWORK {
        assert_eq!(verdict_of(false, *call, NONE), EPERM, "{name}");
        assert_eq!(verdict_of(true, *call, NONE), ALLOW, "{name}");
    }
    for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_prctl, libc::SYS_setsid, 434, 449, 470] {
        assert_eq!(verdict_of(false, call, NONE), ALLOW, "{call}");
    }
    for call in [435, libc::SYS_openat2, 471, 500, 0x4000_0000, 0x4000_0000 | libc::SYS_mount, 0xffff_ffff] {
        assert_eq!(verdict_of(false, call, NONE), ENOSYS, "{call}");
    }
    let is_refused = |call: &c_long| refused.iter().any(|(refused, _)| refused == call);
    let with_rules = |call: &c_long| is_refused(call) || [435, libc::SYS_openat2].contains(call);
    let allowed =
        (0..471).filter(|call| !with_rules(call)).filter(|call| verdict_of(true, *call, NONE) == ALLOW);
    assert_eq!(allowed.count(), 471 - refused.len() - 2 - 1, "all but socket of no family");
}

#[test]
fn another_instruction_set_has_no_calls() {
    assert_eq!(verdict(true, 0x4000_0003, 4, NONE), ENOSYS);
}

#[test]
fn only_the_low_half_of_an_ioctl_counts() {
    for request in [0x5412, 0x1_0000_5412, 0xffff_ffff_0000_5412] {
        assert_eq!(verdict_of(true, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), EPERM);
    }
    assert_eq!(verdict_of(true, libc::SYS_ioctl, [0, 0x5401, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn without_network_only_stream_pairs_are_allowed() {
    for (family, kind, expected) in [
        (1, 1, ALLOW),
        (1, 5 | 0o2_000_000, ALLOW),
        (1, 2, EPERM),
        (1, 3, EPERM),
        (2, 1, EPERM),
        (16, 3, EPERM),
    ] {
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            assert_eq!(verdict_of(false, call, [family, kind, 0, 0, 0, 0]), expected, "{family} {kind}");
        }
    }
    assert_eq!(verdict_of(true, libc::SYS_socket, [2, 1, 0, 0, 0, 0]), ALLOW);
    assert_eq!(verdict_of(true, libc::SYS_socket, [40, 1, 0, 0, 0, 0]), EPERM);
    assert_eq!(verdict_of(false, libc::SYS_connect, NONE), EPERM);
    assert_eq!(verdict_of(true, libc::SYS_connect, NONE), ALLOW);
}

#[test]
fn set_id_bits_are_refused() {
    assert_eq!(verdict_of(true, libc::SYS_fchmod, [0, 0o4755, 0, 0, 0, 0]), EPERM);
    assert_eq!(verdict_of(true, libc::SYS_fchmod, [0, 0o755, 0, 0, 0, 0]), ALLOW);
    let create = libc::O_CREAT as u64;
    assert_eq!(verdict_of(true, libc::SYS_openat, [0, 0, create, 0o4755, 0, 0]), EPERM);
    assert_eq!(
        verdict_of(true, libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0]),
        ALLOW,
        "the mode is ignored there"
    );
    assert_eq!(verdict_of(true, libc::SYS_openat, [0, 0, libc::O_TMPFILE as u64, 0o2755, 0, 0]), EPERM);
}

/// TIOCSTI, the console's paste and redirection, and line disciplines.
#[test]
fn denied_ioctls_are_refused() {
    for (request, name) in
        [(0x5412, "TIOCSTI"), (0x541c, "TIOCLINUX"), (0x541d, "TIOCCONS"), (0x5423, "TIOCSETD")]
    {
        for network in [false, true] {
            assert_eq!(verdict_of(network, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), EPERM, "{name}");
        }
    }
}

#[test]
fn clone_creates_no_namespaces() {
    for (flag, name) in [
        (0x0002_0000, "NEWNS"),
        (0x0200_0000, "NEWCGROUP"),
        (0x0400_0000, "NEWUTS"),
        (0x0800_0000, "NEWIPC"),
        (0x1000_0000, "NEWUSER"),
        (0x2000_0000, "NEWPID"),
        (0x4000_0000, "NEWNET"),
    ] {
        assert_eq!(verdict_of(true, libc::SYS_clone, [flag | 0x11, 0, 0, 0, 0, 0]), EPERM, "{name}");
    }
    assert_eq!(verdict_of(true, libc::SYS_clone, [0x0101_0f11, 0, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn the_filter_stays_short() {
    assert!(build(false).len() / 8 <= 280, "{} instructions", build(false).len() / 8);
}
