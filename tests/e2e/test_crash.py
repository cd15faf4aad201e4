#!/usr/bin/env python3
"""kill -9 of a daemon in the middle of work: the others go on, and the tree is what it must be."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import testbed

TTL_S = 3
GO_ON_S = TTL_S + 12  # fencing is the TTL and one commit; the rest is for a loaded machine

# Makes a tree in a fixed order, as an unpacking tar does; says on its output what has been fsynced.
WRITER = r"""
import os, random, sys
top, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i, (kind, name, data) in enumerate(__import__("test_crash").plan(seed, count)):
    path = f"{top}/{name}"
    if kind == "dir":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(data, path)
    else:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        at = 0
        while at < len(data):
            at += os.write(fd, data[at:at + 65536])
        if kind == "synced":
            os.fsync(fd)
        os.close(fd)
    print(i, kind, flush=True)
"""


def plan(seed, count):
    """The steps of the writer: (kind, name, data), in order."""
    rng = random.Random(seed)
    dirs = [""]
    for i in range(count):
        where = rng.choice(dirs[-10:])
        if i % 15 == 0:
            dirs.append(f"{where}d{i}/")
            yield "dir", f"{where}d{i}", None
        elif i % 20 == 7:
            yield "link", f"{where}l{i}", f"target {i}"
        else:
            kind = "synced" if i % 23 == 0 else "file"
            yield kind, f"{where}f{i}", rng.randbytes(rng.choice((0, 50, 4096, 10_000, 150_000)))


class Crash(testbed.Case):
    nodes = ("a", "b")
    device_size = "2G"

    def setUp(self):
        for node in self.nodes:  # an earlier test may have failed on the way
            if self.bed.pid(node) is None:
                self.bed.kill_dead_mount(node)
                self.bed.remount(node)

    def start_writer(self, top, seed, count):
        env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
        return subprocess.Popen([sys.executable, "-c", WRITER, str(top), str(seed), str(count)],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)

    def progress_until(self, writer, steps):
        """Lets the writer work until it has said so many steps; returns the last one said."""
        last = -1
        for line in writer.stdout:
            last = int(line.split()[0])
            if last >= steps:
                return last
        self.fail(f"the writer ended at step {last}")

    def rest_of(self, writer):
        """What the writer had said before its end."""
        last = -1
        for line in writer.stdout:
            last = int(line.split()[0])
        writer.wait()
        return last

    def verify_prefix(self, top, seed, count, said):
        """The tree is a prefix of the plan, contents are prefixes, and what was fsynced is whole."""
        steps = list(plan(seed, count))
        last_synced = max((i for i, s in enumerate(steps[:said + 1]) if s[0] == "synced"), default=-1)
        present = [os.path.lexists(top / name) for _, name, _ in steps]
        length = present.index(False) if False in present else len(present)
        self.assertFalse(any(present[length:]), "the tree is no prefix of what was done")
        self.assertGreater(length, last_synced, "a step before an fsync that was answered is missing")
        for i, (kind, name, data) in enumerate(steps[:length]):
            path = top / name
            if kind == "link":
                self.assertEqual(data, os.readlink(path))
            elif kind != "dir":
                content = path.read_bytes()
                self.assertEqual(data[:len(content)], content, f"{name}: bytes never written")
                if kind == "synced" and i <= said:
                    self.assertEqual(len(data), len(content), f"{name} was fsynced")
        found = sum(len(d) + len(f) for _, d, f in os.walk(top))
        self.assertEqual(length, found, "the tree has entries that nobody made")
        print(f"said {said}, found {length} of {count} steps", file=sys.stderr)
        return length

    def wait_usable(self, op):
        """The survivor may wait for the fencing, not longer. Returns how long it took."""
        start = time.monotonic()
        op()
        took = time.monotonic() - start
        self.assertLess(took, GO_ON_S)
        return took

    def crash_while_writing(self, name, kill_after):
        seed, count = random.SystemRandom().randrange(2**32), 3000
        print(f"seed {seed}", file=sys.stderr)
        os.mkdir(self.a / name)
        top_a, top_b = self.a / name, self.b / name
        os.listdir(top_b)
        writer = self.start_writer(top_a, seed, count)
        said = self.progress_until(writer, kill_after)
        testbed.kill_recorded(self.bed.dir / "pids" / "node-a")
        said = max(said, self.rest_of(writer))
        self.bed.kill_dead_mount("a")
        took = self.wait_usable(lambda: (top_b / "by b").mkdir())
        print(f"the other node went on after {took:.1f} s", file=sys.stderr)
        (top_b / "by b").rmdir()
        self.verify_prefix(top_b, seed, count, said)
        self.bed.ctl("check")
        self.bed.remount("a")
        self.verify_prefix(top_a, seed, count, said)
        (self.a / name / "again").write_bytes(b"works")
        self.assertEqual(b"works", (top_b / "again").read_bytes())
        subprocess.run(["rm", "-rf", top_b], check=True)

    def test_early(self):
        self.crash_while_writing("early", 40)

    def test_in_the_middle(self):
        self.crash_while_writing("middle", 900)

    def test_other_directories_are_not_held_up(self):
        os.mkdir(self.b / "mine")
        (self.b / "mine" / "f").write_bytes(b"x")
        os.mkdir(self.a / "theirs")
        (self.a / "theirs" / "f").write_bytes(b"x" * 100_000)
        # By descriptor: a path from the root would ask for the root, which the dead node holds.
        mine = os.open(self.b / "mine", os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, mine)
        self.bed.kill("a")
        start = time.monotonic()
        for i in range(50):
            fd = os.open(f"g{i}", os.O_CREAT | os.O_WRONLY, dir_fd=mine)
            os.write(fd, b"y")
            os.close(fd)
        self.assertLess(time.monotonic() - start, TTL_S - 1)
        self.wait_usable(lambda: os.listdir(self.b / "theirs"))
        self.bed.remount("a")
        self.assertEqual(50, len(os.listdir(self.a / "mine")) - 1)

    def test_restart_on_the_same_host_is_quick(self):
        os.mkdir(self.a / "quick")
        (self.a / "quick" / "f").write_bytes(b"synced")
        fd = os.open(self.a / "quick" / "f", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        self.bed.kill("a")
        start = time.monotonic()
        self.bed.remount("a")
        self.assertEqual(b"synced", (self.a / "quick" / "f").read_bytes())
        took = time.monotonic() - start
        print(f"back after {took:.1f} s", file=sys.stderr)
        self.assertLess(took, GO_ON_S)

    def test_open_unlinked_file_of_a_dead_node_is_reaped(self):
        fd = os.open(self.a / "gone", os.O_CREAT | os.O_RDWR)
        os.pwrite(fd, b"x" * (64 << 20), 0)
        os.fsync(fd)
        os.unlink(self.a / "gone")
        os.fsync(fd)
        self.bed.kill("a")
        with contextlib.suppress(OSError):
            os.close(fd)
        self.wait_usable(lambda: os.listdir(self.b))
        self.bed.remount("a")
        deadline = time.monotonic() + 20
        while "orphan" in self.bed.ctl("check", "--json", check=False).stdout:
            self.assertLess(time.monotonic(), deadline, "the orphan is not reaped")
            time.sleep(0.5)

    def test_both_die(self):
        for node, top in (("a", self.a), ("b", self.b)):
            os.mkdir(top / f"of {node}")
            for i in range(100):
                (top / f"of {node}" / f"f{i}").write_bytes(b"x" * 1000)
            with open(top / f"of {node}" / "synced", "wb") as f:
                f.write(b"whole" * 10_000)
                f.flush()
                os.fsync(f.fileno())
        self.bed.kill("a")
        self.bed.kill("b")
        self.bed.ctl("check")
        self.bed.remount("b")
        self.bed.remount("a")
        for node, other in (("a", self.b), ("b", self.a)):
            self.assertEqual(b"whole" * 10_000, (other / f"of {node}" / "synced").read_bytes())
            self.assertEqual(101, len(os.listdir(other / f"of {node}")))
        self.assertEqual({"a", "b"}, {n for n in ("a", "b") if n in self.node_names()})

    def node_names(self):
        return json.dumps(json.loads(self.bed.ctl("nodes", "--json").stdout))

    def test_stopped_daemon_does_not_hang_the_harness(self):
        """Not about EtcFS: a daemon that does not answer is taken down by the bed."""
        bed = testbed.Testbed.temporary(60)
        try:
            bed.start_etcd()
            bed.make_device("512M")
            bed.mkfs()
            point = bed.mount("x")
            os.kill(bed.pid("x"), signal.SIGSTOP)
            hung = subprocess.Popen(["ls", "-l", point], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
            time.sleep(0.3)
            self.addCleanup(hung.wait, 30)
        finally:
            start = time.monotonic()
            self.assertFalse(bed.close())
            self.assertLess(time.monotonic() - start, 60)
        self.assertFalse(bed.dir.exists())


if __name__ == "__main__":
    testbed.main(deadline_s=160)
