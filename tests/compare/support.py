"""What the tests of apps/compare share: a folder with programs that stand in for those of a machine with GPUs."""

import pathlib
import sys
import tempfile
import textwrap
import unittest

sys.dont_write_bytecode = True  # nothing is left in the sources

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "apps" / "compare"

NVIDIA_SMI = """\
    #!/bin/sh
    i=0; while [ $i -lt "$FAKE_GPUS" ]; do echo "GPU $i: a GPU (UUID: GPU-$i)"; i=$((i + 1)); done
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
