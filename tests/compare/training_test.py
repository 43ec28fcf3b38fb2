"""apps/compare/training.py with programs in the place of GPUs, mpirun, annulus-train and PyTorch: commands, table, exit status,
errors. No number in here was measured by the test."""

import json
import os
import subprocess
import sys
import unittest

import support

SCRIPT = support.SCRIPTS / "training.py"

MPIRUN = """\
    #!/bin/sh
    shift 2
    exec "$@"
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
        record = {"step": step, "step_seconds": 9.0 if step == 1 else 1.0 + 0.25 * step, "loss": 10.0, "mfu": 0.5, "forward_attention": 1.25,
                  "peak_memory_bytes": memory}
        with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
            file.write(json.dumps(record) + "\\n")
        time.sleep(0.05)
"""
RUN = """\
    import json, sys
    arguments = sys.argv[1:]
    assert arguments[:2] == ["--nproc-per-node", "2"], arguments
    report = {"seconds": [9.0, 2.0, 2.0], "losses": [10.0] * 3, "arrays": 72 * 2**30, "flops": 989.4e12, "torch": "2.11"}
    json.dump(report, open(arguments[arguments.index("--out") + 1], "w"))
"""
SMI = """\
    #!/bin/sh
    case $1 in
      --list-gpus) echo "GPU 0: a GPU (UUID: GPU-0)"; echo "GPU 1: a GPU (UUID: GPU-1)" ;;
      *) echo 64512; echo 63488 ;;
    esac
"""


class Training(support.InFolder):
    def setUp(self):
        super().setUp()
        self.program("nvidia-smi", SMI)
        self.program("mpirun", MPIRUN)
        self.python_program("annulus-train", TRAIN)
        for name, text in (("torch/__init__.py", ""), ("torch/distributed/__init__.py", ""), ("torch/distributed/run.py", RUN)):
            self.module(name, text)

    def run_script(self, *arguments, failure=""):
        programs = self.folder / "bin"
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(self.folder / "python"),
                       "FAKE_LOG": str(self.folder / "log"), "FAKE_FAILURE": failure}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return subprocess.run([sys.executable, SCRIPT, "--train", programs / "annulus-train", "--shards", "text", "--gpus", "2",
                               "--mpirun", "mpirun", "--steps", "3", "--tokens", "1024", "--out", self.folder / "out",
                               *map(str, arguments)], capture_output=True, text=True, env=environment)

    def test_every_case_runs_and_pytorch_beside_it(self):
        result = self.run_script("--set", "parallel.zero=3", "--case", "full: memory.recompute=full",
                                 "half: memory.recompute=sequence-selective memory.store_fraction=0.5", "--pytorch", "full")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        self.assertEqual(len(calls), 2)
        for call, keys in zip(calls, (["memory.recompute=full"], ["memory.recompute=sequence-selective", "memory.store_fraction=0.5"])):
            for key in ["data.sequence_length=1024", "data.shards=text", "parallel.zero=3", *keys]:
                self.assertIn(key, call)
        self.assertEqual(result.stdout.splitlines()[2:], [
            "| 1024 | Annulus | full | 315 | 1.62 (1.50 to 1.75) | 50.0 % | 60.0 | 63.0 | 2.0 | 1.25 |",
            "| 1024 | Annulus | half | 315 | 1.62 (1.50 to 1.75) | 50.0 % | 60.0 | 63.0 | 2.0 | 1.25 |",
            "| 1024 | PyTorch | full | 256 | 2.00 (2.00 to 2.00) | 25.0 % | 72.0 | 63.0 |  |  |"])
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        self.assertEqual([len(row["losses"]) for row in rows], [3, 3, 3])

    def test_a_case_that_fails_is_told_and_others_go_on(self):
        result = self.run_script("--case", "none: memory.recompute=none", "full: memory.recompute=full", failure="none")
        self.assertEqual(result.returncode, 1)
        self.assertIn("out of memory", result.stderr)
        self.assertIn("| 1024 | Annulus | none | failed |", result.stdout)
        self.assertIn("| 1024 | Annulus | full | 315 |", result.stdout)

    def test_records_of_earlier_runs_are_not_taken_for_new_ones(self):
        (self.folder / "out-runs" / "1").mkdir(parents=True)
        result = self.run_script("--case", "full: memory.recompute=full")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("out-runs exists: remove it", result.stderr)

    def test_what_cannot_be_run_is_refused(self):
        for arguments, error in ((["--case", "full"], "--case 'full': give a name, a colon and keys"),
                                 (["--gpus", "3"], "--gpus 3: this machine has 2"), (["--steps", "1"], "give at least 2"),
                                 (["--config", "missing.toml"], "--config missing.toml is no file"),
                                 (["--train", "missing"], "--train missing is no program")):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(error, result.stderr)


if __name__ == "__main__":
    unittest.main()
