#!/usr/bin/env python3
"""`./dev demo`: two nodes of one filesystem on this machine, left mounted; `./dev demo stop`.

Everything stands under one directory, $ETCFS_DEMO_DIR (default /tmp/etcfs-demo): an etcd on loopback
with ports and data of its own, an image file behind a loop device, both mount points and all logs.
"""

import os
import pathlib
import subprocess
import sys

import testbed

DIR = pathlib.Path(os.environ.get("ETCFS_DEMO_DIR") or "/tmp/etcfs-demo")
MARK = "made-by-etcfs-demo"


def show(argv):
    print("\n$ " + " ".join(str(a) for a in argv), flush=True)
    subprocess.run([str(a) for a in argv], check=True, timeout=60)


def step(text):
    print(f"== {text}", flush=True)


def stop(quiet=False):
    if not DIR.exists():
        if not quiet:
            print(f"the demo does not run (there is no {DIR})")
        return True
    if not (DIR / MARK).exists():
        sys.exit(f"demo: {DIR} exists and is not the demo's; move it away or set ETCFS_DEMO_DIR")
    clean = testbed.teardown(DIR)
    if not quiet:
        print("the demo is taken down" + ("" if clean else ", not everything went by itself"))
    return clean


def start():
    if DIR.exists():
        step(f"taking down the earlier demo in {DIR}")
        stop(quiet=True)
    DIR.mkdir(parents=True)
    (DIR / MARK).touch()
    bed = testbed.Testbed(DIR, fs="demo")
    step("starting an etcd of its own on loopback")
    bed.start_etcd()
    step("making an image file of 1 GiB and a loop device on it: the shared disk")
    bed.make_device("1G")
    step(f"etcfsctl mkfs --etcd {bed.endpoints} --fs demo --device {bed.device}")
    print(bed.mkfs().stdout, end="")
    a, b = (bed.mountpoint(n) for n in "ab")
    for node in "ab":
        step("mounting node " + node + ": " + " ".join(bed.mount_argv(node)))
        bed.mount(node)
    step("writing a file on node A")
    (a / "hello.txt").write_text("written on node A\n")
    step("reading it on node B")
    text = (b / "hello.txt").read_text()
    print(text, end="")
    if text != "written on node A\n":
        raise testbed.BedError(f"node B read {text!r}")
    (b / "answer.txt").write_text("written on node B\n")
    show(["ls", "-l", a])
    show(["ls", "-l", b])
    show([testbed.bin_dir() / "etcfsctl", "status", "--etcd", bed.endpoints, "--fs", "demo"])
    print(f"""
Both nodes stay mounted:
  node A  {a}
  node B  {b}
  etcfsctl status --etcd {bed.endpoints} --fs demo      (in {testbed.bin_dir()})
  logs    {DIR}/log
To take all of it down:  ./dev demo stop""")


def main(argv):
    if argv == ["stop"]:
        return 0 if stop() else 1
    if argv != ["start"]:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        start()
        return 0
    except (testbed.BedError, OSError, subprocess.SubprocessError) as e:
        print(f"\ndemo: {e}\ndemo: failed, taking everything down again", file=sys.stderr)
        if DIR.exists():
            testbed.show_logs(DIR)
            stop(quiet=True)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted, taking everything down again", file=sys.stderr)
        stop(quiet=True)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
