//! The seccomp filter: which system calls a sandboxed command may not make, as BPF instructions.
//!
//! The program finds a call by binary search, because the kernel runs the filter once per call number when it
//! is installed. Calls that are not listed are allowed. Calls newer than the newest known kernel fail with
//! ENOSYS. So do calls of other instruction sets (32-bit, x32), whose numbers mean other calls.

use libc::c_long;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;

/// The first call number that Linux 6.18 does not have.
const UNKNOWN_FIRST: u32 = 471;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// One instruction: opcode, jump offsets for true and false, operand.
type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// The offset of the low half of an argument. The kernel reads 32-bit arguments from there.
const fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Refuse,
    /// ENOSYS, so that callers fall back to an older call whose arguments a filter can inspect.
    Absent,
    /// Depends on its arguments.
    Inspect(Vec<Instruction>),
}

/// The filter's bytes for a command with or without network access.
pub(crate) fn build(network: bool) -> Vec<u8> {
    let mut rules: Vec<(u32, Verdict)> = Vec::new();
    let mut add = |calls: &[c_long], verdict: &Verdict| {
        let known = calls.iter().filter_map(|call| u32::try_from(*call).ok());
        rules.extend(known.map(|call| (call, verdict.clone())));
    };
    add(REFUSED, &Verdict::Refuse);
    add(OLD_REFUSED, &Verdict::Refuse);
    // Their arguments are in memory, which a filter cannot read.
    add(&[435, libc::SYS_openat2], &Verdict::Absent);
    add(&[libc::SYS_clone], &Verdict::Inspect(unless_bits(argument_at(0), NAMESPACES)));
    add(&[libc::SYS_ioctl], &Verdict::Inspect(unless_one_of(argument_at(1), DENIED_IOCTLS)));
    for (calls, argument) in [(MODES_1, 1), (MODES_2, 2)] {
        add(calls, &Verdict::Inspect(unless_bits(argument_at(argument), SET_ID)));
    }
    for (calls, flags) in [(OPEN_1, 1), (&[libc::SYS_openat], 2)] {
        add(calls, &Verdict::Inspect(unless_created_with_set_id(flags)));
    }
    if network {
        add(&[libc::SYS_socket], &Verdict::Inspect(only_one_of(argument_at(0), FAMILIES)));
    } else {
        add(NETWORK_REFUSED, &Verdict::Refuse);
        add(&[libc::SYS_socket, libc::SYS_socketpair], &Verdict::Inspect(only_stream_pairs()));
    }
    rules.sort_by_key(|(call, _)| *call);
    rules.dedup_by_key(|(call, _)| *call);
    assemble(&rules)
}

/// Emits each verdict once, at the end, after a search for the range that contains the call number.
fn assemble(rules: &[(u32, Verdict)]) -> Vec<u8> {
    let mut program = vec![
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (IF_EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, ENOSYS),
        (LOAD, 0, 0, NUMBER_AT),
    ];
    let mut bodies: Vec<Vec<Instruction>> = Vec::new();
    let mut body = |verdict: Option<&Verdict>| {
        let wanted = match verdict {
            None => vec![(RETURN, 0, 0, ALLOW)],
            Some(Verdict::Refuse) => vec![(RETURN, 0, 0, EPERM)],
            Some(Verdict::Absent) => vec![(RETURN, 0, 0, ENOSYS)],
            Some(Verdict::Inspect(body)) => body.clone(),
        };
        let known = bodies.iter().position(|body| *body == wanted);
        known.unwrap_or_else(|| {
            bodies.push(wanted);
            bodies.len() - 1
        })
    };
    let mut ranges: Vec<(u32, usize)> = vec![(0, body(None))];
    let last = (UNKNOWN_FIRST, Verdict::Absent);
    for (call, verdict) in rules.iter().chain([&last]) {
        ranges.extend([(*call, body(Some(verdict))), (*call + 1, body(None))]);
    }
    // The x32 numbers come last, and everything above is absent.
    ranges.pop();
    // Of two ranges that begin at the same number the later one applies.
    ranges.reverse();
    ranges.sort_by_key(|(first, _)| *first);
    ranges.dedup_by_key(|(first, _)| *first);
    ranges.dedup_by_key(|(_, body)| *body);
    search(&mut program, &ranges, &bodies);
    program
        .into_iter()
        .flat_map(|(code, yes, no, number)| {
            let [a, b] = code.to_ne_bytes();
            let [c, d, e, f] = number.to_ne_bytes();
            [a, b, yes, no, c, d, e, f]
        })
        .collect()
}

/// Emits the search, with jumps to the bodies after it.
fn search(program: &mut Vec<Instruction>, ranges: &[(u32, usize)], bodies: &[Vec<Instruction>]) {
    let steps = binary_search(ranges);
    for (index, step) in steps.iter().enumerate() {
        program.push(match step {
            Step::If(instruction) => *instruction,
            Step::To(body) => {
                let before: usize = bodies.iter().take(*body).map(Vec::len).sum();
                let over = steps.len() - index - 1 + before;
                (JUMP, 0, 0, u32::try_from(over).unwrap_or(u32::MAX))
            }
        });
    }
    program.extend(bodies.iter().flatten());
}

