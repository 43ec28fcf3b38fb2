"""What tests of annulus-eval share: the programs in the folder that the first argument names, and MPI's launcher in the second one."""

import os
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from in_folder import InFolder, program  # noqa: E402, F401

PROGRAMS, MPIRUN = sys.argv[1], shlex.split(sys.argv[2])


def of(name):
    return os.path.join(PROGRAMS, f"annulus-{name}")
