"""What the tests of annulus-bench share. They are called with PROGRAM MPIRUN [MPIRUN FLAG...]."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zlib

sys.dont_write_bytecode = True  # nothing is left in the sources

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; install python3-h5py")
    sys.exit(77)

PROGRAM, MPIRUN = sys.argv[1], sys.argv[2:]
RESULTS = ("out", "lse", "dq", "dk", "dv")


def command(arguments, ranks=1, subcommand="attention"):
    """Without ranks: without mpirun. Links are not measured unless --cluster is given."""
    arguments = [*map(str, arguments)]
    if subcommand == "attention" and "--cluster" not in arguments and "--local" not in arguments:
        arguments += ["--cluster", "none"]
    return [*([*MPIRUN, "-np", str(ranks)] if ranks else []), PROGRAM, subcommand, *arguments]


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", OMP_PROC_BIND="false")


def run(arguments, ranks=1, subcommand="attention"):
    return subprocess.run(command(arguments, ranks, subcommand), capture_output=True, text=True, timeout=120, env=environment())


class InFolder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="annulus-test-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def read_json(self, name):
        return json.loads(self.read(name))

    def read_csv(self, name):
        return list(csv.DictReader(self.read(name).splitlines()))

    def write(self, name, text):
        """Returns the path."""
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def write_json(self, name, content):
        self.write(name, json.dumps(content))

    def measure(self, subcommand, arguments, ranks=0):
        """What a subcommand prints, and its JSON."""
        result = run([*arguments, "--json", self.path("m.json")], ranks, subcommand)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout, self.read_json("m.json")

    def refused(self, cases, ranks=0, subcommand="attention"):
        """`cases`: arguments, and texts that the error has."""
        for arguments, *texts in cases:
            with self.subTest(arguments=arguments):
                result = run(arguments, ranks, subcommand)
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(result.stdout, "", "told before anything runs")
                for text in texts:
                    self.assertIn(text, result.stderr)

    def write_shard(self, texts):
        ids = [list(text.encode()) + [256] for text in texts]
        tokens = np.concatenate(ids).astype("<u2")
        starts = np.cumsum([0] + [len(d) for d in ids[:-1]]).astype("<u8")
        with h5py.File(self.path("tokens-000000.h5"), "w") as file:
            file["tokens"], file["documents"] = tokens, starts
            file.attrs.update(format="annulus-tokens", version=1, tokenizer="byte", vocabulary=257, end_of_document=256,
                              checksum=int(zlib.crc32(starts.tobytes(), zlib.crc32(tokens.tobytes()))))
        return tokens, starts
