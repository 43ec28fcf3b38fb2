"""annulus-eval prefill: times of models with random weights by length, schedule and ranks.

usage: prefill_test.py PROGRAM-FOLDER MPIRUN
"""

import sys
import unittest

from programs import MPIRUN, Evaluation, of, small_run

CONFIGURATION = small_run(model={"vocabulary": 100, "kv_heads": 2}, memory={"recompute": "auto"})


class Prefill(Evaluation):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write("run.toml", CONFIGURATION)

    def test_all_cases_are_measured_or_say_why_not(self):
        table = self.succeeds(*MPIRUN, "3", of("eval"), "prefill", "--config", self.file("run.toml"), "--length", "64", "1k", "--schedule", "ring",
                              "hybrid:2x1", "--ranks", "1", "2", "3", "--repetitions", "2", "--set", "attention.layout=striped", "memory.chunk_rows=100",
                              "--json", self.file("out.json"), "--csv", self.file("out.csv"), "--html", self.file("out.html"))
        cases = self.read_json("out.json")["cases"]
        self.assertEqual([(c["ranks"], c["tokens"], c["schedule"]) for c in cases],
                         [(r, t, s) for r in (1, 2, 3) for t in (64, 1024) for s in ("ring", "hybrid:2x1")])
        for case in cases:
            self.assertEqual("unsupported" in case, case["schedule"] == "hybrid:2x1" and case["ranks"] != 2, case)
            if "seconds" in case:
                self.assertGreater(case["seconds"]["median"], 0)
                self.assertEqual((case["layout"], case["seconds"]["repetitions"]), ("striped", 2))
                self.assertAlmostEqual(case["tokens_per_second"] * case["seconds"]["median"] / case["tokens"], 1)
        self.assertEqual(len(self.read_csv("out.csv")), 8)
        self.assertEqual(table.count("hybrid:2x1 "), 6, table)
        with open(self.file("out.html"), encoding="utf-8") as file:
            self.assertEqual(file.read().count("<circle"), 8)

    def test_what_is_wrong_is_named(self):
        config = ("prefill", "--config", self.file("run.toml"), "--length", "64")
        self.refused([(("prefill", "--length", "64"), "--config"), ((*config, "--set", "model.vocabulary=0"), "model.vocabulary"),
                      ((*config, "--ranks", "2"), "--ranks 2"), ((*config, "--schedule", "rings"), "attention.schedule")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
