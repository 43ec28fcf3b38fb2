"""What tests of annulus-eval share: the programs in the folder that the first argument names, and MPI's launcher in the second one."""

import csv
import json
import os
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from in_folder import InFolder, program, small_run  # noqa: E402, F401

PROGRAMS, MPIRUN = sys.argv[1], shlex.split(sys.argv[2])


def of(name):
    return os.path.join(PROGRAMS, f"annulus-{name}")


class Evaluation(InFolder):
    """Tests of a command."""

    @classmethod
    def read_json(cls, *parts):
        with open(cls.file(*parts), encoding="utf-8") as file:
            return json.load(file)

    @classmethod
    def read_csv(cls, name):
        with open(cls.file(name), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def refused(self, cases):
        """`cases`: arguments of annulus-eval, and texts that the error has."""
        for arguments, *texts in cases:
            result = program(of("eval"), *arguments)
            self.assertEqual(result.returncode, 1, result.stdout)
            for text in texts:
                self.assertIn(text, result.stderr, arguments)
