#!/usr/bin/env python3
"""What the FUSE session and the daemon's mounting promise, seen from a real kernel."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time
import traceback

import testbed

libc = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
RENAME_WHITEOUT = 4
AT_FDCWD = -100
ROOT_INO = 1 << 24


def as_nobody(action):
    """Runs the action in a child without privileges."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "the unprivileged child failed"


def close_dead(fd):
    with contextlib.suppress(OSError):  # the kernel asks a daemon that is gone
        os.close(fd)


def mount_line(point):
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[4] == str(point):
            return line
    return None


class Waiter:
    """A process that waits for a lock that we hold."""

    def __init__(self, path, code):
        self.process = subprocess.Popen([sys.executable, "-c", code, str(path)],
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "waiting\n"
        wchan = pathlib.Path(f"/proc/{self.process.pid}/wchan")
        deadline = time.monotonic() + 10
        while "fuse" not in wchan.read_text() and "request_wait" not in wchan.read_text():
            assert time.monotonic() < deadline, wchan.read_text()
            time.sleep(0.02)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=20)
        self.process.stdout.close()


WAIT_FCNTL = """
import fcntl, os, signal, sys
def handler(*_):
    raise InterruptedError
signal.signal(signal.SIGUSR1, handler)
fd = os.open(sys.argv[1], os.O_RDWR)
print("waiting", flush=True)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX)
    print("locked", flush=True)
except InterruptedError:
    print("interrupted", flush=True)
"""


