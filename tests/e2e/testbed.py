#!/usr/bin/env python3
"""A whole EtcFS cluster on this machine, for tests, demo and benchmark.

A Testbed lives in one directory: etcd members on loopback with their data, an image file with its
loop device, the mount points, logs, and who runs (`pids/`). Whatever stands under that directory can
be taken down by anybody from the directory alone (`teardown`), also after its maker was killed:
mounts and loop devices are found in the kernel's tables, processes by recorded pid and start time.

A temporary bed has a janitor, a process of its own that waits for its maker's end: it takes down what
is left, and past the deadline first aborts the FUSE connections, since a process that waits for a
daemon cannot be killed before. So no test can leave a mount, a loop device or a process behind.

Commands: testbed.py sweep            take down temporary beds whose makers are gone
          testbed.py remount DIR NODE unmount and mount again one node (cold caches)
          testbed.py down DIR         take down the bed in DIR
"""

import ctypes
import http.client
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "etcfs-e2e-"
KILL_WAIT_S = 10
UMOUNT_WAIT_S = 30
MOUNT_WAIT_S = 30


class BedError(RuntimeError):
    """The bed could not be set up; the text says what failed, and shows the log's end."""


def bin_dir():
    return pathlib.Path(os.environ.get("ETCFS_BIN") or REPO / "build" / "bin")


def beds_root():
    return pathlib.Path(os.environ.get("ETCFS_TEST_DIR") or "/var/tmp")


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def tail(path, lines=40):
    try:
        text = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError as e:
        return f"({path}: {e.strerror})"
    return "\n".join(text[-lines:])


def run(argv, timeout=120, check=True, **kw):
    """Runs a command to its end; output captured as text. BedError with that output if it fails."""
    argv = [str(a) for a in argv]
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, **kw)
    if check and p.returncode != 0:
        raise BedError(f"{' '.join(argv)}: exit {p.returncode}\n{p.stdout[-3000:]}")
    return p


# ---- processes: a pid counts only together with its start time, so a reused pid is never hit ----

def start_time(pid):
    """Start time of a process in clock ticks since boot; None if there is none, or only a zombie."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def record_pid(path, pid):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{pid} {start_time(pid) or 0}\n")


def recorded_pid(path):
    """The recorded process if it still runs, else None."""
    try:
        pid, started = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None
    return pid if start_time(pid) == started else None


def wait_gone(path, seconds):
    deadline = time.monotonic() + seconds
    while recorded_pid(path) is not None:
        if time.monotonic() > deadline:
            return False
        reap()
        time.sleep(0.02)
    return True


def reap():
    """Collects the exit states of children started by any bed of this process."""
    for p in Testbed.children:
        p.poll()


def kill_recorded(path, sig=signal.SIGKILL):
    pid = recorded_pid(path)
    if pid is not None:
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass
    return pid


# ---- mounts and loop devices: the kernel's tables are the truth ---------------------------------

def mounts_under(path):
    """(mount point, minor device number, type) of what is mounted at or below path, deepest first."""
    found = []
    prefix = str(path)
    for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        fields = fields.split()
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        if point == prefix or point.startswith(prefix + "/"):
            found.append((point, int(fields[2].split(":")[1]), rest.split()[0]))
    return sorted(found, key=lambda m: -len(m[0]))


def abort_connection(minor):
    """Ends a FUSE connection: everything that waits for its daemon fails at once."""
    control = pathlib.Path("/sys/fs/fuse/connections")
    if not control.joinpath(str(minor)).exists():
        subprocess.run(["mount", "-t", "fusectl", "fusectl", str(control)],
                       stderr=subprocess.DEVNULL, check=False)
    try:
        control.joinpath(str(minor), "abort").write_text("1")
    except OSError:
        pass


def unmount(point, timeout=UMOUNT_WAIT_S):
    """Unmounts; true if it went in the ordinary way, false if it had to be forced."""
    clean = True
    for where, minor, kind in [m for m in mounts_under(point) if m[0] == str(point)]:
        try:
            p = subprocess.run(["umount", where], timeout=timeout, capture_output=True, text=True)
            if p.returncode == 0:
                continue
            say(f"umount {where}: {p.stderr.strip()}")
        except subprocess.TimeoutExpired:
            say(f"umount {where} hangs")
        clean = False
        if kind.startswith("fuse"):
            abort_connection(minor)
        subprocess.run(["umount", "-l", where], timeout=timeout, check=False, capture_output=True)
    return clean


def loops_under(path):
    found = []
    for back in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            name = back.read_text().rstrip("\n").removesuffix(" (deleted)")
        except OSError:
            continue
        if name.startswith(str(path) + "/"):
            found.append("/dev/" + back.parts[3])
    return found


def attach_loop(image):
    direct = run(["losetup", "--find", "--show", "--direct-io=on", image], check=False)
    if direct.returncode != 0:  # a filesystem without O_DIRECT
        direct = run(["losetup", "--find", "--show", image])
    return direct.stdout.split()[-1]


def teardown(directory, keep_files=False):
    """Takes down everything that stands under a bed's directory. True if nothing needed force."""
    directory = pathlib.Path(directory).resolve()
    pids = directory / "pids"
    clean = all([unmount(m[0]) for m in mounts_under(directory)])
    nodes = sorted(pids.glob("node-*")) if pids.is_dir() else []
    for path in nodes:  # a daemon ends by itself once it is unmounted
        if not wait_gone(path, KILL_WAIT_S):
            say(f"{path.name} does not end after umount, killing it")
            clean = False
    others = sorted(set(pids.iterdir()) - set(nodes)) if pids.is_dir() else []
    for path in nodes + others:  # the data of these etcds is thrown away: no need to be gentle
        kill_recorded(path)
    for path in nodes + others:
        wait_gone(path, KILL_WAIT_S)
    for where, minor, kind in mounts_under(directory):
        if kind.startswith("fuse"):
            abort_connection(minor)
        subprocess.run(["umount", "-l", where], check=False, capture_output=True)
    for loop in loops_under(directory):
        subprocess.run(["losetup", "-d", loop], check=False, capture_output=True)
    if not keep_files:
        shutil.rmtree(directory, ignore_errors=True)
    return clean


