#!/usr/bin/env python3
"""Two mounts of one filesystem: what one node did, the other sees at once and exactly."""

import errno
import hashlib
import mmap
import os
import random
import stat
import subprocess
import sys

import testbed
from testbed import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2


class TwoNodes(testbed.Case):
    nodes = ("a", "b")

    def setUp(self):
        name = self._testMethodName
        os.mkdir(self.a / name)
        self.da, self.db = self.a / name, self.b / name

    def tearDown(self):
        subprocess.run(["rm", "-rf", self.db], check=True)
        self.assertFalse(self.da.exists())

    def pairs(self):
        """Both directions."""
        return ((self.da, self.db), (self.db, self.da))

    def absent(self, path):
        with self.assertRaises(OSError) as caught:
            os.lstat(path)
        self.assertEqual(errno.ENOENT, caught.exception.errno)

    def test_write_here_read_there(self):
        rng = random.Random(1)
        for i, size in enumerate((0, 1, 100, 4095, 4096, 4097, 70_000, 3_000_001)):
            for here, there in self.pairs():
                data = rng.randbytes(size)
                name = f"f{i}-{here.parts[-2]}"
                (here / name).write_bytes(data)
                self.assertEqual(size, os.stat(there / name).st_size)
                self.assertEqual(data, (there / name).read_bytes())
                self.assertEqual(data, (here / name).read_bytes())

    def test_attributes_are_the_same(self):
        for here, there in self.pairs():
            f = here / "f"
            f.write_bytes(b"x" * 5000)
            os.chmod(f, 0o4711)
            os.chown(f, 3, 4)
            os.setxattr(f, "user.k", b"v")
            os.chmod(f, 0o4711)
            os.utime(f, ns=(1_000_000_001, 2_000_000_002))
            os.stat(there / "f")
            os.chmod(f, 0o640)
            x, y = os.stat(here / "f"), os.stat(there / "f")
            for field in ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_atime_ns",
                          "st_mtime_ns", "st_ctime_ns"):
                self.assertEqual(getattr(x, field), getattr(y, field), field)
            self.assertEqual(b"v", os.getxattr(there / "f", "user.k"))
            os.removexattr(there / "f", "user.k")
            self.assertEqual([], os.listxattr(here / "f"))
            os.unlink(there / "f")

    def test_append_in_turns(self):
        expected = b""
        (self.da / "f").touch()
        fds = [os.open(d / "f", os.O_RDWR | os.O_APPEND) for d in (self.da, self.db)]
        try:
            for i in range(60):
                piece = bytes([65 + i % 26]) * (1 + i * 211 % 9000)
                os.write(fds[i % 2], piece)
                expected += piece
                self.assertEqual(len(expected), os.fstat(fds[1 - i % 2]).st_size)
                tail = os.pread(fds[1 - i % 2], len(piece), len(expected) - len(piece))
                self.assertEqual(piece, tail)
        finally:
            for fd in fds:
                os.close(fd)
        for d in (self.da, self.db):
            self.assertEqual(expected, (d / "f").read_bytes())

    def test_overwrite_seen_through_open_descriptor(self):
        (self.da / "f").write_bytes(b"0" * 10_000)
        fd = os.open(self.db / "f", os.O_RDONLY)
        try:
            for i in range(1, 6):
                self.assertEqual(str(i - 1).encode() * 10_000, os.pread(fd, 20_000, 0))
                (self.da / "f").write_bytes(str(i).encode() * 10_000)
        finally:
            os.close(fd)

    def test_truncate(self):
        for here, there in self.pairs():
            f = here / "f"
            f.write_bytes(b"x" * 9000)
            self.assertEqual(b"x" * 9000, (there / "f").read_bytes())
            os.truncate(f, 4000)
            self.assertEqual(b"x" * 4000, (there / "f").read_bytes())
            os.truncate(there / "f", 9000)
            self.assertEqual(b"x" * 4000 + bytes(5000), f.read_bytes())
            os.truncate(f, 0)
            self.assertEqual(0, os.stat(there / "f").st_size)
            self.assertEqual(b"", (there / "f").read_bytes())

    def test_unlink_and_names_cached_as_absent(self):
        for here, there in self.pairs():
            self.absent(there / "f")
            (here / "f").write_bytes(b"now")
            self.assertEqual(b"now", (there / "f").read_bytes())
            os.unlink(here / "f")
            self.absent(there / "f")
            self.absent(here / "f")
            os.mkdir(there / "f")
            self.assertTrue((here / "f").is_dir())
            os.rmdir(here / "f")
            self.absent(there / "f")

    def test_rename(self):
        for here, there in self.pairs():
            (here / "f").write_bytes(b"f")
            os.stat(there / "f")
            self.absent(there / "g")
            os.rename(here / "f", here / "g")
            self.absent(there / "f")
            self.assertEqual(b"f", (there / "g").read_bytes())
            (here / "new").write_bytes(b"new")
            os.rename(there / "new", there / "g")
            self.assertEqual(b"new", (here / "g").read_bytes())
            os.mkdir(here / "s")
            os.rename(there / "g", there / "s" / "h")
            self.assertEqual(["h"], os.listdir(here / "s"))
            os.mkdir(there / "t")
            os.rename(here / "s", here / "t" / "s")
            self.assertEqual(b"new", (there / "t" / "s" / "h").read_bytes())
            self.assertEqual(os.stat(here / "t").st_ino, os.stat(f"{there}/t/s/..").st_ino)
            with self.assertRaises(FileExistsError):
                renameat2(there / "t" / "s" / "h", there / "t" / "s", RENAME_NOREPLACE)
            (there / "x").write_bytes(b"x")
            renameat2(here / "x", here / "t" / "s", RENAME_EXCHANGE)
            self.assertEqual(b"x", (there / "t" / "s").read_bytes())
            subprocess.run(["rm", "-rf", there / "t", there / "x"], check=True)
            self.assertEqual([], os.listdir(here))

    def test_listings(self):
        for here, there in self.pairs():
            self.assertEqual([], os.listdir(there))
            names = {f"{here.parts[-2]}{i}" for i in range(500)}
            for n in names:
                (here / n).touch()
            self.assertEqual(names, set(os.listdir(there)))
            for n in sorted(names)[::2]:
                os.unlink(there / n)
            self.assertEqual(set(sorted(names)[1::2]), set(os.listdir(here)))
            for n in sorted(names)[1::2]:
                os.unlink(here / n)
            self.assertEqual([], os.listdir(there))

    def test_links_and_special_files(self):
        for here, there in self.pairs():
            (here / "f").write_bytes(b"x")
            os.link(there / "f", there / "g")
            self.assertEqual(2, os.stat(here / "f").st_nlink)
            os.unlink(here / "f")
            self.assertEqual(1, os.stat(there / "g").st_nlink)
            os.symlink("target" * 100, here / "l")
            self.assertEqual("target" * 100, os.readlink(there / "l"))
            os.mkfifo(here / "p", 0o600)
            self.assertTrue(stat.S_ISFIFO(os.stat(there / "p").st_mode))
            for n in "glp":
                os.unlink(there / n)

    def test_exclusive_creation_has_one_winner(self):
        for i in range(50):
            first, second = ((self.da, self.db), (self.db, self.da))[i % 2]
            fd = os.open(first / f"f{i}", os.O_CREAT | os.O_EXCL | os.O_RDWR)
            os.close(fd)
            with self.assertRaises(FileExistsError):
                os.open(second / f"f{i}", os.O_CREAT | os.O_EXCL | os.O_RDWR)

    def test_unlinked_there_while_open_here(self):
        data = random.Random(2).randbytes(100_000)
        for here, there in self.pairs():
            (here / "f").write_bytes(data)
            fd = os.open(here / "f", os.O_RDWR)
            os.unlink(there / "f")
            self.absent(here / "f")
            self.assertEqual(data, os.pread(fd, 200_000, 0))
            self.assertEqual(0, os.fstat(fd).st_nlink)
            os.pwrite(fd, b"still", 0)
            os.fsync(fd)
            self.assertEqual(b"still" + data[5:], os.pread(fd, 200_000, 0))
            os.close(fd)

    def test_replaced_there_while_open_here(self):
        for here, there in self.pairs():
            (here / "f").write_bytes(b"old")
            fd = os.open(here / "f", os.O_RDONLY)
            (there / "t").write_bytes(b"new")
            os.rename(there / "t", there / "f")
            self.assertEqual(b"old", os.pread(fd, 10, 0))
            self.assertEqual(b"new", (here / "f").read_bytes())
            os.close(fd)

    def test_mapped_page_of_both(self):
        (self.da / "f").write_bytes(bytes(8192))
        fds = [os.open(d / "f", os.O_RDWR) for d in (self.da, self.db)]
        maps = [mmap.mmap(fd, 8192) for fd in fds]
        try:
            for i in range(20):
                writer, reader = maps[i % 2], maps[1 - i % 2]
                writer[i * 100:i * 100 + 4] = i.to_bytes(4, "little")
                self.assertEqual(i, int.from_bytes(reader[i * 100:i * 100 + 4], "little"))
        finally:
            for m, fd in zip(maps, fds):
                m.close()
                os.close(fd)

    def test_both_busy_in_one_directory(self):
        """Both nodes create, write, rename and unlink in one directory at once."""
        script = r"""
import hashlib, os, random, sys
d, me, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
mine = {}
for i in range(400):
    kind = rng.choice("cccwru")
    if kind == "c" or not mine:
        name = f"{me}-{i}"
        data = rng.randbytes(rng.choice((10, 5000)))
        with open(f"{d}/{name}", "xb") as f:
            f.write(data)
        mine[name] = data
    else:
        name = rng.choice(sorted(mine))
        if kind == "w":
            mine[name] += b"more"
            with open(f"{d}/{name}", "ab") as f:
                f.write(b"more")
        elif kind == "r":
            os.rename(f"{d}/{name}", f"{d}/{name}r")
            mine[name + "r"] = mine.pop(name)
        else:
            os.unlink(f"{d}/{name}")
            del mine[name]
for name in sorted(mine):
    print(name, hashlib.sha256(mine[name]).hexdigest())
"""
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}", file=sys.stderr)
        running = [subprocess.Popen([sys.executable, "-c", script, d, me, str(seed + i)],
                                    stdout=subprocess.PIPE, text=True)
                   for i, (d, me) in enumerate(((self.da, "a"), (self.db, "b")))]
        expected = {}
        for p in running:
            out, _ = p.communicate(timeout=100)
            self.assertEqual(0, p.returncode)
            expected.update(line.split() for line in out.splitlines())
        for d in (self.da, self.db):
            self.assertEqual(set(expected), set(os.listdir(d)))
            for name, digest in expected.items():
                self.assertEqual(digest, hashlib.sha256((d / name).read_bytes()).hexdigest(), name)

    def test_rename_in_opposite_directions(self):
        """Each node moves files where the other takes them from: locks in order, or a deadlock."""
        script = r"""
import os, sys
d, src, dst, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
for i in range(n):
    os.rename(f"{d}/{src}/{src}{i}", f"{d}/{dst}/{src}{i}")
"""
        for s in "pq":
            os.mkdir(self.da / s)
            for i in range(100):
                (self.da / s / f"{s}{i}").touch()
        running = [subprocess.Popen([sys.executable, "-c", script, d, src, dst, "100"])
                   for d, src, dst in ((self.da, "p", "q"), (self.db, "q", "p"))]
        for p in running:
            self.assertEqual(0, p.wait(timeout=100))
        self.assertEqual({f"q{i}" for i in range(100)}, set(os.listdir(self.da / "p")))
        self.assertEqual({f"p{i}" for i in range(100)}, set(os.listdir(self.db / "q")))


class ThreeMembersOneNodeLeaves(testbed.Case):
    """An etcd of three members; a node leaves and comes back while the other works."""

    nodes = ("a", "b")
    etcd_members = 3

    @testbed.etcfs_only
    def test_leave_and_return(self):
        data = random.Random(5).randbytes(200_000)
        (self.a / "f").write_bytes(data)
        self.bed.umount("a")
        self.assertEqual(data, (self.b / "f").read_bytes())
        (self.b / "g").write_bytes(data[::-1])
        self.bed.remount("a")
        self.assertEqual(data[::-1], (self.a / "g").read_bytes())
        self.assertEqual({"f", "g"}, set(os.listdir(self.a)))


if __name__ == "__main__":
    testbed.main(deadline_s=150)
