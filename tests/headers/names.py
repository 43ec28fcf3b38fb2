#!/usr/bin/env python3
"""names.py FOLDER: does every source include, itself or through its headers, a header that declares each name it uses?

A build that compiles several sources as one (unity) hides what is missing. This reads text and knows no C++: it looks for types, constants, functions
and macros that headers of the tree declare at the start of a line, with a capital letter or an underscore in them, for `require`, and for gmock's macros. No folder has
more than 20 sources, and `include` no more than 40 headers.
"""
import collections
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1]).resolve()
places = [root / "include", root / "src", root / "apps", root / "tests"]
files = {path: path.read_text() for place in places for path in place.rglob("*") if path.suffix in (".hpp", ".cpp", ".cu")}
included_as = {str(path.relative_to(place)): path for place in places for path in files if path.is_relative_to(place)}

declaration = re.compile(r"^(?:#define (\w+)|(?:template <.*>\s+)?(?:class|struct|enum class) (\w+)(?=[^;]*[{:])|using (\w+) =|"
                         r"(?:inline )?constexpr [\w:<>, ]+ (\w+)(?= =|\{)|(?:inline |constexpr |ANNULUS_FUNCTION )*[\w:<>,&* ]+[ &*](\w+)\()", re.M)
use = re.compile(r"(?<![.>\w])(?<!std::)(?<!Kokkos::)(?<!CLI::)(?<!-)\b([A-Za-z_]\w{3,})\b")
no_names = {"Kokkos", "KOKKOS_FUNCTION", "to_string"}


def without_words(text):
    """The text without comments, strings, includes and names of tests."""
    text = re.sub(r'^\s*#include.*|//[^\n]*|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.M)
    return re.sub(r"/\*.*?\*/|\bTEST(?:_[FP])?\(\w+, *\w+\)|\bINSTANTIATE_TEST_SUITE_P\(\s*\w*", " ", text, flags=re.S)


def included(path):
    names = re.findall(r'^\s*#include [<"]([^>"]+)[>"]', files[path], re.M)
    beside = [(path.parent / name).resolve() for name in names]
    return {near if near in files else included_as[name] for near, name in zip(beside, names) if near in files or name in included_as}


direct = {path: included(path) for path in files}
texts = {path: without_words(text) for path, text in files.items()}


def reached_from(path):
    seen, todo = set(), [path]
    while todo:
        new = direct[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def declares(path, name, anything):
    """Whether `path` has something of its own with this name; `anything`: a parameter or a variable, too."""
    here = rf"(?:class|class\.\.\.|struct|using|typename|define) {name}\b|[\w>&*] [&*]?{name}[\s({{;=,]"
    if anything:
        here += rf"|[\w>&*\]] [&*]?{name}\b\s*[=({{;,):\[]|auto&? {name}\b|[\[,] ?&?{name}[,;\] ]"
    return re.search(here, texts[path])


homes = {}
for path in files:
    if path.suffix == ".hpp":
        for found in declaration.finditer(re.sub(r"^[ \t].*$", "", files[path], flags=re.M)):
            homes.setdefault(next(filter(None, found.groups())), set()).add(path)
names = {name for name in homes if name not in no_names and ("_" in name or name[0].isupper() or name == "require")}

wrong = [f"{folder.relative_to(root)} has {count} sources, more than 20: cut it by concept"
         for folder, count in sorted(collections.Counter(path.parent for path in files).items()) if count > 20]
public = sum(path.is_relative_to(root / "include") for path in files)
if public > 40:
    wrong.append(f"include has {public} headers, more than 40: merge some, or move to src what no other public header and no program needs")
for path in sorted(files):
    reached = reached_from(path) | {path}
    for name in sorted(names & set(use.findall(texts[path]))):
        if not homes[name] & reached and not declares(path, name, True) and not any(declares(other, name, False) for other in reached):
            wrong.append(f"{path.relative_to(root)} uses {name}: include {' or '.join(sorted(str(home.relative_to(root)) for home in homes[name]))}")
    if re.search(r"\b(?:EXPECT|ASSERT)_THAT\b", texts[path]) and not any("<gmock/gmock.h>" in files[other] for other in reached):
        wrong.append(f"{path.relative_to(root)} uses gmock: include <gmock/gmock.h>")
print("\n".join(wrong) or f"{len(files)} files include what they use of {len(names)} names")
sys.exit(1 if wrong else 0)