def sweep():
    """Takes down temporary beds whose makers are gone."""
    for directory in sorted(beds_root().glob(PREFIX + "*")):
        age_s = time.time() - directory.stat().st_mtime
        if recorded_pid(directory / "owner") is None and age_s > 10:  # not one being made just now
            say(f"sweeping {directory}")
            teardown(directory)


# ---- the janitor --------------------------------------------------------------------------------

def diagnose(directory):
    """What a reader of the test's output needs to understand a hang."""
    for path in sorted((directory / "pids").glob("*")):
        pid = recorded_pid(path)
        say(f"{path.name}: " + ("not running" if pid is None else f"pid {pid}"))
        if pid is None or not path.name.startswith("node-"):
            continue
        for thread in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
            try:
                say(f"  thread {thread.name} {(thread / 'comm').read_text().strip()} in "
                    f"{(thread / 'wchan').read_text().strip() or '?'}")
            except OSError:
                pass
    show_logs(directory)


def show_logs(directory):
    for log in sorted((directory / "log").glob("node-*")):
        print(f"--- end of {log.name}\n{tail(log)}", file=sys.stderr, flush=True)


def start_janitor(directory, deadline_s):
    """Returns the descriptor whose closing (also by death) tells the janitor that we are done."""
    read_end, write_end = os.pipe()
    if os.fork() != 0:
        os.close(read_end)
        return write_end
    try:
        os.close(write_end)
        os.setsid()
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        owner = directory / "owner"
        if not select.select([read_end], [], [], deadline_s)[0]:
            say(f"deadline of {deadline_s} s passed: aborting the mounts")
            diagnose(directory)
            for _, minor, kind in mounts_under(directory):
                if kind.startswith("fuse"):
                    abort_connection(minor)
            pid = recorded_pid(owner)
            if not select.select([read_end], [], [], 20)[0] and pid is not None:
                os.kill(pid, signal.SIGKILL)
        if directory.exists():
            teardown(directory)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


# ---- the bed ------------------------------------------------------------------------------------

