//! Runs a program as if the kernel were older, by a seccomp filter: `oldkernel VERSION PROGRAM [ARGUMENT…]`, where VERSION
//! is 6.8, 6.1 or 5.10; or `container` for the kernel as it is behind the filter that docker gives its containers, and
//! `container-without-landlock` for the same with a profile of before Landlock.
//!
//! Calls, flags and options that came later get the error that the older kernel answers with. Root keeps the privileges of
//! set-uid programs, so that sudo works; other users get no_new_privs, as the kernel demands.
//!
//! `cgroup.kill` (5.14) is a file. As 5.10, root's program gets an empty `/sys/fs/cgroup` in a mount namespace of its own,
//! so that the daemon has no control groups; other users mostly have none to write to. Not imitated: the release that
//! uname(2) and /proc report, the version of Landlock where there is one, and what lies in memory (flags of `clone3`).

#![forbid(unsafe_code)]

use outpost_sys::kernel::{Version, version_in};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// One instruction: what, where to on true and on false, and its number.
type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_ABOVE: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The first number without a call, by version. From 424 on all architectures share the numbers.
const FIRST_ABSENT: [(Version, u32); 3] = [((5, 10), 441), ((6, 1), 451), ((6, 8), 462)];

/// Calls of x86-64 with numbers in a gap below: uretprobe and uprobe (6.11, 6.18).
#[cfg(target_arch = "x86_64")]
const PROBES: &[libc::c_long] = &[335, 336];
#[cfg(not(target_arch = "x86_64"))]
const PROBES: &[libc::c_long] = &[];

/// When a call is one of the newer kernel. Arguments are looked at in their low 32 bits.
enum When {
    Always,
    /// Any of these bits in an argument.
    Bits(u32, u32),
    /// The argument's bits under a mask are between these two.
    Between(u32, u32, u32, u32),
}

use When::{Always, Between, Bits};

/// A version, what it has that the ones before have not, and what those answer.
type Rule = (Version, libc::c_long, When, i32);

const ALL: u32 = u32::MAX;

/// Of no kernel: what is refused whatever the version.
const NEWEST: Version = (u32::MAX, 0);

fn rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = vec![
        // CLOSE_RANGE_CLOEXEC.
        ((5, 11), libc::SYS_close_range, Bits(2, 4), libc::EINVAL),
        // Options between PR_SET_SYSCALL_USER_DISPATCH (5.11) and PR_SME_GET_VL (5.19); PR_SET_VMA.
        ((5, 19), libc::SYS_prctl, Between(0, ALL, 59, 64), libc::EINVAL),
        ((5, 17), libc::SYS_prctl, Between(0, ALL, 0x5356_4d41, 0x5356_4d41), libc::EINVAL),
        // MADV_POPULATE_READ (5.14) to MADV_COLLAPSE (6.1).
        ((6, 1), libc::SYS_madvise, Between(2, ALL, 22, 25), libc::EINVAL),
        // MFD_NOEXEC_SEAL, MFD_EXEC.
        ((6, 3), libc::SYS_memfd_create, Bits(1, 0x18), libc::EINVAL),
        // PR_SET_MDWE (6.3) to PR_RISCV_V_GET_CONTROL (6.5); PR_GET_AUXV.
        ((6, 5), libc::SYS_prctl, Between(0, ALL, 65, 70), libc::EINVAL),
        ((6, 4), libc::SYS_prctl, Between(0, ALL, 0x4155_5856, 0x4155_5856), libc::EINVAL),
        // SO_PASSPIDFD, SO_PEERPIDFD.
        ((6, 5), libc::SYS_getsockopt, Between(2, ALL, 76, 77), libc::ENOPROTOOPT),
        ((6, 5), libc::SYS_setsockopt, Between(2, ALL, 76, 77), libc::ENOPROTOOPT),
        // All flags: PIDFD_SIGNAL_THREAD and its like; PIDFD_THREAD.
        ((6, 9), libc::SYS_pidfd_send_signal, Bits(3, ALL), libc::EINVAL),
        ((6, 9), libc::SYS_pidfd_open, Bits(1, libc::O_EXCL.cast_unsigned()), libc::EINVAL),
        ((6, 9), libc::SYS_prctl, Between(0, ALL, 71, 0xfff), libc::EINVAL),
        // RWF_NOAPPEND and later.
        ((6, 9), libc::SYS_preadv2, Bits(5, !0x1f), libc::EOPNOTSUPP),
        ((6, 9), libc::SYS_pwritev2, Bits(5, !0x1f), libc::EOPNOTSUPP),
        // F_DUPFD_QUERY, F_CREATED_QUERY (6.12).
        ((6, 10), libc::SYS_fcntl, Between(1, ALL, 1027, 1028), libc::EINVAL),
        // PIDFD_GET_CGROUP_NAMESPACE (6.11) to PIDFD_GET_INFO (6.13), whatever size of its struct the number has.
        ((6, 11), libc::SYS_ioctl, Between(1, 0xffff, 0xff01, 0xff0b), libc::ENOTTY),
        // MADV_GUARD_INSTALL, MADV_GUARD_REMOVE.
        ((6, 13), libc::SYS_madvise, Between(2, ALL, 102, 103), libc::EINVAL),
        // AT_EXECVE_CHECK.
        ((6, 14), libc::SYS_execveat, Bits(4, 0x1_0000), libc::EINVAL),
    ];
    if outpost_sys::process::effective_uid() != 0 {
        // Process events need CAP_NET_ADMIN. The older kernel refuses in bind(2), by an address that lies in memory.
        let connector = libc::NETLINK_CONNECTOR.cast_unsigned();
        rules.push(((6, 6), libc::SYS_socket, Between(2, ALL, connector, connector), libc::EPERM));
    }
    rules.extend(PROBES.iter().map(|call| ((6, 11), *call, Always, libc::ENOSYS)));
    rules
}

