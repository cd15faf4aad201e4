#!/usr/bin/env python3
"""Real programs on one mount, checked byte for byte. ETCFS_DBENCH=1 adds dbench (not in CI)."""

import hashlib
import os
import pathlib
import random
import shutil
import sqlite3
import tarfile
import tempfile
import unittest

import testbed
from testbed import run


def make_tree(top, files, seed):
    """A source tree: many small files, some larger, links, modes, old times, odd names."""
    rng = random.Random(seed)
    dirs = [top]
    top.mkdir()
    for i in range(files // 12):
        d = rng.choice(dirs[-40:]) / f"dir{i}"
        d.mkdir()
        dirs.append(d)
    words = [rng.randbytes(rng.randrange(2, 9)).hex().encode() for _ in range(500)]
    for i in range(files):
        p = rng.choice(dirs) / f"file {i}.c"
        size = int(min(200_000, rng.lognormvariate(8, 1.2)))
        p.write_bytes(b" ".join(rng.choices(words, k=size // 9)))
        os.chmod(p, rng.choice((0o644, 0o755, 0o600)))
        t = 1_500_000_000 + rng.randrange(10**8)
        os.utime(p, ns=(t * 10**9, t * 10**9 + rng.randrange(10**9)))
        if i % 40 == 0:
            os.link(p, rng.choice(dirs) / f"hard{i}")
        if i % 30 == 0:
            os.symlink(os.path.relpath(p, dirs[0]), rng.choice(dirs) / f"soft{i}")
    return top


def tree_digest(top):
    """Over names, types, modes, sizes, times of files, link counts and contents."""
    h = hashlib.sha256()
    for root, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            p = os.path.join(root, name)
            s = os.lstat(p)
            h.update(repr((os.path.relpath(p, top), s.st_mode, s.st_uid, s.st_gid)).encode())
            if os.path.islink(p):
                h.update(os.readlink(p).encode())
            elif os.path.isfile(p):
                h.update(repr((s.st_size, s.st_mtime_ns, s.st_nlink)).encode())
                h.update(pathlib.Path(p).read_bytes())
    return h.hexdigest()


class Programs(testbed.Case):
    device_size = "4G"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.scratch = pathlib.Path(tempfile.mkdtemp(dir=cls.bed.dir))
        cls.tree = make_tree(cls.scratch / "tree", 3000, 4)
        cls.digest = tree_digest(cls.tree)
        cls.tar = cls.scratch / "tree.tar"
        run(["tar", "--sort=name", "--format=pax", "-cf", cls.tar, "-C", cls.scratch, "tree"])

    def setUp(self):
        self.d = self.a / self._testMethodName
        self.d.mkdir()

    def tearDown(self):
        run(["rm", "-rf", self.d])

    def drop_caches(self):
        os.sync()
        if not testbed.REFERENCE:
            self.bed.remount("a")

    def test_untar_and_tar_again(self):
        run(["tar", "-xpf", self.tar, "-C", self.d])
        self.assertEqual(self.digest, tree_digest(self.d / "tree"))
        self.drop_caches()
        self.assertEqual(self.digest, tree_digest(self.d / "tree"))
        again = self.scratch / "again.tar"
        run(["tar", "--sort=name", "--format=pax", "-cf", again, "-C", self.d, "tree"])
        with tarfile.open(self.tar) as x, tarfile.open(again) as y:
            for m, n in zip(x.getmembers(), y.getmembers(), strict=True):
                self.assertEqual((m.name, m.mode, m.uid, m.gid, m.size, m.type),
                                 (n.name, n.mode, n.uid, n.gid, n.size, n.type))
                if m.isreg():
                    self.assertEqual(x.extractfile(m).read(), y.extractfile(n).read(), m.name)
        run(["rm", "-rf", self.d / "tree"])
        self.assertEqual([], os.listdir(self.d))

    def test_git(self):
        env = dict(os.environ, GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null",
                   GIT_AUTHOR_NAME="t", GIT_AUTHOR_EMAIL="t@example.org", GIT_COMMITTER_NAME="t",
                   GIT_COMMITTER_EMAIL="t@example.org", HOME=str(self.scratch))

        def git(*args, where=self.d / "work"):
            return run(["git", "-c", "gc.auto=0", *args], cwd=where, env=env, timeout=120).stdout

        run(["tar", "-xf", self.tar, "-C", self.d])
        os.rename(self.d / "tree", self.d / "work")
        git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-qm", "one")
        for i, p in enumerate(sorted((self.d / "work").rglob("*.c"))[:200]):
            p.write_text(f"changed {i}\n")
        git("commit", "-qam", "two")
        git("clone", "-q", "--no-local", self.d / "work", self.d / "clone", where=self.d)
        for _ in range(2):
            self.assertEqual("", git("status", "--porcelain", where=self.d / "clone"))
            git("fsck", "--full", "--strict", where=self.d / "clone")
            git("gc", "-q", where=self.d / "clone")
            git("fsck", "--full", "--strict", where=self.d / "clone")
            self.drop_caches()
        self.assertEqual(git("rev-parse", "HEAD^{tree}"),
                         git("rev-parse", "HEAD^{tree}", where=self.d / "clone"))
        git("reset", "-q", "--hard", "HEAD^", where=self.d / "clone")
        self.assertEqual("", git("status", "--porcelain", where=self.d / "clone"))

    def test_cp_and_rsync_twice(self):
        run(["cp", "-a", self.tree, self.d / "cp"])
        self.assertEqual(self.digest, tree_digest(self.d / "cp"))
        run(["cp", "-a", self.d / "cp", self.d / "cp2"])
        self.assertEqual(self.digest, tree_digest(self.d / "cp2"))
        run(["rsync", "-aH", f"{self.tree}/", self.d / "rs"])
        self.assertEqual(self.digest, tree_digest(self.d / "rs"))
        self.drop_caches()
        for options in ("-aHi", "-aHic"):
            second = run(["rsync", options, f"{self.tree}/", self.d / "rs"])
            self.assertEqual("", second.stdout)

    def test_sqlite(self):
        for journal in ("delete", "wal"):
            path = self.d / f"{journal}.db"
            rng = random.Random(6)
            model = {}
            for session in range(3):
                db = sqlite3.connect(path, isolation_level=None)
                self.assertEqual(journal, db.execute(f"pragma journal_mode={journal}").fetchone()[0])
                db.execute("pragma synchronous=full")
                db.execute("create table if not exists t (k integer primary key, v blob)")
                for _ in range(60):
                    db.execute("begin")
                    for _ in range(10):
                        k, v = rng.randrange(2000), rng.randbytes(rng.randrange(3000))
                        db.execute("insert or replace into t values (?, ?)", (k, v))
                        model[k] = v
                    db.execute("commit")
                if session == 1:
                    db.execute("vacuum")
                db.close()
                self.drop_caches()
                db = sqlite3.connect(path)
                self.assertEqual([("ok",)], db.execute("pragma integrity_check").fetchall())
                self.assertEqual(model, dict(db.execute("select k, v from t")))
                db.close()

    def fio(self, name, *args):
        p = run(["fio", "--minimal", f"--name={name}", f"--directory={self.d}", "--verify=crc32c",
                 "--verify_fatal=1", "--verify_state_save=0", "--randseed=1234", "--size=48m",
                 *args], timeout=120, check=False)
        self.assertEqual(0, p.returncode, p.stdout)

    def test_fio_verify(self):
        for name, args in (("buffered", ("--ioengine=psync",)),
                           ("direct", ("--ioengine=libaio", "--direct=1", "--iodepth=16")),
                           ("mapped", ("--ioengine=mmap",)),
                           ("fsyncs", ("--ioengine=psync", "--fsync=64", "--size=8m"))):
            job = (name, "--rw=randwrite", "--bsrange=4k-64k", "--bs_unaligned=0", *args)
            self.fio(*job, "--do_verify=1", "--end_fsync=1")
            self.drop_caches()
            self.fio(*job, "--verify_only")
            self.fio(name + "-mixed", "--rw=randrw", "--bs=4k", "--filename_format=" + name + ".0.0",
                     *args, "--do_verify=1")

    def test_compiler_and_linker(self):
        sources = []
        for i in range(10):
            p = self.d / f"part{i}.c"
            p.write_text(f"int part{i}(int x) {{ return x * {i} + 1; }}\n")
            sources.append(p)
        main = self.d / "main.c"
        main.write_text("#include <stdio.h>\n" + "".join(f"int part{i}(int);\n" for i in range(10)) +
                        "int main(void) { int s = 0;\n" +
                        "".join(f"s += part{i}({i});\n" for i in range(10)) +
                        'printf("%d\\n", s); return 0; }\n')
        for p in [*sources, main]:
            run(["gcc", "-O1", "-g", "-c", p, "-o", p.with_suffix(".o")])
        run(["ar", "rcs", self.d / "libparts.a", *[p.with_suffix(".o") for p in sources]])
        run(["gcc", main.with_suffix(".o"), "-L", self.d, "-lparts", "-o", self.d / "prog"])
        expected = str(sum(i * i + 1 for i in range(10)))
        for _ in range(2):
            self.assertEqual(expected, run([self.d / "prog"]).stdout.strip())
            self.drop_caches()

    @unittest.skipUnless(os.environ.get("ETCFS_DBENCH") and shutil.which("dbench"),
                         "set ETCFS_DBENCH=1 and install dbench")
    def test_dbench(self):
        p = run(["dbench", "4", "-t", "30", "-D", self.d], timeout=150)
        self.assertIn("Throughput", p.stdout)
        print(p.stdout.splitlines()[-1])


if __name__ == "__main__":
    testbed.main(deadline_s=200)
