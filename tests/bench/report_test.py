"""annulus-bench report: what several runs found, in one table and one page.

usage: report_test.py PROGRAM MPIRUN [MPIRUN FLAG...]. Exit status 77 means skipped (no h5py).
"""

import os
import subprocess
import sys
import unittest

import support
from support import PROGRAM, run

SMALL = ["--heads", 2, "--head-dim", 16, "--repetitions", 1, "--warm-up", 0]


class Report(support.InFolder):
    def case(self, name, ranks, *arguments):
        self.measure("attention", [*SMALL, *arguments], ranks)
        os.rename(self.path("m.json"), self.path(name))

    def join(self, *arguments):
        return subprocess.run([PROGRAM, "report", *arguments], capture_output=True, text=True, timeout=60, env=support.environment())

    def cannot_join(self, text, *files):
        result = self.join(*map(self.path, files), "--csv", self.path("x.csv"))
        self.assertEqual(result.returncode, 1)
        self.assertIn(text, result.stderr)

    def test_joins_runs_on_other_numbers_of_ranks(self):
        self.case("one.json", 1, "--tokens", 64)  # a single case
        self.case("two.json", 2, "--tokens", 64, "--schedule", "ring", "helper-worker", "--layout", "contiguous", "zigzag")
        result = self.join(self.path("one.json"), self.path("two.json"), self.path("two.json"), "--csv", self.path("x.csv"), "--html", self.path("x.html"))
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = self.read_csv("x.csv")
        two = self.read_json("two.json")
        cases = {(r["schedule"], r["layout"], r["ranks"]) for r in rows}
        self.assertEqual(cases, {("ring", "zigzag", "1")} | {(c["config"]["schedule"], c["config"]["layout"], "2") for c in two["cases"]})
        self.assertEqual(len(rows), 2 * len(cases))  # each once, forward and backward
        zigzag = next(r for r in rows if r["ranks"] == "2" and r["layout"] == "zigzag" and r["pass"] == "forward")
        ring = next(r for r in rows if (r["schedule"], r["layout"], r["ranks"], r["pass"]) == ("ring", "contiguous", "2", "forward"))
        self.assertAlmostEqual(float(zigzag["measured_speedup"]), float(ring["seconds"]) / float(zigzag["seconds"]), places=4)
        page = self.read("x.html")
        self.assertIn("<svg", page)  # strong scaling from one rank to two
        self.assertIn("<h2>Unsupported</h2>" if two["unsupported"] else "<h2>All cases</h2>", page)

    def test_says_what_it_cannot_join(self):
        self.case("one.json", 1, "--tokens", 64)
        result = self.join(self.path("one.json"))
        self.assertEqual((result.returncode, "--csv" in result.stderr), (1, True))
        one = self.read_json("one.json")
        self.write_json("other.json", one | {"git_hash": "0123456789ab"})
        self.cannot_join("other.json was written by the build 0123456789ab", "one.json", "other.json")
        for version in (2, 4):
            self.write_json("version.json", one | {"format_version": version})
            self.cannot_join(f"version.json has format_version {version}", "version.json")
        for change in (lambda case: case.pop("config"), lambda case: case["config"].update(overlap="yes"), lambda case: case["topology"].update(ranks=0),
                       lambda case: case["forward"].update(seconds="long")):
            case = self.read_json("one.json")
            change(case)
            self.write_json("case.json", case)
            self.cannot_join("case.json' holds ", "case.json")
        for name, text, error in (("torn", '{"program": "annulus-bench att', "is no JSON from byte"), ("deep", '{"a":' * 100000, "is nested more than")):
            self.write(name + ".json", text)
            self.cannot_join(f"{name}.json' {error}", name + ".json")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