/// What docker's default profile refuses to a container without CAP_SYS_ADMIN. `clone3` has its flags in memory, where no
/// filter reads them.
fn rules_of_a_container(has_landlock: bool) -> Vec<Rule> {
    const NAMESPACES: u32 = 0x7e02_0000;
    let refused = [
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
    ];
    let mut rules: Vec<Rule> = refused.map(|call| (NEWEST, call, Always, libc::EPERM)).into();
    rules.push((NEWEST, libc::SYS_clone, Bits(0, NAMESPACES), libc::EPERM));
    rules.push((NEWEST, libc::SYS_clone3, Always, libc::ENOSYS));
    if !has_landlock {
        rules.push((NEWEST, libc::SYS_landlock_create_ruleset, Always, libc::EPERM));
    }
    rules
}

/// The rules that apply, and the first number without a call.
fn profile(name: &str) -> Option<(Vec<Rule>, u32)> {
    match name {
        "container" => return Some((rules_of_a_container(true), ALL)),
        "container-without-landlock" => return Some((rules_of_a_container(false), ALL)),
        _ => {}
    }
    let version = version_in(name);
    let (_, first_absent) = FIRST_ABSENT.iter().find(|(known, _)| *known == version)?;
    let rules = rules().into_iter().filter(|(since, ..)| version < *since).collect();
    Some((rules, *first_absent))
}

/// The filter of a kernel whose calls end before `first_absent`.
fn filter(rules: Vec<Rule>, first_absent: u32) -> Vec<Instruction> {
    let error = |errno: i32| (RETURN, 0, 0, ERRNO | errno.cast_unsigned());
    let argument = |index: u32| (LOAD, 0, 0, 16 + 8 * index);
    let mut program = vec![
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (IF_EQUAL, 1, 0, ARCHITECTURE),
        // Numbers of other instruction sets mean other calls.
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, NUMBER_AT),
        (IF_AT_LEAST, 0, 1, first_absent),
        error(libc::ENOSYS),
    ];
    for (_, call, when, errno) in rules {
        let mut body = match when {
            Always => Vec::new(),
            Bits(at, bits) => vec![argument(at), (IF_ANY_BIT, 0, 1, bits)],
            Between(at, mask, first, last) => {
                vec![argument(at), (AND, 0, 0, mask), (IF_AT_LEAST, 0, 2, first), (IF_ABOVE, 1, 0, last)]
            }
        };
        body.push(error(errno));
        let over = u8::try_from(body.len()).unwrap_or(u8::MAX);
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        program.extend([(LOAD, 0, 0, NUMBER_AT), (IF_EQUAL, 0, over, number)]);
        program.extend(body);
    }
    program.push((RETURN, 0, 0, ALLOW));
    program
}

fn bytes(program: &[Instruction]) -> Vec<u8> {
    let each = program.iter().flat_map(|(code, yes, no, number)| {
        let ([a, b], [c, d, e, f]) = (code.to_ne_bytes(), number.to_ne_bytes());
        [a, b, *yes, *no, c, d, e, f]
    });
    each.collect()
}

/// The program as it is to be executed; as 5.10 before an empty `/sys/fs/cgroup`.
fn command(name: &str, program: &str, arguments: &[String]) -> Command {
    if version_in(name) != (5, 10) || outpost_sys::process::effective_uid() != 0 {
        let mut command = Command::new(program);
        command.args(arguments);
        return command;
    }
    let cover = "mount -t tmpfs -o ro none /sys/fs/cgroup && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", cover, "sh", program]).args(arguments);
    command
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, program, arguments @ ..] = arguments.as_slice() else {
        eprintln!("usage: oldkernel 6.8|6.1|5.10|container|container-without-landlock PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let Some((rules, first_absent)) = profile(name) else {
        eprintln!("error: oldkernel knows Linux 6.8, 6.1 and 5.10, and containers");
        return ExitCode::from(2);
    };
    let filter = bytes(&filter(rules, first_absent));
    if let Err(errno) = outpost_sys::confine::filter_own_calls(&filter) {
        eprintln!("error: cannot filter system calls: {errno}");
        return ExitCode::from(125);
    }
    let failed = command(name, program, arguments).exec();
    eprintln!("error: {program}: {failed}");
    ExitCode::from(127)
}
