#!/usr/bin/env python3
"""ext4 against one EtcFS node, each on a loop device on the same disk, with fsbench.

Called by `./dev bench` with --fsbench PATH; fsbench.py is not part of this tree. All workloads of one
node run --repeat times and their medians are compared; the order of the filesystems alternates
between workload groups, so that a drift of the machine does not favour one. Results and the table
are left in --out.

With --floor PATH (of memory_fuse, which `ninja -C build memory_fuse` builds) an in-memory filesystem
runs the groups meta and tree as well: what FUSE alone costs on this machine.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "e2e"))
import testbed  # noqa: E402

GROUPS = ("meta", "tree", "sync", "data")
FLOOR_SKIPS = "sync,data"  # they measure the device, and the floor has none
# At least this much of ext4's speed (1 = ext4's) is the aim.
AIMS = {
    "create_empty": 0.4, "create_4k": 0.4, "mkdir": 0.4, "rename_same_dir": 0.4, "unlink": 0.4,
    "stat_warm": 0.8, "readdir_warm": 0.8, "rand_read_4k_warm": 0.8,
    "stat_cold": 0.25, "readdir_stat_cold": 0.25, "find_cold": 0.25,
    "untar": 0.25, "rm_rf": 0.25, "du_cold": 0.3, "du_warm": 0.3, "git_status_warm": 0.3,
    "fsync_create": 0.4, "append_fsync": 0.4, "dsync_write_4k": 0.4,
    "seq_write_fsync": 0.6, "seq_read_cold": 0.6,
}
TXN = r'grpc_server_handled_total\{.*grpc_code="OK",grpc_method="Txn"'


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--fsbench", required=True, help="path of fsbench.py")
    p.add_argument("--out", default="bench-results", help="directory for results and table")
    p.add_argument("--size", default="12G", help="size of each image file")
    p.add_argument("--repeat", type=int, default=3, help="runs of each workload; medians count")
    p.add_argument("--scale", default="1.0", help="fsbench's --scale")
    p.add_argument("--only", default=",".join(GROUPS), help="groups or workloads, as fsbench's --only")
    p.add_argument("--floor", metavar="PATH", help="memory_fuse, to be measured as the floor")
    p.add_argument("--two", action="store_true", help="two nodes: the groups two and vis, EtcFS only")
    p.add_argument("--mount-option", action="append", default=[], help="argument for etcfs (repeatable)")
    return p.parse_args()


def fsbench(args, label, out, only, *more):
    argv = [sys.executable, args.fsbench, "run", "--label", label, "--out", str(out), "--only", only,
            "--repeat", str(args.repeat), "--scale", args.scale, *more]
    print("$ " + " ".join(argv), flush=True)
    subprocess.run(argv, check=True)


def merge(parts, into):
    docs = [json.loads(p.read_text()) for p in parts]
    for d in docs[1:]:
        docs[0]["metrics"].update(d["metrics"])
        docs[0]["checks"].update(d["checks"])
        docs[0].setdefault("errors", {}).update(d.get("errors", {}))
    into.write_text(json.dumps(docs[0], indent=1))


def better_high(unit):
    return unit not in ("s", "ms", "us")


def speed(metric, base):
    """Speed relative to base's; None where one of the two was not measured."""
    if not metric or not base or not metric["value"] or not base["value"]:
        return None
    ratio = metric["value"] / base["value"]
    return ratio if better_high(base["unit"]) else 1 / ratio


def table(ours, ext4, floor):
    """Aims against what was reached, and the floor's ratio; returns the rows that miss."""
    print(f"\n{'workload':<20} {'unit':<6} {'ext4':>12} {'etcfs':>12} {'ratio':>7} {'floor':>7} "
          f"{'aim':>6}")
    missed = []
    for name, aim in AIMS.items():
        x, y = ext4.get(name), ours.get(name)
        ratio, least = speed(y, x), speed(floor.get(name), x)
        end = f"{'-' if least is None else f'{least:.2f}':>7} {aim:>6}"
        if ratio is None:
            print(f"{name:<20} {'-':<6} {'-':>12} {'-':>12} {'-':>7} {end}  not measured")
            continue
        note = "" if ratio >= aim else "  below"
        if note:
            missed.append(name)
        print(f"{name:<20} {x['unit']:<6} {x['value']:>12.6g} {y['value']:>12.6g} {ratio:>7.2f} "
              f"{end}{note}")
    return missed


def mount_ext4(bed, size):
    point = bed.mountpoint("ext4")
    point.mkdir()
    device = bed.make_device(size, "ext4.img")
    testbed.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device], timeout=300)
    testbed.run(["mount", device, point])
    return device, point


