#!/usr/bin/env python3
"""lists.py: are the lists of files in docs/contributing.md true? Each is of the files in which the word of its example stands."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
folders = ["src", "include", "docs/formats"]


texts = {str(file.relative_to(root)): file.read_text(errors="replace") for folder in folders for file in (root / folder).rglob("*") if file.is_file() and "packaging" not in file.parts}


def files_with(word):
    return {file for file, text in texts.items() if re.search(rf"(?<![a-z])(?:{word})", text)}


wrong, lists = [], 0
page = (root / "docs/contributing.md").read_text()
for change, word, items in re.findall(r"^\*\*(.+?)\*\* \(as `(.+?)`\).*\n(?:.+\n)*\n((?:- .+\n)+)", page, re.M):
    lists += 1
    told = {file for item in items.splitlines() for file in re.findall(r"`([^`]+)`", item.split(":")[0])}
    inside = {file for file in told if file.startswith(tuple(folders))}
    wrong += [f"{change}: {file} is listed, and is not there" for file in told if not (root / file).is_file()]
    wrong += [f"{change}: {file} has '{word}', and is not listed" for file in files_with(word) - inside]
    wrong += [f"{change}: {file} is listed, and has no '{word}'" for file in inside - files_with(word)]
print("\n".join(wrong) or f"{lists} lists of files are true")
sys.exit(1 if wrong or lists != 7 else 0)