def free_port():
    """A free port below the ephemeral range, whose ports any outgoing connection may take at any time."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def http_get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        c.request("GET", path)
        return c.getresponse().read().decode()
    finally:
        c.close()


class Testbed:
    """See the module's text. Methods block until the thing is done and raise BedError if it is not."""

    children = []  # Popen objects of this process, to be reaped

    def __init__(self, directory, fs="test", deadline_s=None):
        self.dir = pathlib.Path(directory).resolve()
        self.fs = fs
        for sub in ("pids", "log", "mnt", "nodes"):
            (self.dir / sub).mkdir(parents=True, exist_ok=True)
        record_pid(self.dir / "owner", os.getpid())
        self.janitor = start_janitor(self.dir, deadline_s) if deadline_s else None
        self.ports = []

    @classmethod
    def temporary(cls, deadline_s, fs="test"):
        if os.geteuid() != 0:
            raise BedError("tests on real mounts need root")
        sweep()
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=beds_root())
        os.chmod(directory, 0o755)  # tests of permissions enter it as other users
        return cls(directory, fs, deadline_s)

    def close(self):
        """Takes all down. True if nothing needed force."""
        clean = teardown(self.dir)
        if self.janitor is not None:
            os.close(self.janitor)
            self.janitor = None
        return clean

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def log(self, name):
        return self.dir / "log" / name

    def spawn(self, name, argv, **kw):
        """Starts a process that the bed ends; its output goes to log/NAME."""
        with open(self.log(name), "ab") as out:
            p = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, start_new_session=True, **kw)
        Testbed.children.append(p)
        record_pid(self.dir / "pids" / name, p.pid)
        return p

    # -- etcd --

    def start_etcd(self, members=1):
        self.ports = [(free_port(), free_port()) for _ in range(members)]
        (self.dir / "etcd.json").write_text(json.dumps(self.ports))
        for i in range(members):
            self.start_member(i)
        for i in range(members):
            self.wait_member(i)

    def start_member(self, i):
        client, peer = (f"http://127.0.0.1:{p}" for p in self.ports[i])
        cluster = ",".join(f"m{j}=http://127.0.0.1:{p[1]}" for j, p in enumerate(self.ports))
        return self.spawn(f"etcd-{i}", [
            "etcd", "--name", f"m{i}", "--data-dir", self.dir / f"etcd-{i}",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, "--initial-cluster-token", self.dir.name,
            "--logger", "zap", "--log-level", "warn"])

    def wait_member(self, i, seconds=30):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if "true" in http_get(self.ports[i][0], "/health"):
                    return
            except OSError:
                pass
            if recorded_pid(self.dir / "pids" / f"etcd-{i}") is None or time.monotonic() > deadline:
                raise BedError(f"etcd member {i} does not start\n{tail(self.log(f'etcd-{i}'))}")
            reap()
            time.sleep(0.05)

    def etcd_counter(self, pattern):
        """Sum over all members of the metrics whose line matches."""
        total = 0.0
        for client, _ in self.ports:
            for line in http_get(client, "/metrics").splitlines():
                if re.match(pattern, line):
                    total += float(line.rpartition(" ")[2])
        return total

    @property
    def endpoints(self):
        return ",".join(f"127.0.0.1:{p[0]}" for p in self.ports)

    # -- device and filesystem --

    def make_device(self, size="1G", name="disk.img"):
        image = self.dir / name
        with open(image, "wb") as f:
            f.truncate(parse_size(size))
        device = attach_loop(image)
        if name == "disk.img":
            self.device = device
        return device

    def ctl(self, *args, check=True, timeout=120):
        """etcfsctl VERB --etcd … --fs … ARGS"""
        return run([bin_dir() / "etcfsctl", args[0], "--etcd", self.endpoints, "--fs", self.fs,
                    *args[1:]], check=check, timeout=timeout)

    def mkfs(self, *args):
        return self.ctl("mkfs", "--device", self.device, *args)

    # -- nodes --

    def mountpoint(self, node):
        return self.dir / "mnt" / node

    def mount_argv(self, node, *args, device=None, mountpoint=None):
        return [str(a) for a in (
            bin_dir() / "etcfs", "--etcd", self.endpoints, "--fs", self.fs, "--device",
            device or self.device, "--node", f"node-{node}", mountpoint or self.mountpoint(node), *args)]

    def mount(self, node, *args):
        """Mounts a node with its daemon in the foreground of a process of ours; returns the path."""
        self.mountpoint(node).mkdir(exist_ok=True)
        argv = self.mount_argv(node, "--foreground", *args)
        (self.dir / "nodes" / node).write_text(json.dumps(argv))
        return self.remount(node)

    def remount(self, node):
        """Mounts a node again that mount() has mounted before; unmounts it first where it stands."""
        point = self.mountpoint(node)
        if mounts_under(point):
            self.umount(node)
        pid_file = self.dir / "pids" / f"node-{node}"
        if recorded_pid(pid_file) is not None:  # its record must not be lost: teardown needs it
            raise BedError(f"node {node}: its last daemon still runs")
        self.spawn(f"node-{node}", json.loads((self.dir / "nodes" / node).read_text()))
        deadline = time.monotonic() + MOUNT_WAIT_S
        while not mounts_under(point):
            reap()
            if recorded_pid(pid_file) is None:
                raise BedError(f"node {node} does not mount\n{tail(self.log(f'node-{node}'))}")
            if time.monotonic() > deadline:
                diagnose(self.dir)
                raise BedError(f"node {node} is not mounted after {MOUNT_WAIT_S} s\n"
                               f"{tail(self.log(f'node-{node}'))}")
            time.sleep(0.01)
        run(["stat", "-f", point], timeout=MOUNT_WAIT_S)
        return point

    def umount(self, node):
        """Unmounts and waits for the daemon's end: only then has it left the cluster."""
        if not unmount(self.mountpoint(node)):
            raise BedError(f"node {node}: umount had to be forced\n{tail(self.log(f'node-{node}'))}")
        if not wait_gone(self.dir / "pids" / f"node-{node}", UMOUNT_WAIT_S):
            raise BedError(f"node {node}: daemon still runs after umount\n"
                           f"{tail(self.log(f'node-{node}'))}")

    def pid(self, node):
        return recorded_pid(self.dir / "pids" / f"node-{node}")

    def kill(self, node):
        """kill -9 of the daemon; its dead mount is taken away."""
        path = self.dir / "pids" / f"node-{node}"
        if kill_recorded(path) is None:
            raise BedError(f"node {node} does not run")
        self.kill_dead_mount(node)

    def kill_dead_mount(self, node):
        """Takes away the mount of a daemon that has been killed."""
        wait_gone(self.dir / "pids" / f"node-{node}", KILL_WAIT_S)
        if mounts_under(self.mountpoint(node)):
            run(["umount", "-l", self.mountpoint(node)])

    def error_lines(self):
        """ERROR lines and failed assertions in the logs of all nodes."""
        found = []
        for log in sorted((self.dir / "log").glob("node-*")):
            for line in log.read_text(errors="replace").splitlines():
                if re.match(r"\S+ E ", line) or "ssertion" in line or "AddressSanitizer" in line \
                        or "runtime error:" in line:
                    found.append(f"{log.name}: {line}")
        return found


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def load(directory, fs):
    """An existing bed, for a process that did not make it (no janitor, ownership untouched)."""
    bed = Testbed.__new__(Testbed)
    bed.dir, bed.fs, bed.janitor = pathlib.Path(directory).resolve(), fs, None
    bed.ports = json.loads((bed.dir / "etcd.json").read_text())
    return bed


