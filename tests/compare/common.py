"""What the tests of apps/compare have in common: a folder, programs that are replaced by what they would report, and training for real, on
the host's cores. No number in these tests was measured by them.

usage of each test: NAME_test.py PROGRAM-FOLDER MPIRUN [MPIRUN FLAG...]
"""

import contextlib
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "apps" / "compare"
sys.path.insert(0, str(SCRIPTS))

import launch  # noqa: E402

PROGRAMS, MPIRUN = pathlib.Path(sys.argv[1]), sys.argv[2:]


def option(command, name):
    return str(command[command.index(name) + 1])


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="annulus-test-")
        self.addCleanup(folder.cleanup)
        self.folder, self.commands = pathlib.Path(folder.name), []
        (self.folder / "cluster.toml").touch()

    def start(self, script, *arguments, gpus=4, visible="0,1,2,3", report=None, **patches):
        """A script's exit status, its table and its errors. `report` stands in for the programs that write JSON: it gets the command."""
        def measured(command, stem, seconds, well=(0,)):
            self.commands.append((list(map(str, command)), os.environ["CUDA_VISIBLE_DEVICES"]))
            found = report(command)
            return found, found is not None

        argv = [script.__name__, "--bench" if hasattr(script, "PASSES") or script.__name__ in ("local_attention", "documents") else "--train", sys.executable,
                "--out", self.folder / "out", "--mpirun", "env", *arguments]
        if report:
            patches["measured"] = measured
        with mock.patch.object(sys, "argv", list(map(str, argv))), mock.patch.multiple(launch, **patches) if patches else contextlib.nullcontext(), \
                mock.patch.object(launch.subprocess, "run", self.nvidia_smi(gpus)), \
                mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible), mock.patch("importlib.util.find_spec"), \
                contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                status = script.main()
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    @staticmethod
    def nvidia_smi(gpus):
        says = {"--query-gpu=index": "".join(f"{number}\n" for number in range(gpus)), "--query-gpu=name": "NVIDIA H200\n" * gpus, "--version": "annulus-train 0.2.0 (abc)\n"}
        return lambda command, **_: subprocess.CompletedProcess(command, 0, says.get(str(command[1]), "64512\n63488\n"))

    def refused(self, script, cases, **common):
        for arguments, text, environment in cases:
            status, _, errors = self.start(script, *arguments, report=lambda command: self.fail("nothing runs"), **common | environment)
            self.assertEqual(status, 2, arguments)
            self.assertIn(text, errors)


class OnTheHost(InFolder):
    """Trains for real, on two ranks of the host where nothing else is said."""

    keys = ["model.layers=1", "model.vocabulary=257"]

    def train(self, script, *arguments):
        subprocess.run([PROGRAMS / "annulus-tokens", "pack", "--out", self.folder / "shards", ROOT / "data/fixture/text"], check=True, capture_output=True)
        command = [sys.executable, script.__file__, "--train", PROGRAMS / "annulus-train", "--shards", self.folder / "shards", "--device", "cpu", "--gpus", 2,
                   "--model", ROOT / "data/demo.toml", "--mpirun", shlex.join(MPIRUN), "--out", self.folder / "out", "--set", *self.keys, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def rows(self):
        return json.loads((self.folder / "out.json").read_text())["rows"]
