"""What the tests of apps/compare share: a folder with programs that stand in for those of a machine with GPUs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.dont_write_bytecode = True  # nothing is left in the sources

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "apps" / "compare"

NVIDIA_SMI = """\
    #!/bin/sh
    [ "$1" = --list-gpus ] || { echo 64512; echo 63488; exit; }
    i=0; while [ $i -lt "${FAKE_GPUS:-2}" ]; do echo "GPU $i: a GPU (UUID: GPU-$i)"; i=$((i + 1)); done
"""

# mpirun FLAGS -n N COMMAND…: one process stands for all ranks.
MPIRUN = """\
    #!/bin/sh
    while [ "$1" != -n ]; do shift; done
    shift 2
    OMPI_COMM_WORLD_RANK=${FAKE_RANK:-1} exec "$@"
"""
# Makes steps until it is ended, as a run does that has many to make.
TRAIN = """\
    import json, os, sys, time
    arguments = sys.argv[1:]
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(arguments) + "\\n")
    keys = dict(setting.split("=", 1) for setting in arguments[2::2])
    if keys.get("memory.recompute") == os.environ.get("FAKE_FAILURE"):
        sys.exit("annulus: rank 0: out of memory")
    folder = keys["run.folder"]
    os.makedirs(folder)
    GIB = 2**30
    for step in range(1, 1000):
        memory = {"total": 2 * GIB, "device": {"total": 60 * GIB, "pool": 61 * GIB, "libraries": GIB}}
        if keys["run.device"] == "cpu":
            memory.pop("device")
        record = {"step": step, "step_seconds": 9.0 if step == 1 else 1.0 + 0.25 * step, "loss": 10.0, "grad_norm": 2.0, "forward_attention": 1.25,
                  "tokens": step * int(keys["data.sequence_length"]) * (2 // int(keys.get("parallel.context", 2))),
                  "exposed_communication_seconds": 0.125, "exposed_sharding_seconds": 0.25, "peak_memory_bytes": memory}
        if "run.peak_tflops" in keys:
            record["mfu"] = 0.5
        with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
            file.write(json.dumps(record) + "\\n")
        time.sleep(0.05)
"""
RUN = """\
    import json, os, sys
    arguments = sys.argv[1:]
    assert arguments[:3] == ["--standalone", "--nproc-per-node", "2"], arguments
    report = {"seconds": [9.0, 2.0, 2.0], "losses": [10.0] * 3, "arrays": 72 * 2**30, "flops": 989.4e12, "torch": "2.11"}
    out = arguments[arguments.index("--out") + 1]
    with open(out + ".part", "w") as file:  # as the program does: who sees `out` reads all of it
        json.dump(report, file)
    os.rename(out + ".part", out)
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program("nvidia-smi", NVIDIA_SMI)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(0o755)

    def python_program(self, name, text):
        self.program(name, f"#!{sys.executable}\n" + textwrap.dedent(text))

    def module(self, name, text):
        """A module of Python that scripts import when PYTHONPATH has `python`."""
        path = self.folder / "python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def torch(self, launcher):
        """A PyTorch of which scripts start the launcher alone."""
        for name, text in (("__init__.py", ""), ("distributed/__init__.py", ""), ("distributed/run.py", launcher)):
            self.module(f"torch/{name}", text)

    def environment(self, **more):
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**inherited, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(self.folder / "python"),
                "FAKE_LOG": str(self.folder / "log"), "FAKE_FAILURE": "", **more}

    def run_with(self, script, bench, *arguments, **environment):
        """A script of apps/compare that measures attention with the program `bench`."""
        self.python_program("bench", bench)
        return subprocess.run([sys.executable, SCRIPTS / script, "--bench", self.folder / "bin" / "bench", "--out", self.folder / "out",
                               *map(str, arguments)], capture_output=True, text=True, env=self.environment(**environment))

    def calls(self):
        """What the programs have written down."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


class TrainingPrograms(InFolder):
    """A folder with mpirun, annulus-train and PyTorch's launcher, for two GPUs."""

    def setUp(self):
        super().setUp()
        self.program("mpirun", MPIRUN)
        self.python_program("annulus-train", TRAIN)
        self.torch(RUN)

    def start(self, script, *arguments, **environment):
        """A script of apps/compare that trains."""
        return subprocess.run([sys.executable, SCRIPTS / script, "--train", self.folder / "bin" / "annulus-train", "--shards", "text",
                               "--gpus", "2", "--mpirun", "mpirun -q", "--out", self.folder / "out", *map(str, arguments)],
                              capture_output=True, text=True, env=self.environment(**environment))