/// One step of the search.
enum Step {
    If(Instruction),
    /// Jump to the body of this index.
    To(usize),
}

fn binary_search(ranges: &[(u32, usize)]) -> Vec<Step> {
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let (Some((_, body)), Some((pivot, other))) = (left.first(), right.first()) else {
        return ranges.first().map(|(_, body)| Step::To(*body)).into_iter().collect();
    };
    if left.len() == 1 && right.len() == 1 {
        return vec![Step::If((IF_AT_LEAST, 1, 0, *pivot)), Step::To(*body), Step::To(*other)];
    }
    let (pivot, left, right) = (*pivot, binary_search(left), binary_search(right));
    let head = match u8::try_from(left.len()) {
        Ok(over) => vec![Step::If((IF_AT_LEAST, over, 0, pivot))],
        Err(_) => {
            let over = u32::try_from(left.len()).unwrap_or(u32::MAX);
            vec![Step::If((IF_AT_LEAST, 0, 1, pivot)), Step::If((JUMP, 0, 0, over))]
        }
    };
    head.into_iter().chain(left).chain(right).collect()
}

fn unless_bits(argument: u32, bits: u32) -> Vec<Instruction> {
    vec![(LOAD, 0, 0, argument), (IF_ANY_BIT, 0, 1, bits), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
}

fn unless_one_of(argument: u32, values: &[u32]) -> Vec<Instruction> {
    one_of(argument, values, EPERM, ALLOW)
}

fn only_one_of(argument: u32, values: &[u32]) -> Vec<Instruction> {
    one_of(argument, values, ALLOW, EPERM)
}

fn one_of(argument: u32, values: &[u32], then: u32, otherwise: u32) -> Vec<Instruction> {
    let mut body = vec![(LOAD, 0, 0, argument)];
    for value in values {
        body.extend([(IF_EQUAL, 0, 1, *value), (RETURN, 0, 0, then)]);
    }
    body.push((RETURN, 0, 0, otherwise));
    body
}

/// The mode is used only if the call creates a file.
fn unless_created_with_set_id(flags: u32) -> Vec<Instruction> {
    let makes = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();
    let mut body = vec![(LOAD, 0, 0, argument_at(flags)), (IF_ANY_BIT, 1, 0, makes), (RETURN, 0, 0, ALLOW)];
    body.extend(unless_bits(argument_at(flags + 1), SET_ID));
    body
}

/// A datagram socket, even one of a pair, can send to any socket with a path.
fn only_stream_pairs() -> Vec<Instruction> {
    let mut body = vec![
        (LOAD, 0, 0, argument_at(0)),
        (IF_EQUAL, 1, 0, libc::AF_UNIX.cast_unsigned()),
        (RETURN, 0, 0, EPERM),
        (LOAD, 0, 0, argument_at(1)),
        (AND, 0, 0, 0xf),
    ];
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        body.extend([(IF_EQUAL, 0, 1, kind.cast_unsigned()), (RETURN, 0, 0, ALLOW)]);
    }
    body.push((RETURN, 0, 0, EPERM));
    body
}

/// The CLONE_NEW* flags.
const NAMESPACES: u32 = 0x7e02_0000;

/// Set-uid and set-gid bits. Such a file would give the owner's rights to users outside of the sandbox.
const SET_ID: u32 = 0o6000;

/// TIOCSTI (fake terminal input), the console's paste and redirection, and line disciplines.
const DENIED_IOCTLS: &[u32] = &[0x5412, 0x541c, 0x541d, 0x5423];

/// Allowed socket families. The others need privilege or are not network sockets.
const FAMILIES: &[u32] =
    &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

const NETWORK_REFUSED: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

/// Calls by number have the same number on all architectures but no libc constant on some.
const REFUSED: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    428, // open_tree
    429, // move_mount
    430, // fsopen
    431, // fsconfig
    432, // fsmount
    433, // fspick
    442, // mount_setattr
    467, // open_tree_attr
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    443, // quotactl_fd
    libc::SYS_acct,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    425, // io_uring_setup
    426, // io_uring_enter
    427, // io_uring_register
    438, // pidfd_getfd
];

#[cfg(target_arch = "x86_64")]
const OLD_REFUSED: &[c_long] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_REFUSED: &[c_long] = &[];

#[cfg(target_arch = "x86_64")]
const MODES_1: &[c_long] = &[libc::SYS_chmod, libc::SYS_fchmod, libc::SYS_creat, libc::SYS_mknod];
#[cfg(not(target_arch = "x86_64"))]
const MODES_1: &[c_long] = &[libc::SYS_fchmod];

/// The last is fchmodat2.
const MODES_2: &[c_long] = &[libc::SYS_fchmodat, libc::SYS_mknodat, 452];

#[cfg(target_arch = "x86_64")]
const OPEN_1: &[c_long] = &[libc::SYS_open];
#[cfg(not(target_arch = "x86_64"))]
const OPEN_1: &[c_long] = &[];

#[cfg(test)]
mod tests;
