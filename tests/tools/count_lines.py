#!/usr/bin/env python3
"""count_lines.py [REVISION]: lines of code by folder, of the working tree or of a commit. A line of code is neither blank nor all comment."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("src", "include", "apps", "tests")
SLASHES = (".cpp", ".hpp", ".h", ".cu", ".js")
HASHES = (".py", ".sh", ".cmake", "CMakeLists.txt")


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout.decode(errors="replace")


def add(counts, folder, more):
    counts[folder] = [before + new for before, new in zip(counts.get(folder, (0, 0, 0)), more)]


def main():
    revision = sys.argv[1] if len(sys.argv) > 1 else None
    names = git("ls-tree", "-r", "-z", "--name-only", revision, *FOLDERS) if revision else git("ls-files", "-z", *FOLDERS)
    counts = {}
    for name in filter(None, names.split("\0")):
        source = name.removesuffix(".in")
        if not source.endswith(SLASHES + HASHES) or not revision and not (ROOT / name).exists():
            continue
        text = git("show", f"{revision}:{name}") if revision else (ROOT / name).read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        mark = "//" if source.endswith(SLASHES) else "#"
        more = (1, sum(bool(line) and not line.startswith(mark) for line in lines), len(lines))
        folders = name.split("/")[:-1]
        module = "/".join(folders[:3 if folders[0] == "include" else 2])
        for folder in {folders[0], module, "all"}:
            add(counts, folder, more)
    print(f"{'folder':28}{'files':>7}{'code':>8}{'lines':>8}")
    for folder in sorted(set(counts) - {"all"}) + ["all"]:
        print(f"{folder:28}" + "".join(f"{count:{width}}" for count, width in zip(counts[folder], (7, 8, 8))))


main()
