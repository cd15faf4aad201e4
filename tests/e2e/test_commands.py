#!/usr/bin/env python3
"""The programs at their edges: what they refuse and how they say it, fstab, background, --json."""

import json
import os
import signal
import subprocess
import time

import testbed
from testbed import bin_dir, run


class Commands(testbed.Case):
    nodes = ("a",)
    device_size = "512M"
    allowed_errors = r"^node-(?!a)"

    def refused(self, argv, *words, seconds=40):
        """The command ends by itself, not with success, and its last line has these words."""
        start = time.monotonic()
        p = run(argv, timeout=seconds, check=False)
        self.assertNotEqual(0, p.returncode, p.stdout)
        self.assertGreater(p.returncode, 0, "ended by a signal: " + p.stdout)
        last = p.stdout.strip().splitlines()[-1] if p.stdout.strip() else ""
        for word in words:
            self.assertIn(word.lower(), last.lower(), p.stdout)
        print(f"({time.monotonic() - start:.1f} s) {last}")
        return p.stdout

    def point(self, name):
        p = self.bed.mountpoint(name)
        p.mkdir(exist_ok=True)
        return p

    # -- etcfs --

    def test_second_process_of_a_node_name(self):
        (self.a / "f").write_bytes(b"x")
        self.refused(self.bed.mount_argv("a", mountpoint=self.point("again")), "a")
        self.assertEqual([], testbed.mounts_under(self.point("again")))
        time.sleep(4)  # longer than the TTL: the first must have stayed what it was
        (self.a / "g").write_bytes(b"y")
        self.assertEqual({"f", "g"}, {"f", "g"} & set(os.listdir(self.a)))

    def test_wrong_devices(self):
        other = self.bed.make_device("512M", "other.img")
        argv = lambda device: self.bed.mount_argv("w", device=device, mountpoint=self.point("w"))
        self.refused(argv(other), "device")
        self.refused(argv("/dev/null"), "device")
        self.refused(argv(self.bed.dir / "nothing"), "nothing")
        run([bin_dir() / "etcfsctl", "mkfs", "--etcd", self.bed.endpoints, "--fs", "second",
             "--device", other])
        self.refused(argv(other), "device")

    def test_unknown_filesystem_and_unreachable_etcd(self):
        point = self.point("u")
        argv = self.bed.mount_argv("u", mountpoint=point)
        argv[argv.index("--fs") + 1] = "nosuchname"
        self.refused(argv, "nosuchname")
        argv = self.bed.mount_argv("u", mountpoint=point)
        argv[argv.index("--etcd") + 1] = f"127.0.0.1:{testbed.free_port()}"
        self.refused(argv, "etcd", seconds=60)

    def test_bad_mount_point(self):
        self.refused(self.bed.mount_argv("m", mountpoint=self.bed.dir / "no dir"), "no dir")
        plain = self.bed.dir / "plain"
        plain.touch()
        self.refused(self.bed.mount_argv("m", mountpoint=plain), "plain")

    def test_background(self):
        point = self.point("bg")
        run(self.bed.mount_argv("bg", "--log-file", self.bed.log("node-bg")), timeout=40)
        self.assertEqual(1, len(testbed.mounts_under(point)))
        (point / "from background").write_bytes(b"x")
        self.assertEqual(b"x", (self.a / "from background").read_bytes())
        run(["umount", point])
        self.wait_left("bg")

    def wait_left(self, node):
        """Until the node has left and its process has ended."""
        needle = str(self.bed.mountpoint(node))
        deadline = time.monotonic() + 20
        while any(needle in line for line in run(["ps", "-eo", "args"]).stdout.splitlines()):
            self.assertLess(time.monotonic(), deadline, f"daemon of {node} still runs")
            time.sleep(0.1)

    def test_end_by_signal_is_a_clean_leave(self):
        self.bed.mount("t")
        os.kill(self.bed.pid("t"), signal.SIGTERM)
        self.assertTrue(testbed.wait_gone(self.bed.dir / "pids" / "node-t", 20))
        self.assertEqual([], testbed.mounts_under(self.bed.mountpoint("t")))

    # -- mount -t etcfs, fstab --

    def in_namespace(self, script, *args):
        """Runs a script where /sbin has our mount helper, invisible to the rest of the machine."""
        sbin = self.bed.dir / "sbin"
        sbin.mkdir(exist_ok=True)
        if not (sbin / "mount.etcfs").is_symlink():
            (sbin / "mount.etcfs").symlink_to(bin_dir().resolve() / "etcfs")
        overlay = f"mount -t overlay overlay -o lowerdir={sbin}:/usr/sbin /usr/sbin; " + script
        return run(["unshare", "--mount", "--propagation", "private", "sh", "-euc", overlay, "sh", *args],
                   timeout=90)

    def test_mount_by_type(self):
        point = self.point("typed")
        source = f"{self.bed.endpoints}/{self.bed.fs}"
        self.in_namespace('mount -t etcfs -o "device=$1,node=typed,noatime,log-file=$4" "$2" "$3"; '
                          'echo typed >"$3/typed"; umount "$3"',
                          self.bed.device, source, point, self.bed.log("node-typed"))
        self.assertEqual("typed\n", (self.a / "typed").read_text())
        self.wait_left("typed")

    def test_mount_by_fstab(self):
        point = self.point("tabbed")
        fstab = self.bed.dir / "fstab"
        fstab.write_text(f"{self.bed.endpoints}/{self.bed.fs} {point} etcfs "
                         f"device={self.bed.device},node=tabbed,log-file={self.bed.log('node-tabbed')},"
                         "_netdev,nofail,x-systemd.automount 0 0\n")
        self.in_namespace('mount -T "$1" "$2"; echo tabbed >"$2/tabbed"; umount "$2"', fstab, point)
        self.assertEqual("tabbed\n", (self.a / "tabbed").read_text())
        self.wait_left("tabbed")

    # -- etcfsctl --

    def mkfs(self, fs, device, *args):
        return [bin_dir() / "etcfsctl", "mkfs", "--etcd", self.bed.endpoints, "--fs", fs, "--device",
                device, *args]

    def test_mkfs_refuses(self):
        fresh = self.bed.make_device("256M", "fresh.img")
        self.refused(self.mkfs(self.bed.fs, fresh), self.bed.fs)
        run(["mkfs.ext4", "-q", fresh])
        self.refused(self.mkfs("third", fresh), "ext4")
        mounted = self.point("ext4")
        run(["mount", fresh, mounted])
        self.refused(self.mkfs("third", fresh), "mounted")
        self.refused(self.mkfs("third", fresh, "--force"), "mounted")
        run(["umount", mounted])
        self.refused(self.mkfs("third", self.bed.dir / "none"), "none")
        self.refused(self.mkfs("bad/name", fresh, "--force"), "name")
        run(self.mkfs("third", fresh, "--force"))
        self.refused(self.mkfs("third", fresh))

    def test_help_is_complete(self):
        for argv in (["etcfs"], ["etcfsctl"], *(["etcfsctl", v] for v in
                                                ("mkfs", "status", "nodes", "check", "df"))):
            p = run([bin_dir() / argv[0], *argv[1:], "--help"])
            self.assertIn("--etcd" if argv != ["etcfsctl"] else "mkfs", p.stdout)
            p = run([bin_dir() / argv[0], *argv[1:], "--nosuchoption"], check=False)
            self.assertGreater(p.returncode, 0)

    def test_reports(self):
        (self.a / "g").write_bytes(b"x" * 1_000_000)
        os.sync()
        for verb in ("status", "nodes", "check", "df"):
            self.assertTrue(self.bed.ctl(verb).stdout.strip())
            json.loads(self.bed.ctl(verb, "--json").stdout)
        self.assertIn("a", self.bed.ctl("nodes").stdout)

    def test_check_that_cannot_read_fails(self):
        argv = [bin_dir() / "etcfsctl", "check", "--etcd", f"127.0.0.1:{testbed.free_port()}", "--fs",
                self.bed.fs]
        self.refused(argv, "etcd", seconds=60)
        argv = [bin_dir() / "etcfsctl", "check", "--etcd", self.bed.endpoints, "--fs", "nosuchname"]
        self.refused(argv, "nosuchname")

    def test_umount_of_a_busy_mount_says_so(self):
        (self.a / "busy").touch()
        with open(self.a / "busy"):
            p = subprocess.run(["umount", self.a], capture_output=True, text=True)
            self.assertNotEqual(0, p.returncode)
            self.assertIn("busy", p.stderr)
        self.assertEqual(b"", (self.a / "busy").read_bytes())


if __name__ == "__main__":
    testbed.main(deadline_s=170)
