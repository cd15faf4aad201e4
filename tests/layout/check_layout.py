#!/usr/bin/env python3
"""Checks what the layout promises and no compiler sees. Prints one line per violation; exit 1 if any.

  order      a file includes only from its own folder and those before it
  libraries  grpc, fuse, uring and generated protobuf headers stand in no header outside their folder
  banned     words that would let time, chance or threads past the seams
  size       files of the product within 500 lines, tests and the simulator within 1,000
  pragma     every header has #pragma once
  own header x.cc includes x.h before anything else, so that x.h is known to stand alone
             (headers without a source are compiled alone, see CMakeLists.txt)
  folders    at most 20 sources in one folder

Before that it shows on small examples that each rule can fail.
"""

import pathlib
import re
import sys
import tempfile

ORDER = ("base", "rt", "meta", "block", "check", "cluster", "fs", "fuse", "daemon")
LEAVES = {"ctl": "fs", "csi": "fs"}  # a leaf and the last folder that it may use

# Headers of a library, and the folders whose own headers may include them. Sources (.cc) of other
# folders may not either, but for the daemon's start-up, which hands over to them.
LIBRARIES = (
    (re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$"), ("src/meta/etcd",)),
    (re.compile(r"\.pb\.h$"), ("src/meta/schema", "src/meta/etcd")),
    (re.compile(r"^google/protobuf/"), ("src/meta/schema", "src/meta/etcd")),
    (re.compile(r"^(fuse3/)?fuse(_lowlevel|_kernel|_opt|_common)?\.h$"), ("src/fuse",)),
    (re.compile(r"^liburing"), ("src/block",)),
)

# Real implementations of seams own OS threads and the OS's clocks; nothing else does.
SEAMS = ("src/rt/", "src/meta/etcd/", "src/block/uring", "src/fuse/", "src/daemon/supervisor",
         "src/daemon/main.cc")
BANNED = (
    ("std::thread", re.compile(r"\bstd::j?thread\b"), SEAMS),
    ("std::mutex", re.compile(r"\bstd::(recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable"),
     SEAMS + ("src/base/log.cc",)),
    ("now() of a clock", re.compile(r"\w+_clock::now\b|\bclock_gettime\b|\bgettimeofday\b"
                                    r"|(?<![\w.:>])time\(\s*(nullptr|NULL|0)\s*\)"), SEAMS),
    ("sleep", re.compile(r"\bstd::this_thread\b|(?<![\w:.>])(u|nano)?sleep\("), SEAMS),
    ("rand", re.compile(r"(?<![\w:.>])s?rand\(|\bstd::(random_device|mt19937)|\bgetrandom\("),
     SEAMS + ("src/ctl/",)),
    ("getenv", re.compile(r"\bgetenv\("), ("src/daemon/", "src/ctl/")),
)
MAX_LINES, MAX_TEST_LINES = 500, 1000
MAX_SOURCES = 20
WAIVER = re.compile(r"//\s*layout:\s*(\S.*)$")  # on the line itself, with the reason


def strip_code(text):
    """Comments and string contents blanked, line numbers kept."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0)) if match.group(0).startswith("/") else '""'
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def may_use(folder):
    if folder in LEAVES:
        return ORDER[:ORDER.index(LEAVES[folder]) + 1] + (folder,)
    return ORDER[:ORDER.index(folder) + 1]


def check_file(root, path, out):
    name = path.relative_to(root).as_posix()
    raw = path.read_text(errors="replace")
    code = strip_code(raw)
    raw_lines = raw.splitlines()
    test = name.endswith(("_test.cc", "_test_bed.h"))
    in_src = name.startswith("src/")
    folder = name.split("/")[1] if in_src else None
    if in_src and folder not in ORDER and folder not in LEAVES:
        out.append(f"{name}: folder src/{folder} has no place in the order")
        return
    own = path.with_suffix(".h")
    includes = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', raw, flags=re.M)
    if path.suffix == ".cc" and own.exists() and includes[:1] != [name.removeprefix("src/")[:-3] + ".h"]:
        out.append(f"{name}: own header: the first include is not {own.name}")
    for number, line in enumerate(raw_lines, 1):
        m = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if not m or WAIVER.search(line):
            continue
        target = m.group(1)
        first = target.removeprefix("src/").split("/")[0]
        if in_src and first in ORDER + tuple(LEAVES) and "/" in target and first not in may_use(folder):
            out.append(f"{name}:{number}: order: {folder} may not include {target}")
        if in_src and not test and target.startswith("sim/"):
            out.append(f"{name}:{number}: order: product code may not include {target}")
        for pattern, homes in LIBRARIES:
            home = any(name.startswith(h + "/") or name.rpartition("/")[0] == h for h in homes)
            if pattern.search(target) and path.suffix == ".h" and not home:
                out.append(f"{name}:{number}: libraries: {target} in a header outside {', '.join(homes)}")
    if in_src and not test:
        for number, line in enumerate(code.splitlines(), 1):
            for word, pattern, allowed in BANNED:
                if pattern.search(line) and not name.startswith(allowed) \
                        and not WAIVER.search(raw_lines[number - 1]):
                    out.append(f"{name}:{number}: banned: {word}")
    limit = MAX_LINES if in_src and not test else MAX_TEST_LINES
    if len(raw_lines) > limit:
        out.append(f"{name}: size: {len(raw_lines)} lines, at most {limit}")
    if path.suffix == ".h" and "#pragma once" not in raw:
        out.append(f"{name}: pragma: no #pragma once")


def check(root):
    out = []
    files = sorted(p for top in ("src", "sim", "tests", "bench") for p in (root / top).rglob("*")
                   if p.suffix in (".h", ".cc"))
    folders = {}
    for path in files:
        check_file(root, path, out)
        if path.suffix == ".cc" and not path.name.endswith("_test.cc"):
            folders.setdefault(path.parent, []).append(path)
    for folder, sources in sorted(folders.items()):
        if len(sources) > MAX_SOURCES:
            out.append(f"{folder.relative_to(root)}: folders: {len(sources)} sources, at most {MAX_SOURCES}")
    return files, out


def self_test():
    cases = {
        "src/base/a.h": ('#pragma once\n#include "rt/rt.h"\n', "order"),
        "src/ctl/a.cc": ('#include "fuse/session.h"\n', "order"),
        "src/fs/a.cc": ('#include "sim/fakes/kv.h"\n', "order"),
        "src/cluster/a.h": ("#pragma once\n#include <grpcpp/grpcpp.h>\n", "libraries"),
        "src/fs/b.h": ('#pragma once\n#include "etcfs.pb.h"\n', "libraries"),
        "src/fs/c.h": ("#pragma once\n#include <fuse3/fuse_lowlevel.h>\n", "libraries"),
        "src/cluster/b.cc": ("std::thread t;\n", "banned"),
        "src/cluster/c.cc": ("auto t = std::chrono::steady_clock::now();\n", "banned"),
        "src/cluster/d.cc": ("std::mutex m;\n", "banned"),
        "src/cluster/e.cc": ("usleep(5);\n", "banned"),
        "src/cluster/f.cc": ("int r = rand();\n", "banned"),
        "src/cluster/g.cc": ('auto* e = getenv("X");\n', "banned"),
        "src/base/b.h": ("int x;\n", "pragma"),
        "src/base/c.cc": ("\n" * 501, "size"),
        "src/odd/a.cc": ("\n", "no place in the order"),
    }
    fine = {
        "src/rt/a.cc": "std::thread t; std::mutex m;\n",
        "src/meta/etcd/a.h": "#pragma once\n#include <grpcpp/grpcpp.h>\n",
        "src/cluster/a.cc": '// std::thread in a comment\nauto s = "std::mutex"; auto t = rt::now();\n',
        "src/cluster/a_test.cc": '#include "sim/fakes/kv.h"\n',
        "src/cluster/b.cc": "std::thread t;  // layout: a reason\n",
        "src/ctl/a.cc": '#include "fs/types.h"\n',
    }
    for name, (text, wanted) in cases.items():
        found = check_one(name, text)
        if not any(wanted in f for f in found):
            sys.exit(f"self-test: {name} should break rule '{wanted}', found {found}")
    for name, text in fine.items():
        found = check_one(name, text)
        if found:
            sys.exit(f"self-test: {name} should pass, found {found}")


def check_one(name, text):
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return check(pathlib.Path(d))[1]


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    if len(sys.argv) < 2:
        root = root.parents[2]
    files, out = check(root)
    print("\n".join(out) or f"{len(files)} files keep to the layout")
    return 1 if out or not files else 0


if __name__ == "__main__":
    sys.exit(main())