# ---- what the tests share -----------------------------------------------------------------------

# With ETCFS_E2E_REFERENCE=1 the nodes of a Case are bind mounts of one ext4: what the tests expect is
# then checked against a filesystem that is known to be right.
REFERENCE = bool(os.environ.get("ETCFS_E2E_REFERENCE"))
not_on_ext4 = unittest.skipIf(REFERENCE, "ext4 has other limits")
etcfs_only = unittest.skipIf(REFERENCE, "needs a daemon of ours")


class Case(unittest.TestCase):
    """Tests on a bed with these nodes mounted as `self.a`, `self.b`, …

    Classes that ask for the same bed share it. After the last test every bed is unmounted, its logs
    must have no ERROR line, and `etcfsctl check` must find nothing.
    """

    nodes = ("a",)
    device_size = "1G"
    etcd_members = 1
    mkfs_args = ()
    mount_args = ()
    allowed_errors = None  # regular expression of ERROR lines that the test provokes
    maxDiff = 2000

    beds = {}      # of this process: what was asked for -> Testbed
    broken = None  # why no bed can be made

    @classmethod
    def setUpClass(cls):
        if Case.broken:
            raise BedError(Case.broken)
        key = (cls.nodes, cls.device_size, cls.etcd_members, cls.mkfs_args, cls.mount_args)
        if key not in Case.beds:
            bed = Case.beds[key] = Testbed.temporary(Case.deadline_s)
            bed.allowed_errors = []
            try:
                (cls.set_up_reference if REFERENCE else cls.set_up_nodes)(bed)
            except BaseException as e:
                Case.broken = f"no bed, as before: {str(e).splitlines()[0]}"
                raise
        cls.bed = Case.beds[key]
        cls.bed.allowed_errors += [cls.allowed_errors] if cls.allowed_errors else []
        for node in cls.nodes:
            setattr(cls, node, cls.bed.mountpoint(node))

    @classmethod
    def set_up_nodes(cls, bed):
        bed.start_etcd(cls.etcd_members)
        bed.make_device(cls.device_size)
        bed.mkfs(*cls.mkfs_args)
        for node in cls.nodes:
            bed.mount(node, *cls.mount_args)

    @classmethod
    def set_up_reference(cls, bed):
        first = None
        for node in cls.nodes:
            point = bed.mountpoint(node)
            point.mkdir()
            if first is None:
                device = bed.make_device(cls.device_size)
                run(["mkfs.ext4", "-q", "-m", "0", device])
                run(["mount", device, point])
                run(["rmdir", point / "lost+found"])
                first = point
            else:
                run(["mount", "--bind", first, point])


