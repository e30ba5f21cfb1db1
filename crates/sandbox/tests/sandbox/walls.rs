//! What no sandboxed command can reach, whatever its policy: privileges, kernel interfaces, network, other processes.

use crate::kit::{Fixture, host, root, run_plan};
use outpost_sandbox::{Access, Policy, PolicyEntry, plan};
use outpost_sys::pidfd::ExitCause;

/// A Python script that must print nothing but `no` lines: each statement of `attempts` has to raise.
fn all_refused(fixture: &Fixture, attempts: &[&str]) {
    let mut script =
        String::from("import ctypes,os,socket,sys,fcntl,signal\nlibc=ctypes.CDLL(None,use_errno=True)\n");
    script.push_str(
        "def call(*a):\n r=libc.syscall(*a)\n if r<0: raise OSError(ctypes.get_errno(),'')\n return r\n",
    );
    for attempt in attempts {
        let quoted = format!("{attempt:?}");
        script.push_str(&format!("try:\n {attempt}\n print('YES', {quoted})\nexcept Exception as e: pass\n"));
    }
    script.push_str("print('done')\n");
    for policy in [fixture.read_only(), fixture.workspace_write()] {
        let done = fixture.run(&policy, &["/usr/bin/env", "python3", "-c", &script]);
        assert_eq!((done.cause, done.out.as_str()), (ExitCause::Code(0), "done\n"));
    }
}

#[test]
fn no_privilege_is_left() {
    let fixture = Fixture::new();
    let done = fixture.sh(&fixture.read_only(), "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
    for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(done.out.contains(&format!("{line}:\t0000000000000000")), "{}", done.out);
    }
    assert!(done.out.contains("NoNewPrivs:\t1") && done.out.contains("Seccomp:\t2"), "{}", done.out);
}

/// Init has dropped its privileges before the command executes.
#[test]
fn init_has_no_more_privileges_than_the_command() {
    let fixture = Fixture::new();
    let script = "while read -r name value; do case $name in Cap*|NoNewPrivs:) echo $name$value;; esac; done";
    for _ in 0..20 {
        let done = fixture.sh(&fixture.read_only(), &format!("{script} < /proc/1/status"));
        for line in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(done.out.contains(&format!("{line}:0000000000000000")), "{}", done.out);
        }
        assert!(done.out.contains("NoNewPrivs:1"), "{}", done.out);
    }
}

#[test]
fn kernel_interfaces_are_closed() {
    let attempts = [
        "call(165,b'none',b'/tmp',b'tmpfs',0,0)",
        "call(272,0x10000000)",
        "call(272,0x20000)",
        "call(308,os.open('/proc/self/ns/net',0),0)",
        "call(56,0x10000000|17,0,0,0,0)",
        "call(435,0,0)",
        "call(161,b'/tmp')",
        "call(428,-100,b'/',1)",
        "call(425,1,0)",
        "call(323,0)",
        "call(321,0,0,0)",
        "call(298,0,0,-1,-1,0)",
        "call(250,0,-3,1)",
        "call(248,b'user',b'a',b'b',1,-3)",
        "call(304,-100,0,0)",
        "call(300,0,0)",
        "call(101,16,1,0,0)",
        "call(438,os.pidfd_open(1),0,0)",
        "fcntl.ioctl(0,0x5412,b'x')",
        "libc.ioctl(0,ctypes.c_ulong(0x100005412),b'x') and 1/0",
        "open('/proc/sys/kernel/core_pattern','w')",
        "open('/proc/sys/vm/drop_caches','w')",
        "open('/proc/sysrq-trigger','w')",
        "open('/sys/kernel/uevent_helper','w')",
        "open('/proc/1/mem','rb')",
        "os.listdir('/proc/1/root')",
        "[os.readlink('/proc/1/fd/'+n) for n in os.listdir('/proc/1/fd')]",
        "os.readlink('/proc/1/exe')",
        "os.mknod('/dev/shm/x',0o60660,os.makedev(254,0))",
        "os.chroot('/tmp')",
        "os.setuid(12345)",
        "open('/dev/vda','rb')",
        "open('/dev/new','w')",
        "os.chmod('/dev/shm',0o4777)",
        "os.open('/dev/shm/suid',os.O_CREAT|os.O_WRONLY,0o4755)",
    ];
    all_refused(&Fixture::new(), &attempts);
}

#[test]
fn without_network_every_kind_is_refused() {
    let attempts = [
        "socket.socket(socket.AF_INET)",
        "socket.socket(socket.AF_INET6,socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_NETLINK,socket.SOCK_RAW)",
        "socket.socket(17,socket.SOCK_RAW)",
        "socket.socket(40,socket.SOCK_STREAM)",
        "socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)",
        "socket.socketpair(socket.AF_UNIX,socket.SOCK_DGRAM)",
        "socket.socketpair(socket.AF_UNIX,3)",
        "socket.socket(socket.AF_UNIX).connect('/run/x')",
        "socket.socket(socket.AF_UNIX).connect('\\0x')",
        "socket.socket(socket.AF_UNIX).bind('\\0x')",
    ];
    all_refused(&Fixture::new(), &attempts);
}

