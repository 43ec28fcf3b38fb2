#!/usr/bin/env python3
"""commands.py check|run|shorten|faults PROGRAM-FOLDER [PAGE…]: do the command blocks of README.md and docs/ work?

A fence's info string says what its block is: ```sh MARK for commands, any other language (text for output) for the rest.
Marks: run   executed here, page by page, in a copy of the tree; what .ci/run itself executes (clone, set-up, demo, tests) counts.
             Pages of docs/formats go on in the folder of docs/tutorials.md: their Python examples read what the tutorials make
       gpu   needs GPUs
       site  needs a cluster, a model, the network, or hours
`check` goes through the gpu and site blocks with stand-ins in the place of all programs, and has each call's options parsed by the
program itself: programs and Python scripts get an option more that they do not know, and that alone must be what they refuse.
Folders and files of the repository that a call names must be there, and a configuration that a reader writes is written by the page.
What the Containerfile runs counts as site blocks.
`shorten` is `run` with less work for some commands (`shorter`): each with its options and files as they stand there.
`faults` is for a page whose every block is wrong: each has to be found.
"""
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(__file__).resolve().parents[2]
programs = ["annulus-" + name for name in ("bench", "diff", "eval", "plan", "report", "tokens", "topology", "train", "weights")]
launchers = {"mpirun", "srun", "torchrun", "nsys", "gdb", "compute-sanitizer", "bash", "python3"}
outside = launchers | {"apt-get", "buildah", "c++", "cat", "chroot", "cmake", "cp", "cpack", "ctest", "debootstrap", "dpkg", "git", "grep", "mkdir", "module", "mount", "mv", "ninja", "pkg-config", "reframe", "rm", "sbatch",
                       "spack"}
unknown = "--no-such-option"
# Pages whose `run` blocks a test of their own executes, with a model that it makes.
programs_say = "docs/options.md"  # what programs print, compared by the test docs.options
executed_by = {"docs/models.md": "tests/training/weights/guide_test.cpp"}
tutorials = "docs/tutorials.md"
containerfile = "src/packaging/Containerfile"
# Numbers of pages, and what takes seconds instead.
short_links = {"--seconds 0.2": "--seconds 0.02 --repetitions 1 --max-bytes 16k --rows 64 --width 64 --tokens 64 --heads 2 --kv-heads 2 --head-dim 64 --dtype f32"}
short_run = {"train.steps=40": "train.steps=4 --set train.warmup_steps=1"}
shorter = {
    tutorials: short_links | {
        "--max-bytes 1M ": "", "=2k": "=1k", "--length 2k": "--length 1k", "--tokens 60": "--tokens 8", "step-00000200": "step-00000004", "step-00000060": "step-00000002",
        "run.folder=runs/mine\n": "run.folder=runs/mine train.steps=4 train.warmup_steps=1\n", "run.folder=runs/own": "run.folder=runs/own train.steps=2 train.warmup_steps=1",
        "train.steps=60 train.warmup_steps=5": "train.steps=2 train.warmup_steps=1", "train.steps=20 train.warmup_steps=5": "train.steps=2 train.warmup_steps=1", "audit_every=10": "audit_every=1",
        "--windows 32": "--windows 2", "--windows 8": "--windows 2", "--tokens 1024 --head-dim 64 --repetitions 3": "--tokens 128 --head-dim 16 --heads 2 --repetitions 1",
        'run="$run': 'run="$run model.layers=1 train.micro_batches=1'},
    "docs/evaluation.md": {"--length 1k --stride 512": "--length 1k --stride 512 --windows 4", "train.steps=4": "train.steps=2", "--lengths 1k,2k --samples 2": "--lengths 512,1k --samples 1"},
    "docs/formats/checkpoint.md": {"step-00000200": "step-00000004"},
    "docs/emulation.md": short_links | {"--repetitions 1 --json": "--repetitions 1 --time-scale 20 --json"},
    "docs/running.md": short_run,
    "docs/schedules.md": short_run | {"--heads 4 --head-dim 32": "--heads 2 --head-dim 16 --cluster none"},
    "docs/memory.md": short_run,
    "docs/sparsity.md": {"--tokens 2048": "--tokens 1024", "--repetitions 1": "--repetitions 1 --head-dim 16 --cluster none", "--heads 4 --": "--heads 2 --"},
}
by_ci = re.compile(r"git clone |\./annulus (setup|demo|test|(?:build|check|fuzz)(?: [\w-]+)?)(?![\w-])")


