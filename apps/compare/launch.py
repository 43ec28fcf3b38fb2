"""What the scripts of this folder share: options, programs on the ranks of one machine (which may stand for several), tables."""

import argparse
import concurrent.futures
import contextlib
import csv
import datetime
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import queue
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib

GIB = 2**30
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REPORTER = "annulus-report"
# Of a block that is measured: rates of kernels still change from 16384 rows to 65536 (docs/benchmarks/attention-one-gpu.md). A full block of 65536 rows
# and 32 heads of 128 takes 0.3 s backward on an H100; annulus-bench links leaves out blocks of more than 0.5 s, and one of twice the rows takes 1.2 s.
MOST_ROWS = 65536


WRITES = """Tables go to stdout and to <out>.md, all that was measured to <out>.json: of a table of several programs after every one. The exit status is 1 when a
program failed, or did not run for want of time (--budget); the table then has what the others gave."""


def described(doc, **more):
    """A parser of options whose help is the docstring as it stands."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, **more)


def parser(doc, program, out, page=True, sessions=False):
    """Options that all scripts have: `program` is that of Annulus, `out` the default of --out. `page`: of the tables, by --html.
    `sessions`: measurements may be continued (Results), whose options then have `more`."""
    made = described(doc, epilog=WRITES)
    made.add_argument("--" + program.removeprefix("annulus-"), dest="program", type=pathlib.Path, required=True, help=f"the program {program}")
    made.add_argument("--mpirun", type=shlex.split, default="mpirun --allow-run-as-root --bind-to none", help="with its flags, in one string")
    made.add_argument("--time-limit", type=float, default=1800, help="seconds that one program may take")
    made.add_argument("--budget", type=float, default=float("inf"), help="seconds for all programs together; no program starts in the last five")
    made.add_argument("--out", type=pathlib.Path, default=pathlib.Path(out), help="files without their ending")
    if sessions:
        made.add_argument("--continue", dest="more", choices=("missing", "all"),
                          help="go on with what <out>.json has, if there is one: measure what it lacks, or everything once more, as a further session")
    if page:
        made.add_argument("--html", action="store_true", help="write <out>.html, too: the tables as a page (annulus-report beside the program)")
    return made


def attention_options(made, heads=32, dtype="bf16", layout=None, repetitions=5):
    """Options of the cases of annulus-bench attention."""
    made.add_argument("--heads", type=int, default=heads)
    made.add_argument("--head-dim", type=int, default=128)
    if dtype:
        made.add_argument("--dtype", default=dtype, help="f32, bf16 or f16")
    if layout:
        made.add_argument("--layout", default=layout)
    made.add_argument("--repetitions", type=int, default=repetitions, help="of each pass")


def with_other(options, **values):
    """The options with other values of some."""
    return argparse.Namespace(**vars(options) | values)


def check_program(parser, options):
    """Ends the program where the one that it starts is not there; from here on the budget is spent."""
    if not os.access(options.program, os.X_OK):
        parser.error(f"{options.program} is no program: ./annulus build makes those of build/cpu/bin, ./annulus build cuda those of build/cuda/bin")
    options.program = options.program.resolve()
    if getattr(options, "html", False) and not os.access(options.program.with_name(REPORTER), os.X_OK):
        parser.error(f"--html: {options.program.with_name(REPORTER)} is no program: build it (./annulus build), or leave out --html")
    options.out.parent.mkdir(parents=True, exist_ok=True)  # programs write beside it
    options.end = time.monotonic() + options.budget


def check(parser, options):
    """Ends the program where it lacks what it starts, or a number makes no sense; from here on the budget is spent."""
    check_program(parser, options)
    if not options.mpirun or shutil.which(options.mpirun[0]) is None:
        parser.error(f"--mpirun '{shlex.join(options.mpirun)}': there is no such program in PATH")
    for name in ("asked", "at_once", "audit_every", "batch", "heads", "ranks", "repetitions", "rounds", "steps"):
        if (number := getattr(options, name, None)) is not None and number < 1:
            parser.error(f"--{name.replace('_', '-')} {number}: give 1 or more")
    if not getattr(options, "without_pytorch", True) and importlib.util.find_spec("torch") is None:
        parser.error(f"{sys.executable} has no PyTorch: start this script with a Python that has it (2.11 was tried), or measure Annulus alone")


def limit(options):
    """Seconds that the next program may take; 0 where the budget is spent."""
    left = options.end - time.monotonic()
    return min(options.time_limit, left) if left >= 5 else 0


def time_for(options, seconds):
    """Whether a program of at least so many seconds may start: it ends in what is left of the budget, or would not in the whole of it."""
    left = limit(options)
    return left > 0 and not left < seconds <= options.budget


def gpus_say(what, visible=None):
    """What nvidia-smi says of each GPU, or of those that CUDA_VISIBLE_DEVICES names: a property of --query-gpu. Nothing where it is not there or fails."""
    query = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", *(["--id", visible] if visible else [])]
    with contextlib.suppress(FileNotFoundError):
        listed = subprocess.run(query, capture_output=True, text=True)
        return listed.stdout.splitlines() if listed.returncode == 0 else []
    return []


def version(options):
    return subprocess.run([options.program, "--version"], capture_output=True, text=True).stdout.strip()


def made_by(options, measuring=True):
    """The build, the card (of `measuring` alone), the number of GPUs or of ranks on the host, and the day of this session's rows (`origin`)."""
    made = {"git_hash": version(options).partition("(")[2].partition(")")[0], "date": str(datetime.date.today())}
    if not measuring:
        return made
    names = gpus_say("name", os.environ.get("CUDA_VISIBLE_DEVICES")) if getattr(options, "device", "gpu") == "gpu" else []
    return made | {"card": ", ".join(dict.fromkeys(names[:options.gpus])) or "CPU", "gpus": options.gpus}