def finish(bed):
    """The last look at a bed that tests have used; says what is wrong."""
    wrong = []
    try:
        for pid in sorted((bed.dir / "pids").glob("node-*")):
            node = pid.name.removeprefix("node-")
            if mounts_under(bed.mountpoint(node)):
                bed.umount(node)
        errors = [e for e in bed.error_lines()
                  if not any(re.search(allowed, e) for allowed in bed.allowed_errors)]
        if errors:
            wrong.append("ERROR lines in the logs:\n" + "\n".join(errors[:20]))
        if bed.ports:
            bed.ctl("check")
    except (BedError, subprocess.SubprocessError) as e:
        wrong.append(str(e))
    return wrong


class Result(unittest.TextTestResult):
    """Shows what failed at once: a later test may hang until the deadline."""

    def addError(self, test, err):
        super().addError(test, err)
        self.stream.writeln(self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.stream.writeln(self.failures[-1][1])

    def printErrors(self):
        pass


def main(deadline_s=120):
    """Runs the tests of the calling module. Past the deadline everything is taken down by force."""
    Case.deadline_s = int(os.environ.get("ETCFS_E2E_DEADLINE") or deadline_s)
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Result)
    result = unittest.main(module="__main__", testRunner=runner, exit=False).result
    wrong = [] if Case.broken else [w for bed in Case.beds.values() for w in finish(bed)]
    for w in wrong:
        print(f"at the end: {w}", file=sys.stderr)
    if wrong or not result.wasSuccessful():
        for bed in Case.beds.values():
            show_logs(bed.dir)
    for bed in Case.beds.values():
        bed.close()
    sys.exit(1 if wrong or not result.wasSuccessful() else 0)


# ---- system calls that Python lacks -------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4


def renameat2(old, new, flags):
    if libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), os.fspath(new))


def link_open_file(fd, new):
    """Gives an open file a name (os.link cannot follow the link in /proc)."""
    old = f"/proc/self/fd/{fd}".encode()
    if libc.linkat(AT_FDCWD, old, AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW) != 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), os.fspath(new))


def cli(argv):
    if argv == ["sweep"]:
        sweep()
    elif len(argv) == 3 and argv[0] == "remount":
        load(argv[1], "").remount(argv[2])
    elif len(argv) == 2 and argv[0] == "down":
        return 0 if teardown(argv[1]) else 1
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(cli(sys.argv[1:]))