class Block:
    def __init__(self, page, line, info, text):
        self.page, self.line, self.text = page, line, text
        self.language, *self.words = info.split() or [""]

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    def marked(self, *marks):
        return self.language == "sh" and self.words[:1] and self.words[0] in marks


def instructions_of_containerfile():
    """Its RUN instructions, with arguments that are not the defaults, so that nothing is left out."""
    text = (root / containerfile).read_text()
    arguments = "".join(f"{name}=given\n" for name in re.findall(r"^ARG (\w+)", text, re.M))
    return [Block(containerfile, text[:run.start()].count("\n") + 1, "sh site", arguments + run[1] + "\n")
            for run in re.finditer(r"^RUN ((?:.*\\\n)*.*)", text, re.M)]


def blocks_of(page):
    if page == containerfile:
        return instructions_of_containerfile()
    found, begin, info, lines = [], 0, "", []
    for number, line in enumerate((root / page).read_text().splitlines(), 1):
        fence = re.match(r"\s*```(.*)", line)
        if fence and not begin:
            begin, info, lines = number, fence[1].strip(), []
        elif fence:
            found.append(Block(page, begin, info, "\n".join(lines) + "\n"))
            begin = 0
        else:
            lines.append(line)
    return found


def files_of_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    if listed.returncode == 0:
        return listed.stdout.split("\n")
    return [str(f.relative_to(root)) for f in root.rglob("*") if f.is_file() and "build" not in f.parts]  # an archive without git


def wrong_marks(block):
    if not block.language:
        return "has no language: ```sh with a mark for commands, ```text for output"
    if block.language == "sh":
        return None if block.marked("run", "gpu", "site") else "has no mark: ```sh run, gpu or site (tests/docs/commands.py explains them)"
    if block.language == "text":
        for line in block.text.splitlines():
            if re.match(r"\s*(\S+=\S* )*((\./|build/\S+/)?annulus(-(bench|diff|eval|plan|tokens|topology|train|weights))?|mpirun|srun|python3|slurm/\S+) ", line):
                return f"is marked as output, and has a command: {line.strip()}"
    return None


def code_lines(text):
    return [code for line in text.splitlines() if (code := line.split("//")[0].strip())]


def not_of_examples(block):
    """Lines of C++ in the README, which tells readers that they are of apps/examples."""
    examples = {line for file in (root / "apps/examples").glob("*.cpp") for line in code_lines(file.read_text())}
    return [f"{block.where}: no program of apps/examples has the line {line}" for line in code_lines(block.text) if line not in examples]


# --- check: stand-ins in the place of programs ------------------------------------------------------------------

record_call = '{ printf "%s\\0" "$BLOCK" $(($# + 1)) "$name" "$@"; } >>"$RECORD"'
prelude = f"""
set -eu
PATH=/nowhere
command_not_found_handle() {{ local name=$1; shift; {record_call}; }}
cd() {{ :; }}
"""


def stand_ins(folder, files):
    """A tree of the files that commands start, each of which only says how it was started."""
    tests = {"test_" + name.replace(".", "_") for file in files if file.startswith("tests/") and file.endswith("CMakeLists.txt")
             for name in re.findall(r"annulus_add_test\(([a-z0-9_.]+)", (root / file).read_text())}
    started = [f for f in files if (root / f).is_file() and (os.access(root / f, os.X_OK) or f.endswith((".py", ".sh")))]
    started += [f"build/{preset}/bin/{name}" for preset in ("cpu", "cpu-debug", "cuda") for name in programs]
    started += [f"build/{preset}/bin/{name}" for preset in ("cpu", "cuda") for name in tests]
    started += [f"build/cpu/bin/examples/{pathlib.PurePath(file).stem}" for file in files if re.fullmatch(r"apps/examples/\w+\.cpp", file)]
    for file in started:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\nname=$0\n{record_call}\n")
        path.chmod(0o755)


