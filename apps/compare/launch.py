"""How the scripts of this folder start programs on the ranks of one machine, which may stand for several."""

import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time


def check(parser, options, ranks, what, how):
    """Ends the program where `ranks` of `what` cannot be dealt to --nodes, or --bench or --mpirun is no program; `how` makes
    the former."""
    for nodes in options.nodes:
        if nodes < 1 or ranks % nodes:
            parser.error(f"{ranks} {what} cannot be dealt to --nodes {nodes}: give divisors of it")
    check_bench(parser, options, how)
    if not options.mpirun or shutil.which(options.mpirun[0]) is None:
        parser.error(f"--mpirun '{shlex.join(options.mpirun)}': there is no such program in PATH")


def check_bench(parser, options, how):
    """Ends the program where --bench is no program; `how` makes one."""
    if not os.access(options.bench, os.X_OK):
        parser.error(f"--bench {options.bench} is no program: {how}")
    options.bench = options.bench.resolve()


def gpus_here():
    """How many GPUs programs see; 0 where nvidia-smi finds none."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    found = len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")]) if listed.returncode == 0 else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len([name for name in visible.split(",") if name.strip()]))


def check_gpus(parser):
    """Ends the program where there is no GPU; returns how many there are."""
    here = gpus_here()
    if here == 0:
        parser.error("this machine shows no NVIDIA GPU (nvidia-smi --list-gpus, CUDA_VISIBLE_DEVICES): run it where there are some")
    return here


def check_torch(parser, options):
    """Ends the program where PyTorch is wanted and missing."""
    if not options.without_pytorch and importlib.util.find_spec("torch") is None:
        parser.error(f"{sys.executable} has no PyTorch: start this script with a Python that has it (2.11 was tried), or "
                     "measure Annulus alone (--without-pytorch)")


class Budget:
    """Seconds that the programs of a script may take together, and one of them alone; 0: any number."""

    def __init__(self, together, alone):
        self.end, self.alone = (time.monotonic() + together if together else float("inf")), alone or float("inf")

    def limit(self):
        """Seconds that the next program may take."""
        return max(0.0, min(self.alone, self.end - time.monotonic()))

    def spent(self):
        """No program starts in less than this."""
        return self.end - time.monotonic() < 5


class Results:
    """Rows of a table and the reports that they come from. The table, which `markdown` makes of options, rows and reports, is
    written as <out>.md and all that was measured as <out>.json after every program, so that a job that is cut off leaves what it
    had."""

    def __init__(self, options, markdown):
        self.options, self.markdown = options, markdown
        self.rows, self.reports, self.good, self.text = [], [], True, ""
        options.out.parent.mkdir(parents=True, exist_ok=True)

    def add(self, rows, report, ended):
        """What one program gave; `ended`: it ended well."""
        self.rows += rows
        self.reports.append(report)
        self.good = self.good and ended
        self.text = self.markdown(self.options, self.rows, self.reports)
        self.options.out.with_suffix(".md").write_text(self.text)
        self.options.out.with_suffix(".json").write_text(json.dumps({"rows": self.rows, "reports": self.reports}, indent=1))


def on_ranks(mpirun, ranks, nodes):
    """The command in front of a program. With more than one node NCCL sees that many machines of consecutive ranks, between
    which it takes loopback sockets; the program itself must be told (--ranks-per-node)."""
    command = [*mpirun, "-n", ranks]
    if nodes > 1:  # each rank says on which of the nodes it is
        rank = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}"
        command += ["bash", "-c", f'NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=node$(({rank} / {ranks // nodes})) exec "$0" "$@"']
    return command


def run(command, log, limit):
    """True when it ended well; what it said is in the file `log`."""
    print(f"# {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    with open(log, "w") as file:
        try:
            status = subprocess.run(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {limit:.0f} s"
    if status != 0:
        last = pathlib.Path(log).read_text(errors="replace").splitlines()[-15:]
        print(f"FAILED ({status}); {log} ends with:", *last, sep="\n  ", file=sys.stderr, flush=True)
    return status == 0