class Layer(testbed.Case):
    nodes = ("a",)
    device_size = "512M"

    def setUp(self):
        self.d = self.a / self.id().rpartition(".")[2]
        self.d.mkdir()
        self.d.chmod(0o777)

    @contextlib.contextmanager
    def errno(self, number):
        with self.assertRaises(OSError) as caught:
            yield
        self.assertEqual(number, caught.exception.errno, caught.exception)

    # -- the mount --

    def test_mount_table(self):
        line = mount_line(self.a)
        self.assertIn(" fuse.etcfs ", line)
        self.assertIn("default_permissions", line)
        self.assertIn("allow_other", line)
        self.assertIn(f"etcfs\\043{self.bed.fs}", line)

    def test_root_shows_its_inode(self):
        self.assertEqual(ROOT_INO, os.stat(self.a).st_ino)
        self.assertEqual(ROOT_INO, os.stat(self.d / "..").st_ino)
        with os.scandir(self.a) as entries:
            self.assertEqual({e.name: e.inode() for e in entries}[self.d.name],
                             os.stat(self.d).st_ino)

    def test_read_ahead_is_raised(self):
        st = os.stat(self.a)
        bdi = pathlib.Path(f"/sys/class/bdi/{os.major(st.st_dev)}:{os.minor(st.st_dev)}")
        if not bdi.exists():
            self.skipTest("no /sys/class/bdi")
        self.assertEqual("4096", (bdi / "read_ahead_kb").read_text().strip())

    # -- setuid and setgid (killpriv v2) --

    def suid_file(self):
        f = self.d / f"suid{time.monotonic_ns()}"
        f.write_bytes(b"x" * 10)
        f.chmod(0o6777)
        return f

    def mode(self, f):
        return stat.S_IMODE(os.stat(f).st_mode)

    def test_write_by_another_clears_setuid(self):
        f = self.suid_file()
        as_nobody(lambda: os.write(os.open(f, os.O_WRONLY), b"y"))
        self.assertEqual(0o777, self.mode(f))
        self.assertEqual(b"y" + b"x" * 9, f.read_bytes())

    def test_open_with_truncation_by_another_clears_setuid(self):
        f = self.suid_file()
        as_nobody(lambda: os.open(f, os.O_WRONLY | os.O_TRUNC))
        self.assertEqual((0o777, 0), (self.mode(f), os.stat(f).st_size))

    def test_truncate_by_another_clears_setuid(self):
        f = self.suid_file()
        as_nobody(lambda: os.truncate(f, 3))
        self.assertEqual((0o777, 3), (self.mode(f), os.stat(f).st_size))

    def test_root_keeps_setuid(self):
        f = self.suid_file()
        with open(f, "r+b") as w:
            w.write(b"y")
        self.assertEqual(0o6777, self.mode(f))

    def test_chown_clears_setuid_of_files_but_not_of_directories(self):
        f, d = self.suid_file(), self.d / "dir"
        d.mkdir()
        d.chmod(0o6777)
        for path in (f, d):
            os.chown(path, NOBODY, NOBODY)
        self.assertEqual(0o777, self.mode(f))
        self.assertEqual(0o6777, self.mode(d))

    # -- requests that are answered with no --

    def test_unsupported_is_said(self):
        f = self.d / "f"
        f.write_bytes(b"x")
        with open(f, "r+b") as w:
            with self.assertRaises(OSError) as caught:
                fcntl.ioctl(w, 0x80086601, bytes(8))  # FS_IOC_GETFLAGS
            self.assertIn(caught.exception.errno, (errno.ENOTTY, errno.EOPNOTSUPP))
            with self.errno(errno.ENOTTY):
                fcntl.ioctl(w, 0x12345678, bytes(8))
        renamed = libc.renameat2(AT_FDCWD, os.fsencode(f), AT_FDCWD, os.fsencode(self.d / "g"),
                                 RENAME_WHITEOUT)
        self.assertEqual((-1, errno.EINVAL), (renamed, ctypes.get_errno()))

    def test_copy_file_range_copies(self):
        data = os.urandom(300_000)
        (self.d / "from").write_bytes(data)
        source = os.open(self.d / "from", os.O_RDONLY)
        target = os.open(self.d / "to", os.O_WRONLY | os.O_CREAT)
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, target)
        copied = 0
        while copied < len(data):
            n = os.copy_file_range(source, target, len(data) - copied)
            self.assertGreater(n, 0)
            copied += n
        self.assertEqual(data, (self.d / "to").read_bytes())

    def test_xattr_sizes(self):
        f = self.d / "f"
        f.touch()
        os.setxattr(f, "user.name", b"12345")
        path, name, room = os.fsencode(f), b"user.name", ctypes.create_string_buffer(16)
        self.assertEqual(5, libc.getxattr(path, name, None, 0))
        self.assertEqual(5, libc.getxattr(path, name, room, 5))
        self.assertEqual(b"12345", room.raw[:5])
        self.assertEqual(-1, libc.getxattr(path, name, room, 4))
        self.assertEqual(errno.ERANGE, ctypes.get_errno())
        self.assertEqual(10, libc.listxattr(path, None, 0))
        self.assertEqual(-1, libc.listxattr(path, room, 9))
        self.assertEqual(errno.ERANGE, ctypes.get_errno())
        self.assertEqual(-1, libc.getxattr(path, b"user.none", room, 16))
        self.assertEqual(errno.ENODATA, ctypes.get_errno())

    # -- waiting --

    def held_lock(self):
        f = self.d / "locked"
        f.touch()
        fd = os.open(f, os.O_RDWR)
        self.addCleanup(os.close, fd)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        return f

    def test_a_waiter_for_a_lock_can_be_killed(self):
        waiter = Waiter(self.held_lock(), WAIT_FCNTL)
        self.addCleanup(waiter.close)
        waiter.process.kill()
        self.assertEqual(-signal.SIGKILL, waiter.process.wait(timeout=20))

    def test_a_waiter_for_a_lock_can_be_interrupted(self):
        waiter = Waiter(self.held_lock(), WAIT_FCNTL)
        self.addCleanup(waiter.close)
        os.kill(waiter.process.pid, signal.SIGUSR1)
        self.assertEqual("interrupted\n", waiter.process.stdout.readline())

    def test_others_go_on_while_many_wait(self):
        f = self.held_lock()
        waiters = []
        for _ in range(8):
            waiters.append(Waiter(f, WAIT_FCNTL))
            self.addCleanup(waiters[-1].close)
        for i in range(50):
            (self.d / f"f{i}").write_bytes(b"x")
        self.assertEqual(51, len(os.listdir(self.d)))

    def test_large_reads_and_writes(self):
        data = os.urandom(5_000_001)
        fd = os.open(self.d / "f", os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        self.assertEqual(len(data), os.pwrite(fd, data, 3))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.assertEqual(b"\0\0\0" + data, os.pread(fd, len(data) + 10, 0))


class Ends(testbed.Case):
    """Ways in which a mount ends."""

    nodes = ("b",)
    device_size = "512M"
    allowed_errors = r"was fenced"

    def test_read_only(self):
        (self.b / "f").write_bytes(b"x")
        point = self.bed.mount("ro", "-o", "ro,noatime")
        self.assertEqual(b"x", (point / "f").read_bytes())
        with self.assertRaises(OSError) as caught:
            (point / "g").touch()
        self.assertEqual(errno.EROFS, caught.exception.errno)
        options = mount_line(point).split()[5].split(",")
        self.assertIn("ro", options)
        self.assertIn("noatime", options)
        self.bed.umount("ro")

    def test_signal_to_a_busy_mount_keeps_mapped_pages(self):
        point = self.bed.mount("busy")
        fd = os.open(point / "mapped", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 8192)
        m = mmap.mmap(fd, 8192)
        m[0:5], m[8000:8003] = b"start", b"end"
        os.kill(self.bed.pid("busy"), signal.SIGTERM)
        self.assertTrue(testbed.wait_gone(self.bed.dir / "pids" / "node-busy", 30))
        self.assertIsNone(mount_line(point))
        with self.assertRaises(OSError):
            os.pread(fd, 1, 0)  # the descriptor has ended with the daemon
        m.close()
        close_dead(fd)
        data = (self.b / "mapped").read_bytes()
        self.assertEqual(8192, len(data))
        self.assertEqual((b"start", b"end"), (data[0:5], data[8000:8003]))

    def test_a_fenced_node_ends_its_mount(self):
        point = self.bed.mount("paused")
        (point / "f").write_bytes(b"x")
        fd = os.open(point / "f", os.O_RDONLY)
        os.fsync(fd)
        pid = self.bed.pid("paused")
        os.kill(pid, signal.SIGSTOP)
        try:
            self.assertEqual(b"x", (self.b / "f").read_bytes())  # waits until it has been fenced
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertTrue(testbed.wait_gone(self.bed.dir / "pids" / "node-paused", 30))
        self.assertIsNone(mount_line(point))
        with self.assertRaises(OSError):
            os.fstat(fd)
        close_dead(fd)
        self.assertTrue(re.search(r"^\S+ E .*was fenced", self.bed.log("node-paused").read_text(),
                                  re.M))


if __name__ == "__main__":
    testbed.main(240)
