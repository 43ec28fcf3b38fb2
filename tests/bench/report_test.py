"""annulus-bench report: what several runs found, in one table and one page.

usage: report_test.py PROGRAM MPIRUN [MPIRUN FLAG...]. Exit status 77 means skipped (no h5py).
"""

import csv
import json
import subprocess
import sys
import unittest

import support
from support import PROGRAM, run

SMALL = ["--heads", 2, "--head-dim", 16, "--repetitions", 1, "--warm-up", 0]


class Report(support.InFolder):
    def measure(self, name, ranks, *arguments):
        result = run([*SMALL, *arguments, "--json", self.path(name)], ranks)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def join(self, *arguments):
        return subprocess.run([PROGRAM, "report", *arguments], capture_output=True, text=True, timeout=60, env=support.environment())

    def refused(self, text, *arguments):
        result = self.join(*arguments)
        self.assertEqual(result.returncode, 1)
        self.assertIn(text, result.stderr)

    def test_joins_runs_on_other_numbers_of_ranks(self):
        self.measure("one.json", 1, "--tokens", 64)  # a single case
        self.measure("two.json", 2, "--tokens", 64, "--schedule", "ring", "helper-worker", "--layout", "contiguous", "zigzag")
        result = self.join(self.path("one.json"), self.path("two.json"), self.path("two.json"), "--csv", self.path("x.csv"), "--html", self.path("x.html"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("x.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        two = self.read_json("two.json")
        cases = {(r["schedule"], r["layout"], r["ranks"]) for r in rows}
        self.assertEqual(cases, {("ring", "zigzag", "1")} | {(c["config"]["schedule"], c["config"]["layout"], "2") for c in two["cases"]})
        self.assertEqual(len(rows), 2 * len(cases))  # each once, forward and backward
        zigzag = next(r for r in rows if r["ranks"] == "2" and r["layout"] == "zigzag" and r["pass"] == "forward")
        ring = next(r for r in rows if (r["schedule"], r["layout"], r["ranks"], r["pass"]) == ("ring", "contiguous", "2", "forward"))
        self.assertAlmostEqual(float(zigzag["measured_speedup"]), float(ring["seconds"]) / float(zigzag["seconds"]), places=4)
        with open(self.path("x.html")) as file:
            page = file.read()
        self.assertIn("<svg", page)  # strong scaling from one rank to two
        self.assertIn("<h2>Unsupported</h2>" if two["unsupported"] else "<h2>All cases</h2>", page)

    def test_says_what_it_cannot_join(self):
        self.measure("one.json", 1, "--tokens", 64)
        one = self.path("one.json")
        self.refused("give --csv, --html or both", one)
        with open(self.path("other.json"), "w") as file:
            json.dump(dict(self.read_json("one.json"), git_hash="0123456789ab"), file)
        self.refused("other.json was written by the build 0123456789ab", one, self.path("other.json"), "--csv", self.path("x.csv"))
        for version in (2, 4):
            with open(self.path("version.json"), "w") as file:
                json.dump(dict(self.read_json("one.json"), format_version=version), file)
            self.refused(f"version.json has format_version {version}", self.path("version.json"), "--csv", self.path("x.csv"))
        with open(self.path("torn.json"), "w") as file:
            file.write('{"program": "annulus-bench att')
        for number, change in enumerate((lambda case: case.pop("config"), lambda case: case["config"].update(overlap="yes"), lambda case: case["topology"].update(ranks=0), lambda case: case["forward"].update(seconds="long"))):
            case, name = self.read_json("one.json"), f"case{number}.json"
            change(case)
            with open(self.path(name), "w") as file:
                json.dump(case, file)
            self.refused(f"{name}' holds ", self.path(name), "--csv", self.path("x.csv"))
        with open(self.path("deep.json"), "w") as file:
            file.write('{"a":' * 100000)
        self.refused("deep.json' is nested more than", self.path("deep.json"), "--csv", self.path("x.csv"))
        self.refused("torn.json' is no JSON from byte", self.path("torn.json"), "--csv", self.path("x.csv"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