def recorded_calls(page, blocks, tree, folder):
    """(where, argv) of each program that the commands of a page start, in `folder` with the stand-ins of `tree`; errors of the shell as text."""
    script, record = prelude, folder / "record"
    for entry in tree.iterdir():
        (folder / entry.name).symlink_to(entry)
    for block in blocks:
        if block.marked("gpu", "site", "run"):
            script += f"export BLOCK={block.where}\nblock_begins\n{block.text}"
        elif block.words:
            (folder / block.words[0]).write_text(block.text)
    if script == prelude:
        return [], []
    done = subprocess.run(["/bin/bash", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={"HOME": str(folder), "RECORD": str(record), "BLOCK": page, "LC_ALL": "C.UTF-8", "SLURM_JOB_NUM_NODES": "2"})
    words, calls = record.read_text().split("\0")[:-1] if record.exists() else [], []
    while words:
        where, count = words[0], int(words[1])
        calls.append((where, words[2:2 + count]))
        words = words[2 + count:]
    last = calls[-1][0] if calls else page
    errors = [] if done.returncode == 0 else [f"{last}: {done.stderr.strip()}"]
    return [call for call in calls if call[1] != ["block_begins"]], errors


class Checker:
    def __init__(self, bin, files):
        self.bin, self.files = bin, set(files)
        self.folders = {str(parent) for file in files for parent in pathlib.PurePath(file).parents}
        self.help = subprocess.run([root / "annulus", "help"], capture_output=True, text=True).stdout
        self.presets = [preset["name"] for preset in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]]
        self.options = {word for file in files if file.endswith((".cmake", "CMakeLists.txt")) for word in re.findall(r"ANNULUS_\w+", (root / file).read_text())}
        config = self.start([bin / "annulus-train", "--print-config"], root).stdout
        self.keys = {f"{table}.{key}" for table, keys in re.findall(r"^\[(.*)\]\n((?:.+\n)*)", config, re.M)
                     for key in re.findall(r"^(\w+) = ", keys, re.M)}

    def start(self, argv, folder, **environment):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "COLUMNS": "200", **environment}
        return subprocess.run(argv, cwd=folder, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=120)

    def call(self, argv, folder):
        """What is wrong with a call; nothing when all is well."""
        name, arguments = argv[0].removeprefix("./"), [a for a in argv[1:] if a != "…"]
        read = arguments[:-1] if name == "cp" else arguments
        return self.files_are_there(read) or self.command(name, arguments, folder)

    def files_are_there(self, arguments):
        for argument in arguments:
            for word in re.split(r"[\s=,:]", argument):
                top = word.split("/")[0]
                if "/" in word and top in self.folders and top not in ("build", ".") and "/checkpoints" not in word:
                    if word.rstrip("/") not in self.files | self.folders and not (root / word).exists():
                        return f"there is no {word}"
            for key in re.findall(r"(?:^|\s)([a-z]+\.[a-z_0-9]+)=", argument):
                if key not in self.keys:
                    return f"no configuration has a key {key}"
        return None

    def command(self, name, arguments, folder):
        base = name.split("/")[-1]
        if base in programs:
            return self.program(name, base, arguments, folder)
        if name == "annulus":
            return self.driver(arguments, folder)
        if name == "slurm/submit":
            return self.submit(arguments, folder)
        if name.endswith(".py"):
            return self.script(name, arguments, folder)
        if name == "cp" and len(arguments) == 2:  # what a reader writes next is a file of the page
            (folder / arguments[1]).is_dir() or (folder / arguments[1]).touch()
        if name in launchers:
            for at, word in enumerate(arguments):
                if word.split("/")[-1] in programs or word.endswith(".py"):
                    return self.command(word, arguments[at + 1:], folder)
        for option, preset in re.findall(r"(--preset)[ =](\S+)", " ".join(arguments)):
            if preset not in self.presets:
                return f"there is no preset {preset}"
        for option in re.findall(r"-D(ANNULUS_\w+)=", " ".join(arguments)):
            if option not in self.options:
                return f"CMake knows no {option}"
        known = name in outside or name in self.files or base.startswith("test_")
        return None if known else f"{name} is no program of Annulus, nor one that this test knows (`outside` in tests/docs/commands.py)"

    def driver(self, arguments, folder):
        command, *rest = arguments
        if not re.search(rf"^  {re.escape(command)}\b", self.help, re.M):
            return f"./annulus help knows no command {command}"
        own = rest[:rest.index("--")] if "--" in rest else rest
        if command == "run":
            if own[:1] == ["--preset"]:
                own = own[2:]
            ranks, program, *more = own
            if not re.fullmatch(r"[1-9][0-9]*|[A-Z]+", ranks):
                return f"./annulus run {ranks}: no number of ranks"
            if program in programs:
                program = "build/cpu/bin/" + program
            return self.command(program, more, folder)
        if command == "build" and own and own[0] not in self.presets:
            return f"there is no preset {own[0]}"
        return next((f"./annulus help knows no option {word}" for word in own if word.startswith("--") and word not in self.help), None)

    def program(self, name, base, arguments, folder):
        if "/" not in name:
            return f"{base} is not in PATH: write build/cpu/bin/{base}, or ./annulus run N {base}"
        after = []
        if base == "annulus-topology" and "--" in arguments:  # what its --exec becomes
            at = arguments.index("--")
            arguments, after = arguments[:at], arguments[at + 1:]
        if base == "annulus-train":
            wrong = self.training(arguments, folder)
        else:
            wrong = self.refuses_only_the_unknown([self.bin / base, *arguments, unknown], folder, base)
        return wrong or (self.command(after[0], after[1:], folder) if after else None)

    def training(self, arguments, folder):
        """annulus-train reads its options and all of a configuration before it prints it. What stands for a file of the reader is left out."""
        file = arguments[0]
        if not ((root / file).is_file() or (folder / file).is_file() or re.fullmatch(r"[A-Z]+(\.toml)?|-.*|runs/.*", file)):
            return f"there is no {file}: name a file of the repository, or one that the page has the reader write"
        rest, words = [], iter(arguments[0 if file.startswith("-") else 1:])
        for word in words:
            value = next(words, "") if word == "--set" else None
            if value is None:
                rest.append(word)
            elif not value.startswith("model.from=") and not re.search(r"=[A-Z]+$", value):
                rest += [word, value]
        read = [file] if (root / file).is_file() else []
        said = self.start([self.bin / "annulus-train", *read, *rest, "--print-config"], root)
        return None if said.returncode == 0 else f"annulus-train refuses: {said.stderr.strip()}"

    def refuses_only_the_unknown(self, argv, folder, name, **environment):
        said = self.start(argv, folder, **environment)
        wrong = re.sub(rf"^{unknown}: .*$", "", said.stderr + said.stdout, flags=re.M)  # what is said of it names --set
        others = {word for word in argv[1:] if str(word).startswith("-")} - {unknown, "--help"}
        if said.returncode != 0 and unknown in wrong and not others & set(re.split(r"[\s'\",:]+", wrong.split("\nRun with")[0].split("error:")[-1])):
            return None
        return f"{name} refuses: {wrong.strip()[-600:]}"

    def script(self, name, arguments, folder):
        if name not in self.files:
            return f"there is no {name}"
        if "parse_args" not in (root / name).read_text():
            return None
        # Modules of others are replaced: options are read before any of them is used.
        start = """import importlib.abc, importlib.machinery, runpy, sys
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return None if name.split(".")[0] in sys.stdlib_module_names else importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        from unittest.mock import MagicMock
        return MagicMock(name=spec.name, __path__=[], __spec__=spec)
    def exec_module(self, module): pass
sys.meta_path.append(Finder())
sys.dont_write_bytecode = True
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")"""
        return self.refuses_only_the_unknown([sys.executable, "-S", "-c", start, str(root / name), *arguments, unknown], folder, name)

    def submit(self, arguments, folder):
        said = self.start([root / "slurm/submit", "--dry-run", *arguments], folder, SLURM_CONF="/dev/null",
                          ANNULUS_SITE=str(root / "slurm/site.conf.example"))
        if said.returncode != 0:
            return f"slurm/submit refuses: {said.stderr.strip()}"
        words = shlex.split(next(line for line in said.stderr.splitlines() if line.startswith("sbatch ")))
        at = next(i for i, word in enumerate(words) if word.endswith(".sbatch"))
        template, rest = pathlib.PurePath(words[at]).stem, words[at + 1:]
        if template in ("train", "cpu-debug"):
            return self.program("x/annulus-train", "annulus-train", rest[2:] if rest[0] == "--tokens" else rest, folder)
        rest = rest[1:]  # the file or folder
        if template == "paper":
            return self.script("apps/compare/papers.py", ["--train", "annulus-train", *rest], folder)
        while rest[:1] in (["--strong"], ["--weak"]):
            rest = rest[2:]
        command = {"links": "links", "bench-attention": "attention"}[template]
        return self.program("x/annulus-bench", "annulus-bench", [command, *rest], folder)


