"""annulus-report and TensorBoard on a run that was stopped and went on, and on another one.

usage: report_test.py REPORT TRAIN TOKENS TEXT (a folder of text)
"""

import json
import os
import shutil
import sys
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from in_folder import InFolder, program, small_run  # noqa: E402

REPORT, TRAIN, TOKENS, TEXT = sys.argv[1:5]

CONFIGURATION = small_run(data={"sequence_length": 64}, train={"warmup_steps": 2}, checkpoint={"every": 10, "keep": 9})

SVG = "{http://www.w3.org/2000/svg}"


class Report(InFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write("run.toml", CONFIGURATION)
        cls.succeeds(TOKENS, "pack", "--out", cls.file("shards"), TEXT)
        cls.train("first", steps=30, schedule_steps=40)
        cls.train("first", steps=40, schedule_steps=40)
        cls.train("other", "--set", f"data.validation=['{cls.file('shards')}', 'own={cls.file('shards')}']", "--set", "data.validation_length=3000",
                  steps=40, lr=1e-3, validate_every=10, validate_sequences=2, parts_every=20)
        cls.train("quiet", "--set", "run.tensorboard=false", steps=2)

    @classmethod
    def train(cls, run, *options, **keys):
        sets = [part for key, value in keys.items() for part in ("--set", f"train.{key}={value}")]
        cls.succeeds(TRAIN, cls.file("run.toml"), "--set", f"run.folder={cls.file(run)}", "--set", f"data.shards={cls.file('shards')}", *sets, *options)

    def records(self, run):
        return [json.loads(line) for line in self.read(run, "metrics.jsonl").splitlines()]

    def page(self, *runs):
        text = self.succeeds(REPORT, *map(self.file, runs), "--html", self.file("page.html"))
        return text, self.elements("page.html")

    def elements(self, page):
        return ElementTree.fromstring(self.read(page).replace("<!DOCTYPE html>", ""))

    def charts(self, page):
        return {chart.find(f".//{SVG}text[@class='title']").text: chart for chart in page.iter(f"{SVG}svg")}

    def test_one_run_with_its_restart_and_its_checkpoints(self):
        text, page = self.page("first")
        losses = [record["loss"] for record in self.records("first")]
        self.assertIn(f"{sum(losses[:10]) / 10:.3f} to {sum(losses[-10:]) / 10:.3f}", text)
        self.assertIn("40 optimizer steps", text)
        charts = self.charts(page)
        loss = charts["loss (nats per token)"]
        self.assertEqual(len(loss.findall(f".//{SVG}polyline")), 2)  # raw and smoothed
        marks = [mark.find(f"{SVG}title").text for mark in loss.findall(f".//{SVG}line[@class='mark']")]
        self.assertEqual(sorted(marks), sorted(["first: went on after step 30", *(f"first: checkpoint of step {step}" for step in (10, 20, 30, 40))]))
        self.assertIn("learning rate", charts)
        self.assertNotIn("model FLOPs utilization (%)", charts)  # run.peak_tflops is not stated
        cells = ["".join(cell.itertext()) for cell in page.iter("td")]
        self.assertIn("total", cells)

    def test_a_skipped_step_leaves_a_gap(self):
        records = self.records("first")
        records[4].update(loss=None, grad_norm=None, not_finite="the loss of optimizer step 5 is not finite")
        os.makedirs(self.file("skipped"))
        self.write("skipped/metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        text, page = self.page("skipped")
        losses = [record["loss"] for record in records[:10] if record["loss"] is not None]
        self.assertIn(f"{sum(losses) / 9:.3f} to ", text)
        raw = self.charts(page)["loss (nats per token)"].findall(f".//{SVG}polyline")[0]
        self.assertEqual(len(raw.get("points").split()), 39)

    def test_runs_side_by_side(self):
        text, page = self.page("first", "other")
        self.assertEqual(len(text.splitlines()), 3)
        self.assertEqual(len(self.charts(page)["loss (nats per token)"].findall(f".//{SVG}polyline")), 4)
        rows = {row[0].text: [cell.text for cell in row[1:]] for row in page.iter("tr")}
        self.assertEqual([float(value) for value in rows["train.lr"]], [3e-4, 1e-3])
        self.assertNotIn("run.folder", rows)
        self.assertNotIn("model.layers", rows)

    def test_validation_over_steps_and_by_position(self):
        text, page = self.page("first", "other")
        validated = {record["step"]: record["validation"] for record in self.records("other") if "validation" in record}
        self.assertEqual(list(validated), [10, 20, 30, 40])
        self.assertEqual(validated[40]["own"], validated[40]["validation"], "two sets of the same shards")
        self.assertIn(f"{validated[40]['own']['loss']:.3f} (own)", text.splitlines()[1])
        self.assertNotIn("(own)", text.splitlines()[0])
        charts = self.charts(page)
        self.assertEqual(len(charts["validation loss (nats per token)"].findall(f".//{SVG}polyline")), 2)
        by_position = [title for title in charts if title.startswith("validation loss by")]
        self.assertEqual(len(charts[by_position[0]].findall(f".//{SVG}polyline")), 2)
        self.assertEqual(json.loads(self.read("other", "summary.json"))["validation"], validated[40])

    def test_time_by_part(self):
        parts = {}
        timed = [record["parts"] for record in self.records("other") if "parts" in record]
        self.assertEqual(len(timed), 2)
        for name, row in self.parts("first", "other").items():
            self.assertEqual(row[0], "–")
            parts[name.replace(" ", "_")] = float(row[1].split("(")[1].split()[0])
        self.assertEqual(set(parts), set(timed[0]) | set(timed[1]))
        self.assertAlmostEqual(sum(parts.values()), 100, delta=1)
        self.assertEqual(self.parts("first"), {})

    def parts(self, *runs):
        """Cells of the table, by part."""
        _, page = self.page(*runs)
        tables = [[["".join(cell.itertext()) for cell in row] for row in table.iter("tr")] for table in page.iter("table")]
        return {row[0]: row[1:] for table in tables if table[0][0] == "part of a step" for row in table[1:]}

    def test_density_and_recall_of_runs_that_select_pairs(self):
        selection = ["density, share of the pairs that are computed", "recall, share of the probability that the selected pairs hold"]
        self.assertFalse(set(selection) & set(self.charts(self.page("first", "other")[1])))
        shutil.copytree(self.file("first"), self.file("sparse"))
        records = [record | {"attention_density": 0.25} | ({"attention_recall": 0.75} if record["step"] % 10 == 0 else {}) for record in self.records("first")]
        self.write("sparse/metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        charts = self.charts(self.page("first", "sparse")[1])
        self.assertEqual([len(charts[title].findall(f".//{SVG}polyline")) for title in selection], [2, 1])

    def test_audits_of_attention(self):
        self.train("audited", "--set", "attention.sparsity=vertical-slash:verticals=4,slashes=1,window=8", "--set", "sparsity.audit_every=10", "--set", "model.layers=2", steps=30)
        audits = [json.loads(line) for line in self.read("audited", "attention.jsonl").splitlines()]
        self.assertEqual([audit["step"] for audit in audits], [10, 20, 30])
        charts = self.charts(self.page("audited")[1])
        for key, chart in (("recall", "recall, step 30"), ("entropy", "entropy, step 30 (nats)"), ("gradient_recall", "gradient recall, step 30")):
            cells = [float(text.text) for text in charts[chart].findall(f".//{SVG}text[@class='value']")]
            values = [value for layer in audits[-1]["layers"] for value in layer[key]]
            self.assertEqual(len(cells), 4)
            for cell, value in zip(cells, values):
                self.assertAlmostEqual(cell, value, delta=6e-3)
        curves = charts["recall of heads, share of the probability that the selected pairs hold"].findall(f".//{SVG}polyline")
        self.assertEqual([len(curve.get("points").split()) for curve in curves], [3, 3, 3])
        pictures = [f"{what}, step {step}, layer {layer}, head {layer}" for what in ("weights P", "gradients |dS|") for step in (10, 30) for layer in (0, 1)]
        for title in pictures:
            drawn = sum(path.get("d").count("z") for path in charts[title].findall(f".//{SVG}path"))
            self.assertGreater(drawn, 32)
            self.assertLessEqual(drawn, 32 * 33 // 2, "blocks of keys behind their queries have no colour")
        self.assertFalse([title for title in self.charts(self.page("first")[1]) if "entropy" in title])
        self.write("audited/attention.jsonl", '{"step": 10}\n')
        self.assertIn("attention.jsonl", program(REPORT, self.file("audited")).stderr)

    def test_tables_of_the_scripts_that_compare(self):
        self.write("a.md", "4 ranks, bf16;\nmore of it\n\n| case | ms | note |\n|---|---|---|\n| ring <b> | 1.5 | |\n| burst | 2 |\n\n### One\n\n| x |\n|---|\n")
        self.write("b.md", "### Two\n\n| y |\n|---|\n| 7 |\n")
        self.succeeds(REPORT, "--tables", self.file("a.md"), self.file("b.md"), "--html", self.file("tables.html"))
        page = self.elements("tables.html")
        rows = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
        self.assertEqual(rows, [["case", "ms", "note"], ["ring <b>", "1.5", ""], ["burst", "2", ""], ["x"], ["y"], ["7"]])
        self.assertEqual(["".join(heading.itertext()) for heading in page.iter("h2")], ["One", "Two"])
        self.assertIn("4 ranks, bf16; more of it", ["".join(text.itertext()) for text in page.iter("p")])
        for text, said in (("no table\n", "there is no table"), ("| a |\n", "cut off"), ("| a |\n|---|\n| 1 | 2 |\n", "c.md:3: a row of 2 cells")):
            self.write("c.md", text)
            self.assertIn(said, program(REPORT, "--tables", self.file("c.md"), "--html", self.file("tables.html")).stderr)
        for options, said in ((["--tables", self.file("b.md")], "--html"), ([], "give the folder of a run"), (["--tables", self.file("none.md"), "--html", "x.html"], "none.md")):
            self.assertIn(said, program(REPORT, *options).stderr)

    def test_what_is_no_run_is_named(self):
        os.makedirs(self.file("broken"))
        self.write("broken/metrics.jsonl", '{"step": 1}\n')
        for folder, said in (("shards", "metrics.jsonl"), ("nowhere", "nowhere"), ("broken", "metrics.jsonl")):
            result = program(REPORT, self.file(folder))
            self.assertEqual(result.returncode, 1)
            self.assertIn(said, result.stderr)

    def changed_run(self, change):
        """A run of one step's record, which `change` has changed."""
        os.makedirs(self.file("changed"), exist_ok=True)
        record = self.records("quiet")[-1]
        change(record)
        self.write("changed/metrics.jsonl", json.dumps(record) + "\n")
        return program(REPORT, self.file("changed"), "--html", self.file("changed.html"))

    def test_records_that_cannot_be_drawn_are_named(self):
        for key, value in (("step", 10**20), ("step", -1), ("step", 1.5), ("tokens", "many"), ("validation", {"own": {"loss": 1, "by_position": {"far": {"loss": 1}}}})):
            with self.subTest(key=key, value=value):
                result = self.changed_run(lambda record: record.update({key: value}))
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn("metrics.jsonl', line 1: ", result.stderr)
                self.assertIn("by_position" if key == "validation" else key, result.stderr)
        self.assertEqual(self.changed_run(lambda record: record.update(step=2**53)).returncode, 0)
        result = self.changed_run(lambda record: record.update(loss=None))
        self.assertIn("The loss is not finite in the first 1 steps in 2 optimizer steps", result.stdout)
        self.assertNotIn("nan", result.stdout)

    def test_a_page_takes_the_place_of_no_file_of_a_run(self):
        metrics = self.read("quiet", "metrics.jsonl")
        for page in (("quiet", "metrics.jsonl"), ("quiet", "checkpoints", "..", "config.toml")):
            result = program(REPORT, self.file("other"), self.file("quiet"), "--html", self.file(*page))
            self.assertEqual(result.returncode, 1)
            self.assertIn("is a file of the run", result.stderr)
        self.assertEqual(self.read("quiet", "metrics.jsonl"), metrics)
        for _ in range(2):
            self.succeeds(REPORT, self.file("quiet"), "--html", self.file("quiet", "report.html"))

    def test_tensorboard_reads_the_same_numbers(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("no tensorboard (pip install tensorboard)")
        events = EventAccumulator(self.file("first"))
        events.Reload()
        records = self.records("first")
        for tag, key in (("train/loss", "loss"), ("train/lr", "lr"), ("train/tokens", "tokens")):
            scalars = events.Scalars(tag)
            self.assertEqual([scalar.step for scalar in scalars], [record["step"] for record in records])
            for scalar, record in zip(scalars, records):
                self.assertAlmostEqual(scalar.value, record[key], delta=1e-6 * abs(record[key]))
        self.assertIn("peak_memory_bytes/total", events.Tags()["scalars"])
        events = EventAccumulator(self.file("other"))
        events.Reload()
        validated = {record["step"]: record["validation"] for record in self.records("other") if "validation" in record}
        for tag, value in (("validation/own/loss", lambda of: of["loss"]),
                           ("validation/own/by_position/1024/loss", lambda of: of["by_position"]["1024"]["loss"])):
            got = {scalar.step: scalar.value for scalar in events.Scalars(tag)}
            self.assertEqual(list(got), list(validated))
            for step, of in validated.items():
                self.assertAlmostEqual(got[step], value(of["own"]), delta=1e-5)

    def test_without_tensorboard(self):
        self.assertFalse([name for name in os.listdir(self.file("quiet")) if "tfevents" in name])
        self.assertTrue([name for name in os.listdir(self.file("first")) if "tfevents" in name])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
