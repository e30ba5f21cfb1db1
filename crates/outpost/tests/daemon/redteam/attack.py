"""One attempt of an attacker. Prints OPEN if the attempt shows its success itself, else the error that stopped it."""
import contextlib, ctypes, json, os, signal, socket, sqlite3, subprocess, sys

site = json.loads(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
ALLOW = '[[rule]]\nname = "mine"\ndecision = "allow"\ncommand = ["/usr/bin/true"]\nprivileged = false\n'


@contextlib.contextmanager
def attempted():
    """Runs one of several variants. After a failure the next one is tried."""
    try:
        yield
    except OSError as error:
        print('held:', error)


def submit(*requests):
    """Sends each request over a connection of its own."""
    for request in requests:
        client = socket.socket(socket.AF_UNIX)
        client.connect(site['approvals'])
        client.sendall(json.dumps(request).encode() + b'\n')
        print(client.makefile().readline())


def restart():
    """Kills the worker, so that the next one reads the stored state."""
    os.kill(site['worker'], signal.SIGKILL)
    print('KILLED')


def write(path, text, mode='w'):
    with open(path, mode) as file:
        file.write(text)


def database(sql, values):
    with sqlite3.connect(site['state'] + '/approvals/approvals.db') as connection:
        print(connection.execute(sql, values).rowcount, 'rows')
    restart()


def edit_outcome():
    outcome = {'outcome': 'decided', 'allow': True, 'by': 'human', 'proof': site['proof']}
    database('update questions set outcome = ? where id = ?', (json.dumps(outcome), site['question']))


def insert_grant():
    boot = open('/proc/sys/kernel/random/boot_id').read().strip()
    row = (site['grant'], site['digest'], 'true', 'human', 9, boot, site['uid'], json.dumps(site['proof']))
    database('insert into signed_grants values (?, ?, ?, ?, ?, ?, null, ?, 0, ?)', row)


def allow_rule():
    for path in site['rules']:
        with attempted():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write(path, ALLOW, 'a')


def other_rules():
    os.makedirs(os.path.dirname(site['config']), exist_ok=True)
    mine = site['project'] + '/mine.toml'
    write(mine, ALLOW)
    write(site['config'], '[approvals]\nrules = "%s"\n' % mine)
    print(subprocess.run(site['reload'], capture_output=True))


def remove_approvers():
    os.rename(site['approvers'], site['approvers'] + '.old')
    restart()


def plant_approvers():
    enrollment = dict(site['requests']['enrollment'][0])
    del enrollment['do']
    write(site['state'] + '/approvals/approvers.jsonl', json.dumps(enrollment) + '\n')
    restart()


def mount_rules():
    mine = site['project'] + '/mounted.toml'
    write(mine, ALLOW)
    for path in site['rules']:
        with attempted():
            if libc.mount(mine.encode(), path.encode(), None, 4096, None):
                raise OSError(ctypes.get_errno(), 'mount')


def replace_sockets():
    for name in ['broker', 'approvals']:
        path = site[name]
        os.rename(path, path + '.old')
        socket.socket(socket.AF_UNIX).bind(path)
        print('OPEN')


def signals():
    for pid in [site['worker'], site['keeper']]:
        os.kill(pid, 0)  # SIGCONT would not count: every process of the session may send it
        print('OPEN')


def memory():
    pid = site['worker']
    start = int(open('/proc/%d/maps' % pid).readline().split('-')[0], 16)
    byte = ctypes.create_string_buffer(1)
    class Vector(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
    here, there = Vector(ctypes.addressof(byte), 1), Vector(start, 1)
    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 1:
        print('OPEN')


def trace():
    if libc.ptrace(0x4206, site['worker'], None, None) == 0:
        print('OPEN')


def records():
    if os.listdir(site['state'] + '/approvals'):
        print('OPEN')


def tokens():
    for path in site['tokens']:
        with attempted():
            if open(path).read():
                print('OPEN', path)


def session():
    for port in site['ports']:
        body = '{"method":"session.create","params":{"path":"/"}}'
        client = socket.create_connection(('127.0.0.1', port))
        head = 'POST /rpc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n'
        client.sendall((head + 'content-length: %d\r\n\r\n%s' % (len(body), body)).encode())
        answer = client.makefile().readline()
        print(answer, 'OPEN' if '401' not in answer else '')


def sockets():
    for path in site['sockets']:
        with attempted():
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            client.sendall(b'{"id":1,"method":"status"}\n')
            if client.recv(4096):
                print('OPEN', path)


def settings():
    for path in site['settings']:
        with attempted():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write(path, '{"hooks": {}}')
            print('OPEN', path)


def questions():
    client = socket.socket(socket.AF_UNIX)
    client.connect(site['approvals'])
    client.sendall(b'{"do":"list"}\n')
    print('OPEN' if site['question'] in client.makefile().readline() else 'none')


def requests():
    submit(*site['requests'][sys.argv[1]])


try:
    with attempted():
        globals().get(sys.argv[1], requests)()
except (sqlite3.Error, subprocess.SubprocessError) as error:
    print('held:', error)