def faults_of(bin, pages):
    """What is wrong, "PAGE:LINE: …", and the number of calls."""
    files, wrong, work = files_of_repository(), [], []
    checker = Checker(bin, files)
    ci = (root / ".ci/run").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch) / "stand-ins"
        stand_ins(tree, files)
        for page in pages:
            blocks = blocks_of(page)
            wrong += [f"{block.where}: {said}" for block in blocks if (said := wrong_marks(block))]
            wrong += [said for block in blocks if page == "README.md" and block.language == "cpp" for said in not_of_examples(block)]
            executed = {block.where for block in blocks if block.marked("run")}
            for block in blocks:
                for line in block.text.splitlines() if block.where in executed else []:
                    if (told := by_ci.match(line)) and told[1] and not re.search(rf"^\s*(\w+=\S* )*{re.escape(told[0])}", ci, re.M):
                        wrong.append(f"{block.where}: .ci/run does not execute {told[0]}, so this is no block to be marked run")
            if page in executed_by and page not in (root / executed_by[page]).read_text():
                wrong.append(f"{page}: {executed_by[page]} no longer executes its blocks")
            folder = pathlib.Path(scratch) / "pages" / page.replace("/", "-")
            folder.mkdir(parents=True)
            calls, errors = recorded_calls(page, blocks, tree, folder)
            wrong += errors
            # Calls of `run` blocks are made by `run`; here they only tell which files the page writes.
            work += [(where, argv, folder) for where, argv in calls if where not in executed or argv[0] == "cp"]
        with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
            copies = [item for item in work if item[1][0] == "cp"]
            for where, argv, folder in copies:
                checker.call(argv, folder)
            said = pool.map(lambda item: checker.call(item[1], item[2]), work)
            wrong += [f"{where}: {shlex.join(argv)}\n    {text}" for (where, argv, _), text in zip(work, said) if text]
    return wrong, len(work)