def check_card(parser, options):
    """Ends the program where --continue would put rows of this card beside those of another, or of another number of them."""
    file = options.out.with_suffix(".json")
    if not getattr(options, "more", None) or not file.exists():
        return
    here = place_of(options.made)
    for row in json.loads(file.read_text())["rows"]:
        if "card" in row.get("made", {}) and place_of(row["made"]) != here:
            parser.error(f"--continue: {file} has rows of {place_of(row['made'])}, and this is {here}: give another --out")


def place_of(made):
    """Where rows were measured; nothing where they were predicted."""
    return ("{gpus} ranks on {card}" if made["card"] == "CPU" else "{gpus} × {card}").format(**made) if "card" in made else ""


def origin(rows):
    """The line in front of a table: card, build and days of its rows (`made_by`). Rows of several builds are named. Nothing without such rows."""
    groups = grouped([row for row in rows if "made" in row], lambda row: (place_of(row["made"]), row["made"].get("git_hash")))
    lines = []
    for (place, git_hash), of in groups.items():
        days = sorted({row["made"]["date"] for row in of if "date" in row["made"]})
        text = ", ".join(filter(None, [place, f"Annulus git {git_hash}" if git_hash else "build and card not recorded", *days]))
        names = dict.fromkeys(" ".join(str(row[name]) for name in ("entry", "setting", "tokens", "program", "case") if name in row) for row in of)
        lines.append(text + (f": {'; '.join(names)}" if len(groups) > 1 else ""))
    return "\n\n".join(lines) + "\n\n" if lines else ""


def visible_gpus(parser):
    """Names, as CUDA_VISIBLE_DEVICES has them, of the GPUs that programs see. Ends the program where there is none."""
    found = [str(number) for number in range(len(gpus_say("index")))]
    names = [name for part in os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(found)).split(",") if (name := part.strip())][:len(found)]
    if not names:
        parser.error("this machine shows no NVIDIA GPU (nvidia-smi, CUDA_VISIBLE_DEVICES): run it where there are some")
    return names


def groups_of(names, size):
    """As many groups of so many GPUs as there are, as CUDA_VISIBLE_DEVICES names them."""
    return [",".join(names[first:first + size]) for first in range(0, len(names) - size + 1, size)]


def deal(parser, options):
    """Completes --gpus and --ranks (0: all GPUs, one rank on each); ends the program where they do not fit. Returns how many there are."""
    here = len(visible_gpus(parser)) * getattr(options, "hosts", 1)
    options.gpus = options.gpus or here
    if not 1 <= options.gpus <= here:
        parser.error(f"--gpus {options.gpus}, but programs see {here} here: give 1 to {here}")
    options.ranks = options.ranks or options.gpus
    options.gpus = min(options.gpus, options.ranks)
    return here


def check_nodes(parser, options, nodes):
    """Ends the program where ranks cannot be dealt to each of the numbers of nodes, or two of a node would share a GPU."""
    for number in nodes:
        if number < 1 or options.ranks % number:
            parser.error(f"{options.ranks} ranks cannot be dealt to --nodes {number}: give a divisor")
        per_node, gpus = options.ranks // number, getattr(options, "gpus", options.ranks)
        if per_node > gpus:
            parser.error(f"--nodes {number} has {per_node} ranks a node for {gpus} GPUs, and NCCL refuses two ranks of a node on one: "
                         f"give --nodes {-(-options.ranks // gpus)} or more")


