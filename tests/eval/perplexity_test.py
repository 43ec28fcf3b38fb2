"""annulus-eval perplexity of small models: over ranks, by position, side by side, and what it writes.

usage: perplexity_test.py PROGRAM-FOLDER MPIRUN
"""

import json
import sys
import unittest
import xml.etree.ElementTree

from programs import MPIRUN, Evaluation, of, small_run

CONFIGURATION = small_run(data={"sequence_length": 128}, train={"steps": 6, "lr": 1e-2, "warmup_steps": 1, "validate_sequences": 0}, checkpoint={"every": 6})

SELECTION = "vertical-slash:verticals=6,slashes=1,window=20"


class Perplexity(Evaluation):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write("run.toml", CONFIGURATION)
        for name, sequences in (("one", 40), ("two", 20)):  # validation leaves out what is behind the last whole one
            cls.write(f"{name}.txt", "".join(f"line {i * i % 97} of {name}\n" for i in range(1000))[:128 * sequences])
        cls.write("short.txt", "too short")
        for name in ("one", "two", "short"):
            cls.succeeds(of("tokens"), "pack", "--out", cls.file(name), cls.file(f"{name}.txt"))
        cls.train("dense")
        cls.train("sparse", f"attention.sparsity={SELECTION}")

    @classmethod
    def train(cls, run, *settings):
        sets = (f"run.folder={cls.file(run)}", f"data.shards={cls.file('one')}", f"data.validation={cls.file('two')}", *settings)
        cls.succeeds(of("train"), cls.file("run.toml"), "--set", *sets)

    def perplexity(self, *options, ranks=1):
        launcher = [*MPIRUN, str(ranks)] if ranks > 1 else []
        self.succeeds(*launcher, of("eval"), "perplexity", *options, "--json", self.file("out.json"), "--set", "run.device=cpu")
        return self.read_json("out.json")["evaluations"]

    def test_is_the_loss_of_the_runs_validation(self):
        for run, selection in (("dense", ""), ("sparse", SELECTION)):
            with open(self.file(run, "metrics.jsonl"), encoding="utf-8") as file:
                last = [json.loads(line) for line in file][-1]["validation"]["validation"]
            for ranks in (1, 3):
                got, = self.perplexity(self.file(run), "--shards", self.file("two"), ranks=ranks)
                self.assertEqual((got["length"], got["windows"], got["step"], got["ranks"], got["sparsity"]), (128, 20, 6, ranks, selection))
                self.assertAlmostEqual(got["loss"] / last["loss"], 1, delta=1e-6)
                self.assertEqual(got["targets"], last["targets"])
                self.assertEqual(sum(bucket["targets"] for bucket in got["by_position"]), got["targets"])

    def test_models_by_selections(self):
        models = [self.file("dense"), self.file("sparse")]
        options = ("--shards", self.file("one"), "--shards", self.file("two"), "--stride", "100", "--windows", "5")
        for file in ("out.csv", "out.html"):
            options += ("--" + file[4:], self.file(file))
        all = self.perplexity(*models, *options, "--sparsity", "dense", "--sparsity", SELECTION)
        self.assertEqual([(e["model"], e["sparsity"]) for e in all], [(m, s) for m in models for s in ("", SELECTION)])
        self.assertEqual(len({e["loss"] for e in all}), 4)
        self.assertEqual([float(r["loss"]) for r in self.read_csv("out.csv") if not r["before_from"]], [e["loss"] for e in all])
        page = xml.etree.ElementTree.parse(self.file("out.html")).getroot()
        text = "".join(page.itertext())
        for e in all:
            self.assertIn(f"{e['loss']:.4f}", text)
        self.assertEqual(len(page.findall(".//{http://www.w3.org/2000/svg}rect[@class='cell']")), 4)

    def test_what_is_wrong_is_named(self):
        on = ("perplexity", self.file("dense"), "--shards")
        self.refused([((*on, self.file("short")), "128 tokens"), ((*on, self.file("one"), "--length", "-1"), "--length is -1", "or 0"),
                      ((*on, self.file("one"), "--csv", self.file("both"), "--json", self.file("both")), "--csv", "--json"), ((*on, self.file("one"), "--sparsity", ""), "--sparsity", "empty"),
                      ((*on, self.file("one"), "--sparsity", "some"), "some"), ((*on, self.file("one"), "--set", "model.layer=2"), "model.layers"),
                      ((*on, self.file("one"), "--json", self.file("no", "folder.json")), "folder")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