def mount_floor(bed, program):
    """Mounts memory_fuse as if it were a node: the bed takes it down like one, come what may."""
    point = bed.mountpoint("memory")
    point.mkdir()
    argv = [str(pathlib.Path(program).resolve()), str(point)]
    (bed.dir / "nodes" / "memory").write_text(json.dumps(argv))
    return bed.remount("memory")


def one_node(args, bed, out):
    """Measures; returns the labels of what was measured, each of which has a JSON in out."""
    device, ext4 = mount_ext4(bed, args.size)
    bed.make_device(args.size)
    bed.mkfs("--overwrite", "in-place")
    point = bed.mount("a", *args.mount_option)
    helper = pathlib.Path(testbed.__file__)
    remount = f"{sys.executable} {helper} remount {bed.dir} a"
    remount_ext4 = f"umount {ext4} && mount {device} {ext4}"
    runs = [("ext4", ext4, remount_ext4, ()), ("etcfs", point, remount, ())]
    if args.floor:
        floor = mount_floor(bed, args.floor)
        runs.append(("memory", floor, "true", ("--skip", FLOOR_SKIPS)))
    parts = {label: [] for label, *_ in runs}
    for i, only in enumerate(args.only.split(",")):
        for label, where, again, more in runs if i % 2 == 0 else runs[::-1]:
            part = out / f"part-{label}-{only}.json"
            fsbench(args, label, part, only, "--a", str(where), "--remount-cmd", again, *more)
            parts[label].append(part)
    for label, files in parts.items():
        merge(files, out / f"{label}.json")
    # Its own run, so that nothing but the unpacking is counted.
    if any(only in ("tree", "untar") for only in args.only.split(",")):
        count_transactions(args, bed, out, point)
    return list(parts)


def count_transactions(args, bed, out, point):
    """etcd transactions per entry of fsbench's tree, from etcd's own counter."""
    tree = bed.dir / "count-tree"
    files = int(20_000 * float(args.scale))
    for i in range(files // 10):
        d = tree / f"d{i}"
        d.mkdir(parents=True)
        for j in range(10):
            (d / f"f{j}").write_bytes(b"x" * 1500)
    tar = bed.dir / "count.tar"
    testbed.run(["tar", "-cf", tar, "-C", bed.dir, "count-tree"], timeout=300)
    before = bed.etcd_counter(TXN)
    testbed.run(["tar", "-xf", tar, "-C", point], timeout=600)
    testbed.run(["sync", "-f", point], timeout=300)
    used = bed.etcd_counter(TXN) - before
    line = f"etcd transactions per created file in untar: {used / files:.4f} ({used:.0f} for {files})"
    print(line)
    (out / "transactions.txt").write_text(line + "\n")
    testbed.run(["rm", "-rf", point / "count-tree"], timeout=600)


def two_nodes(args, bed, out):
    bed.make_device(args.size)
    bed.mkfs("--overwrite", "in-place")
    a, b = (bed.mount(n, *args.mount_option) for n in "ab")
    fsbench(args, "etcfs", out / "two.json", "two,vis", "--a", str(a), "--b", str(b))
    subprocess.run([sys.executable, args.fsbench, "compare", str(out / "two.json")], check=True)
    checks = json.loads((out / "two.json").read_text())["checks"]
    wrong = {k: v["violations"] for k, v in checks.items() if v["violations"]}
    print(f"violations: {wrong or 'none'}")
    return 1 if wrong else 0


def main():
    args = arguments()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with testbed.Testbed.temporary(deadline_s=6 * 3600, fs="bench") as bed:
        bed.start_etcd()
        try:
            if args.two:
                return two_nodes(args, bed, out)
            labels = one_node(args, bed, out)
        except (testbed.BedError, subprocess.SubprocessError) as e:
            print(f"bench: {e}", file=sys.stderr)
            testbed.show_logs(bed.dir)
            return 1
    files = [out / f"{label}.json" for label in labels]
    subprocess.run([sys.executable, args.fsbench, "compare", *map(str, files), "--base", "ext4"],
                   check=True)
    metrics = {label: json.loads(file.read_text())["metrics"] for label, file in zip(labels, files)}
    missed = table(metrics["etcfs"], metrics["ext4"], metrics.get("memory", {}))
    print("\nall aims are reached" if not missed else f"\nbelow the aim: {', '.join(missed)}")
    return 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("bench: needs root (loop devices, mounts)")
    sys.exit(main())