def on_ranks(options, nodes):
    """The command in front of a program. With more than one node NCCL sees that many machines of consecutive ranks, between
    which it takes loopback sockets; the program itself must be told (--ranks-per-node)."""
    command = [*options.mpirun, "-n", options.ranks]
    if nodes > 1:  # each rank says on which of the nodes it is
        rank = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}"
        command += ["bash", "-c", f'NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=node$(({rank} / {options.ranks // nodes})) exec "$0" "$@"']
    return command


def torchrun(ranks, script):
    """The command that starts a script of this folder on as many GPUs."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, HERE / script]


def used_memory(environment=os.environ):
    """Bytes of the GPU that has most in use, of those that CUDA_VISIBLE_DEVICES names; 0 where there is none."""
    lines = gpus_say("memory.used", environment.get("CUDA_VISIBLE_DEVICES"))
    return max((int(line) for line in lines if line.isdigit()), default=0) * 2**20


class Program:
    """A program in a session of its own; what it says is in the file `log`. With `gpus` it sees these alone, as CUDA_VISIBLE_DEVICES names
    them, and others may be at work on the rest. `asked`: it answers lines on its standard input by lines on its standard output (ask)."""

    def __init__(self, command, log, gpus=None, asked=False):
        print(f"# {shlex.join(map(str, command))}", file=sys.stderr, flush=True)
        self.environment = os.environ | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})
        self.log, self.used_before = pathlib.Path(log), used_memory(self.environment)
        self.most_memory = self.used_before
        with open(log, "w") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file, "text": True} if asked else {"stdout": file, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(list(map(str, command)), start_new_session=True, env=self.environment, **pipes)

    def ask(self, question=None):
        """The answer to a question, both JSON in a line, or without a question what the program says next; None once it has ended."""
        if question is not None:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.report_failure()
        return json.loads(line) if line else None

    def until(self, enough, seconds, watch=lambda: None):
        """Whether `enough()` came before the program's end and the time limit."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            if enough():
                return True
            watch()
            time.sleep(0.01)
        return enough()

    def watch_memory(self):
        self.most_memory = max(self.most_memory, used_memory(self.environment))
        time.sleep(0.1)

    def end(self, at_once=False):
        """Ends all processes of the session. Launchers end their ranks, which have groups of their own, a second after SIGTERM. What a
        rank had on a GPU is free some seconds after its end, when the system has taken back its pinned memory."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if not at_once:
                os.killpg(self.process.pid, signal.SIGTERM)
                self.process.wait(30)
        for entry in os.listdir("/proc") if self.process.poll() is None else ():
            with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
                if os.getsid(int(entry)) == self.process.pid:
                    os.kill(int(entry), signal.SIGKILL)
        self.process.wait()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        end = time.monotonic() + 60
        while used_memory(self.environment) > self.used_before + GIB and time.monotonic() < end:
            time.sleep(0.5)

    def report_failure(self):
        last = self.log.read_text(errors="replace").splitlines()[-15:]
        print(f"FAILED; {self.log} ends with:", *last, sep="\n  ", file=sys.stderr, flush=True)


def run(command, log, seconds, enough=None, well=(0,), gpus=None):
    """Runs a program until it ends well (with a status of `well`) or, where that is given, until `enough()`. Returns whether that came, and
    the most memory that was seen on a GPU meanwhile (with `enough` only: the question costs time)."""
    program = Program(command, log, gpus)
    program.until(enough or (lambda: False), seconds, program.watch_memory if enough else lambda: None)
    good = program.process.returncode in well
    program.end()
    good = enough() if enough else good
    if not good:
        program.report_failure()
    return good, program.most_memory


def measured(command, stem, seconds, well=(0,), gpus=None):
    """Runs a program that writes the file that its last argument names, <stem>.json; returns what that holds, None without it, and
    whether the program ended well."""
    result = stem.with_name(stem.name + ".json")
    result.unlink(missing_ok=True)
    good, _ = run([*command, result], stem.with_name(stem.name + ".log"), seconds, well=well, gpus=gpus)
    return (json.loads(result.read_text()) if result.exists() else None), good


def side_by_side(groups, jobs, work):
    """The results of work(group, job), in the order of the jobs: as many at once as there are groups of GPUs, and none is at work twice."""
    free = queue.SimpleQueue()
    for group in groups:
        free.put(group)

    def in_turn(job):
        group = free.get()
        try:
            return work(group, job)
        finally:
            free.put(group)

    with concurrent.futures.ThreadPoolExecutor(len(groups)) as workers:
        yield from workers.map(in_turn, jobs)


def time_left(options):
    """The limit of the next program; this one ends where the budget is spent."""
    seconds = limit(options)
    if not seconds:
        print("the budget is spent: the same command goes on", file=sys.stderr)
        sys.exit(1)
    return seconds


def finish(options, command, log):
    """Runs a program to its end, on the GPUs options.visible where these are given; this one ends where it fails."""
    if not run(command, log, time_left(options), gpus=getattr(options, "visible", None))[0]:
        sys.exit(1)


def evaluate(options, command, models, arguments, stem):
    """What a command of annulus-eval says of models, on all ranks; its page is <stem>.html. This program ends where it fails."""
    report, good = measured([*on_ranks(options, 1), options.program.with_name("annulus-eval"), command, *models, *arguments, "--html", f"{stem}.html", "--json"],
                            stem, time_left(options), gpus=getattr(options, "visible", None))
    if not good:
        sys.exit(1)
    return report["evaluations"]


def answered(samples):
    """Their share."""
    return sum(sample["correct"] for sample in samples) / len(samples)


def interval(hits, tries):
    """The 95 % interval of a share (Wilson 1927): the shares that such a count does not rule out."""
    z = 1.96
    middle, width = (hits + z * z / 2) / (tries + z * z), z * math.sqrt(hits * (tries - hits) / tries + z * z / 4) / (tries + z * z)
    return max(0.0, middle - width), min(1.0, middle + width)


def with_interval(samples):
    """The share of samples that were answered, and its interval."""
    return answered(samples), *interval(sum(sample["correct"] for sample in samples), len(samples))


def share(samples):
    """The same as a cell of a table."""
    return "{:.3f} ({:.3f}–{:.3f})".format(*with_interval(samples))


def settings(keys):
    """Keys ("key=value") as options of annulus-train."""
    return [part for key in keys for part in ("--set", key)]


def value_of(keys, name, default=None):
    """Of a key among keys ("key=value"), of which the last one counts."""
    return next((value for key, _, value in (key.partition("=") for key in reversed(keys)) if key == name), default)


def plan_memory(options, config, ranks, per_node, cluster, tokens, keys, stem, room=(), well=(0,)):
    """What annulus-train --plan-memory says of optimizer steps of one causal sequence of so many tokens, as `measured` gives it. `keys`
    ("key=value") may say otherwise; `room`: options for the memory that there is."""
    keys = [f"data.sequence_length={tokens}", "checkpoint.every=0", "train.micro_batches=1", "attention.mask=causal", *keys]
    return measured([options.program, config, "--plan-memory", "--ranks", ranks, "--ranks-per-node", per_node, *room, "--cluster", cluster, *settings(keys), "--json"],
                    stem, limit(options), well)


def said(words):
    """Options of a program, by their names with _ for -."""
    return [part for name, value in words.items() for part in ("--" + name.replace("_", "-"), *(value if isinstance(value, list) else [value]))]


def bench(options, ranks, command, stem, /, **words):
    """What a command of annulus-bench says, as `measured` gives it. `ranks`: the command in front of it; `words`: its options."""
    return measured([*ranks, options.program, command, *said(words), "--json"], stem, limit(options))


def plan(options, stem, **words):
    """What annulus-plan says, as `bench` does."""
    return measured([options.program.with_name("annulus-plan"), *said(words), "--json"], stem, limit(options))


def sha256(*files):
    """Of what they hold, one behind the other."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def heads_of(config, keys):
    """Numbers and sizes of the heads of a configuration, of which keys ("key=value") may say otherwise."""
    with open(config, "rb") as text:
        model = tomllib.load(text)["model"]
    return {name: int(value_of(keys, f"model.{name}", model[name])) for name in ("heads", "kv_heads", "head_dim")}