#[test]
fn pairs_of_sockets_still_work() {
    let fixture = Fixture::new();
    let script = "import socket; a,b=socket.socketpair(); a.send(b'x'); print(b.recv(1))";
    assert_eq!(fixture.run(&fixture.read_only(), &["/usr/bin/env", "python3", "-c", script]).out, "b'x'\n");
}

#[test]
fn with_network_the_hosts_is_visible() {
    let mut fixture = Fixture::new();
    fixture.network = true;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("import socket; socket.create_connection(('127.0.0.1',{port})); print('in')");
    let done = fixture.run(&fixture.workspace_write(), &["/usr/bin/env", "python3", "-c", &script]);
    assert_eq!(done.out, "in\n");
}

#[test]
fn a_fork_bomb_ends_at_the_limit() {
    let fixture = Fixture::new();
    assert!(host().pid_limit || !root(), "{:?}", host());
    let mut plan = plan(&fixture.read_only(), &fixture.context()).unwrap();
    plan.processes_max = 400;
    let script = "import os,signal\nn=0\ntry:\n while n<1000:\n  p=os.fork()\n  if p==0:\n   signal.pause()\n  n+=1\nexcept BlockingIOError: os.write(1, b'limit %r\\n' % (n<400))\nos._exit(0)";
    let done = run_plan(host(), &plan, &fixture.ws(), &["/usr/bin/env", "python3", "-c", script]).unwrap();
    assert_eq!(done.out, "limit True\n");
}

#[test]
fn nothing_is_seen_of_other_processes() {
    let fixture = Fixture::new();
    let done = fixture.sh(&fixture.read_only(), "echo /proc/[0-9]*; kill -9 1; echo alive; ls /proc/self/fd");
    assert!(done.out.starts_with("/proc/1 /proc/2"), "{}", done.out);
    assert!(done.out.contains("alive\n0\n1\n2\n"), "{}", done.out);
    assert!(!done.out.contains("/proc/8"), "{}", done.out);
}

#[test]
fn processes_left_by_a_command_are_killed() {
    let fixture = Fixture::new();
    let (read, write) = crate::kit::pipe();
    drop((read, write));
    // The read in `run` waits for EOF, so for the last process that holds the output pipe.
    let done = fixture.sh(&fixture.read_only(), "setsid sleep 1000 & setsid sleep 1000 & echo left");
    assert_eq!((done.cause, done.out.as_str()), (ExitCause::Code(0), "left\n"));
}

#[test]
fn orphans_are_reaped() {
    let fixture = Fixture::new();
    let script = "(true & ) ; (true & ); i=0; while grep -lq '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do i=$((i+1)); [ $i -lt 1000 ] || exit 1; done";
    assert!(fixture.sh(&fixture.read_only(), script).ok());
}

#[test]
fn devices_are_few_and_work() {
    let fixture = Fixture::new();
    let done = fixture.sh(&fixture.read_only(), "ls /dev | tr '\\n' ' '; echo x >/dev/null && head -c4 /dev/urandom | wc -c; echo y > /dev/stderr; echo z | cat /dev/fd/0; touch /dev/shm/f && echo shm");
    assert_eq!(
        done.out,
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero 4\ny\nz\nshm\n"
    );
}

#[test]
fn shared_memory_is_bounded() {
    let fixture = Fixture::new();
    let done = fixture
        .sh(&fixture.read_only(), "head -c 300000000 /dev/zero > /dev/shm/big 2>/dev/null || echo full");
    assert_eq!(done.out, "full\n");
}

/// The devices of all tmpfs in a text of `/proc/self/mountinfo`, with their options.
fn memory_file_systems(mounts: &str) -> Vec<(String, String)> {
    let of_line = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let (device, mut fields) = (mount.split(' ').nth(2)?, system.split(' '));
        (fields.next()? == "tmpfs").then(|| (device.to_owned(), fields.nth(1).unwrap_or_default().to_owned()))
    };
    mounts.lines().filter_map(of_line).collect()
}

/// Without a size a tmpfs may take half of the host's memory.
#[test]
fn tmpfs_is_bounded() {
    let fixture = Fixture::new();
    fixture.write("ws/secret/key", "x");
    fixture.write("closed/key", "x");
    let of_host = memory_file_systems(&std::fs::read_to_string("/proc/self/mountinfo").unwrap());
    let some = [fixture.ws(), "/usr".into(), "/bin".into(), "/lib".into(), "/lib64".into()].into_iter();
    let some = some.filter(|path| path.exists()).map(|path| PolicyEntry::path(path, Access::Read)).collect();
    let policies = [
        fixture.read_only(),
        fixture.workspace_write(),
        fixture.profile(&[("ws/secret", Access::None), ("closed", Access::None)]),
        Policy::restricted(some, false),
    ];
    for policy in policies {
        let done = fixture.sh(&policy, "cat /proc/self/mountinfo");
        assert!(done.ok(), "{}", done.out);
        let own = memory_file_systems(&done.out).into_iter().filter(|found| {
            // The host limits its own mounts.
            !of_host.iter().any(|(device, _)| *device == found.0)
        });
        let own: Vec<(String, String)> = own.collect();
        assert!(own.len() >= 2, "at least /dev and /dev/shm: {}", done.out);
        for (_, options) in own {
            let has = |name: &str| options.split(',').any(|option| option.starts_with(name));
            assert!(has("size=") && has("nr_inodes="), "{options}");
        }
    }
}
