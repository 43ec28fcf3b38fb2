"""apps/compare/prediction.py with a program in the place of mpirun with annulus-bench: commands, table, exit status, errors."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "apps" / "compare" / "prediction.py"

BENCH = """\
    import json, os, sys
    arguments = sys.argv[1:]
    option = lambda name: arguments[arguments.index(name) + 1]
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(arguments) + "\\n")
    if arguments[0] == "links":
        open(option("--output"), "w").write("measured")
        sys.exit(0)
    assert open(option("--cluster")).read() == "measured"
    of = lambda seconds: {"seconds": seconds, "predicted": {"seconds": 0.1, "measured_over_predicted": seconds / 0.1}}
    case = {"git_hash": "abc", "config": {"schedule": "ring", "layout": "zigzag", "tokens": 64}, "topology": {},
            "forward": of(0.11), "backward": of(float(os.environ["FAKE_BACKWARD"]))}
    json.dump(case, open(option("--json"), "w"))
"""


class Prediction(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("mpirun", '#!/bin/sh\nshift 2\nOMPI_COMM_WORLD_RANK=0 exec "$@"\n'),
                           ("bench", f"#!{sys.executable}\n" + textwrap.dedent(BENCH))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def run_script(self, *arguments, backward=0.1):
        return subprocess.run([sys.executable, SCRIPT, "--bench", self.folder / "bench", "--mpirun", str(self.folder / "mpirun"),
                               "--tokens", "64", "--schedules", "ring", "--out", self.folder / "out", *map(str, arguments)],
                              capture_output=True, text=True,
                              env={**os.environ, "FAKE_LOG": str(self.folder / "log"), "FAKE_BACKWARD": str(backward)})

    def test_predicts_from_what_was_measured_before(self):
        result = self.run_script("--ranks", 4, "--nodes", 1, 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        self.assertEqual([call[0] for call in calls], ["links", "attention"] * 2)
        self.assertEqual([call[call.index("--ranks-per-node") + 1] for call in calls], ["4", "4", "2", "2"])
        table = result.stdout.splitlines()
        self.assertIn("| 2 × 2 | 64 | ring, zigzag | 110.00 | 100.00 | 1.100 | 100.00 | 100.00 | 1.000 |", table)
        self.assertEqual(table[-1], "measured / predicted is 1.000 to 1.100; 4 of 4 are within 15%")

    def test_a_ratio_beyond_the_limit_is_the_exit_status(self):
        self.assertEqual(self.run_script("--ranks", 2, backward=0.12).returncode, 3)
        self.assertEqual(self.run_script("--ranks", 2, "--within", 0.3, backward=0.12).returncode, 0)

    def test_refusals(self):
        for arguments, text in ((("--ranks", 1), "give 2 or more"), (("--ranks", 4, "--nodes", 3), "cannot be dealt to --nodes 3"),
                                (("--ranks", 128), "fewer than the ranks"), (("--ranks", 2, "--mpirun", "none-such"), "no such program")):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(text, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