def check(bin, pages):
    wrong, calls = faults_of(bin, pages)
    print("\n".join(wrong) or f"{calls} calls of {len(pages)} pages are understood by their programs")
    return 1 if wrong else 0


def find_faults(bin, pages):
    wrong, _ = faults_of(bin, pages)
    passed = [block.where for page in pages for block in blocks_of(page) if not any(said.startswith(f"{block.where}: ") for said in wrong)]
    print("\n".join(wrong + [f"{where} is wrong, and passes" for where in passed]))
    return 1 if passed else 0


# --- run ----------------------------------------------------------------------------------------------------------

def reader(folder, bin):
    """The tree, and what a reader has: texts, and the corpus of the demo. The build is that of `bin`, under the name cpu."""
    for entry in root.iterdir():
        if entry.name not in ("build", ".git", "runs", "README.md"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build/corpus").mkdir(parents=True)
    (folder / "build/cpu").symlink_to(bin.parent)
    if (root / "build/deps").exists():
        (folder / "build/deps").symlink_to(root / "build/deps")
    (folder / "home/bin").mkdir(parents=True)
    (folder / "home/bin/python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')  # the one that has h5py and numpy, if any has
    (folder / "home/bin/python3").chmod(0o755)
    (folder / "home/texts").symlink_to(root / "data/fixture/text")
    subprocess.run([bin / "annulus-tokens", "pack", "--out", folder / "build/corpus/kokkos", "--extensions", ".md", root / "docs"], check=True,
                   capture_output=True)


def shortened(page, text):
    for long, short in shorter.get(page, {}).items():
        if long not in text:
            sys.exit(f"{page} has no {long}: correct `shorter` in tests/docs/commands.py")
        text = text.replace(long, short)
    return text


def in_one_folder(pages):
    """Lists of pages that are executed one after the other in one folder."""
    formats = [page for page in pages if page.startswith("docs/formats/")]
    alone = [[page] for page in pages if page != tutorials and page not in formats]
    return alone + [[tutorials, *formats]] if tutorials in pages or formats else alone


def missing_module(text):
    """A module that a Python example imports and this Python does not have."""
    imported = re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", text, re.M)
    names = [re.match(r"\w+", name)[0] for line in imported for name in line.split(", ")]
    return next((name for name in names if not importlib.util.find_spec(name)), None)


def script_of(page, folder):
    """What the shell executes of a page; its files are written to the folder."""
    script, left_out = "set -e\n", []
    for block in blocks_of(page):
        if block.marked("run"):
            lines = [line for line in block.text.splitlines() if not by_ci.match(line) and not line.startswith(tuple(left_out))]
            script += f"echo '##### {block.where}'\n" + "\n".join(lines) + "\n"
        elif block.language != "sh" and block.words:
            (folder / block.words[0]).write_text(block.text)
            if block.language == "python" and (module := missing_module(block.text)):
                left_out.append(f"python3 {block.words[0]}")
                print(f"{block.where}: {block.words[0]} is skipped, because this Python has no {module}", flush=True)
    return script


def run(bin, pages, change=lambda page, text: text):
    failed = False
    for together in in_one_folder(pages):
        together = [page for page in together if page not in executed_by and any(block.marked("run") for block in blocks_of(page))]
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            if together:
                reader(folder, bin)
            for page in together:
                script = change(page, script_of(page, folder))
                began = time.monotonic()
                environment = {**os.environ, "HOME": str(folder / "home"), "PATH": f"{folder / 'home/bin'}:{os.environ['PATH']}", "ANNULUS_BUILD": "cpu",
                               "OMP_PROC_BIND": "false", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONDONTWRITEBYTECODE": "1"}
                done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, errors="replace")
                print(f"{page}: {'passed' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
                if done.returncode != 0:
                    print("    " + done.stdout[-6000:].replace("\n", "\n    "))
                    failed = True
    return 1 if failed else 0


def main():
    modes = {"check": check, "run": run, "shorten": lambda bin, pages: run(bin, pages, shortened), "faults": find_faults}
    if len(sys.argv) < 3 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    pages = sys.argv[3:] or ["README.md"] + sorted(str(page.relative_to(root)) for page in (root / "docs").rglob("*.md") if page != root / programs_say) + [containerfile]
    return modes[sys.argv[1]](pathlib.Path(sys.argv[2]).resolve(), pages)


if __name__ == "__main__":
    sys.exit(main())