def links(options, nodes, tokens, shape, cluster, stem):
    """Measures links, attention's kernel and products on these ranks into the file `cluster` (annulus-bench links); whether that ended
    well. `tokens`: of whole sequences. `shape`: heads, kv_heads, head_dim and dtype."""
    # Kernels are measured on blocks of the size of a shard, and of half of one, which a causal mask leaves of most blocks of zigzag; and on a small
    # one, by whose time those that take too long are left out.
    rows = {min(max(16, each // options.ranks // parts), MOST_ROWS) for each in tokens for parts in (1, 2)}
    rows = sorted(rows | {min(4096, *rows)})
    report, good = bench(options, on_ranks(options, nodes), "links", stem, **shape, ranks_per_node=options.ranks // nodes, rows=rows, output=cluster)
    return report is not None and good


def cases_of(report):
    """Cases of annulus-bench attention; one alone stands without a list."""
    return report.get("cases", [report]) if report else []


def save(options, text, found=None):
    """Writes the tables as <out>.md, what was found as <out>.json, and where it is asked for the page <out>.html."""
    markdown = options.out.with_suffix(".md")
    markdown.write_text(text)
    if found is not None:
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1))
    if getattr(options, "html", False):
        subprocess.run([options.program.with_name(REPORTER), "--tables", markdown, "--html", markdown.with_suffix(".html")], check=True, stdout=subprocess.DEVNULL)


class Results:
    """Rows of a table and the reports that they come from. The table, which `markdown` makes of options, rows and reports, is
    written (save) with all that was measured after every program, so that a job that is cut off leaves what it
    had. With `columns` and `flat`, which makes dictionaries of them out of options and rows, <out>.csv is written, too.
    With --continue it begins with the rows of <out>.json that `keep` holds to be measured; the others are repeated. Each row
    says by options.made, where that is, what made it (`origin`)."""

    def __init__(self, options, markdown, columns=(), flat=None, keep=lambda row: "seconds" in row):
        self.options, self.markdown, self.columns, self.flat = options, markdown, columns, flat
        self.rows, self.reports, self.good, self.text = [], [], True, ""
        if getattr(options, "more", None) and options.out.with_suffix(".json").exists():
            found = json.loads(options.out.with_suffix(".json").read_text())
            self.rows, self.reports = [{"made": {}} | row for row in found["rows"] if keep(row)], found["reports"]
            self.text = markdown(options, self.rows, self.reports)

    def lacks(self, of):
        """Whether a row with these values is to be measured: with --continue missing only where there is none."""
        return getattr(self.options, "more", None) != "missing" or not any(all(row.get(name) == value for name, value in of.items()) for row in self.rows)

    def add(self, rows, report, ended):
        """What one program gave; `ended`: it ended well."""
        made = {"made": self.options.made} if hasattr(self.options, "made") else {}
        self.rows += [row | made for row in rows]
        self.reports.append(report)
        self.good = self.good and ended
        self.text = self.markdown(self.options, self.rows, self.reports)
        save(self.options, self.text, {"rows": self.rows, "reports": self.reports})
        if self.flat:
            with open(self.options.out.with_suffix(".csv"), "w", newline="") as file:
                writer = csv.DictWriter(file, self.columns, restval="")
                writer.writeheader()
                writer.writerows(self.flat(self.options, self.rows))

    def end(self, beyond=lambda rows: False):
        """Prints the table. The exit status: 1 when a program failed, 3 when the rows are `beyond` a limit."""
        print(self.text, end="")
        return 1 if not self.good else 3 if beyond(self.rows) else 0


def grouped(rows, key):
    """{key(row): rows}, in the order in which keys come first."""
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def rounds(rows, key):
    """A case that was measured n times gives n rounds: of each, the row of every case by `key`. A case that was measured fewer times
    has its last row in the others."""
    cases = grouped(rows, key)
    return [{case: of[min(number, len(of) - 1)] for case, of in cases.items()} for number in range(max(map(len, cases.values()), default=0))]


def last_words(log):
    """Why a program ended: what its first rank that failed says, or the last line but for "PROGRAM --help explains"."""
    text = re.sub(r"\n.*--help explains$", "", log.read_text(errors="replace").strip())
    reason = re.search(r"annulus: rank \d+: (.+)", text)
    return reason[1] if reason else text.rpartition("\n")[2] or "it wrote nothing"


def first_of(reports, program):
    """The first report of a program, of pairs (program, report); empty without one."""
    return next((report for name, report in reports if name == program and report), {})


def with_range(values, digits=2, of=1):
    """The median of `values` times `of`, and in brackets their range, as a cell of a table."""
    return f"{of * statistics.median(values):.{digits}f} ({of * min(values):.{digits}f} to {of * max(values):.{digits}f})"


def table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join([*map(str, row), *[""] * (len(headings) - len(row))]) + " |" for row in rows]
    return "\n".join(lines) + "\n"
