"""apps/compare/papers.py and data/papers: every entry is complete, every model is accepted, and cheap entries are predicted, and one
measured, by the real programs on the host's cores.
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree
from unittest import mock

from common import MPIRUN, PROGRAMS, ROOT, InFolder

import attention
import launch
import papers
import training

OF_A_ROW = {"case", "keys", "model", "ranks", "tokens", "over", "refused", "selection", "steps"}
TINY = ["model.vocabulary=257", *(f"model.{key}={value}" for key, value in (("layers", 1), ("hidden", 32), ("heads", 2), ("kv_heads", 2), ("head_dim", 16),
                                                                             ("ffn", 32)))]


class Data(unittest.TestCase):
    def each(self, check):
        for (form, key), entry in papers.entries().items():
            with self.subTest(entry=f"{form} {key}"):
                check(form, entry)

    def test_every_entry_has_its_source_page_setting_and_units(self):
        def check(form, entry):
            self.assertIn(form, ("table", "figure", "claim"))
            self.assertIn(entry["kind"], ("measured", "predicted", "both"))
            self.assertIn(entry["predictor"], papers.PREDICTORS)
            for text in (entry["paper"]["title"], entry["paper"]["source"], entry["paper"]["pages"], entry["page"], entry["setting"]):
                self.assertGreater(len(text), 3)
            for column in entry["columns"]:
                self.assertTrue(column["name"] and column["unit"] and bool(column.get("quantity")) != bool(column.get("refused")), column)
            self.assertTrue((entry["folder"] / entry["cluster"]).is_file())

        self.each(check)

    def test_rows_name_columns_and_cases_of_their_entry(self):
        def check(_, entry):
            columns, named = {column["name"] for column in entry["columns"]}, [row["case"] for row in entry["rows"]]
            self.assertEqual(len(set(named)), len(named))
            for row in entry["rows"]:
                self.assertLessEqual(set(row), OF_A_ROW | columns, row)
                if not row.get("refused"):
                    self.assertTrue((entry["folder"] / row.get("model", entry["model"])).is_file())
                    selection = row.get("selection", entry.get("selection", ""))
                    self.assertTrue(selection == "" or isinstance(selection, float) or (entry["folder"] / selection).is_file(), row)
                    self.assertGreater(row.get("ranks", entry.get("ranks", 0)), 0, row)
                    self.assertTrue(entry["predictor"] == "longest" or row.get("tokens", entry.get("tokens", 0)) > 0, row)
            for other in [part.get(name) for part in entry["columns"] + entry["rows"] for name in ("over", "minus")]:
                self.assertIn(other, [None, *named])

        self.each(check)

    def test_numbers_are_in_the_paper_or_it_is_a_chart(self):
        def check(form, entry):
            printed = [row[column["name"]] for row in entry["rows"] for column in entry["columns"] if column["name"] in row]
            if form != "figure" and (entry["name"], entry["predictor"]) != ("5", "imbalance"):  # MTraining's table has lost its numbers
                self.assertTrue(printed)
            elif not printed:
                self.assertTrue(entry.get("read_off") or "without their numbers" in entry["notes"])

        self.each(check)

    def test_parts_are_timed_where_they_are_shown(self):
        def check(_, entry):
            shown = {column.get("quantity") for column in entry["columns"]} & {"attention_share", "communication_overhead"}
            self.assertTrue(not shown or "train.parts_every=1" in entry["keys"])

        self.each(check)

    ALL_ROWS = argparse.Namespace(asked_ranks=0, asked_steps=0, tokens=131072, all_keys=[], nodes=1, hosts=1, cluster=None, model=None, rows="")

    def test_mfu_is_of_the_card_that_the_cluster_file_has(self):
        entry = papers.entries()["table", "burstengine:2"]
        other = argparse.Namespace(**vars(self.ALL_ROWS) | {"cluster": ROOT / "data" / "clusters" / "h200.toml", "peak_tflops": 989.4})
        self.assertEqual({case.peak for case in papers.cases(self.ALL_ROWS, entry)}, {312})
        self.assertEqual({case.peak for case in papers.cases(other, entry)}, {989.4})

    def test_two_steps_of_a_row_with_audits_are_timed(self):
        audited = [(case, int(key.partition("=")[2])) for entry in papers.entries().values() for case in papers.cases(self.ALL_ROWS, entry)
                   for key in case.keys if key.startswith("sparsity.audit_every=")]
        self.assertGreater(len(audited), 10)
        for case, every in audited:
            self.assertGreaterEqual(case.steps, every, f"{case.case}: no step has an audit")
            self.assertGreaterEqual(case.steps - case.steps // every - 1, 2, case.case)  # the first one is not counted

    def test_keys_of_every_row_are_those_of_a_configuration(self):
        keys = {(f"data.sequence_length={case.tokens}", *case.keys, *case.against) for entry in papers.entries().values() for case in papers.cases(self.ALL_ROWS, entry) if not case.refused}
        self.assertGreater(len(keys), 20)
        for some in keys:
            result = subprocess.run([PROGRAMS / "annulus-train", papers.PAPERS / "models" / "llama-7b.toml", "--print-config", *launch.settings(some)],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, f"{some}: {result.stderr}")

    def test_every_model_is_accepted(self):
        models = sorted((papers.PAPERS / "models").glob("*.toml"))
        self.assertGreaterEqual(len(models), 11)
        for model in models:
            result = subprocess.run([PROGRAMS / "annulus-train", model, "--plan-memory", "--ranks", "8", "--set", "data.sequence_length=8192"],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, f"{model}: {result.stderr}")


class Tables(InFolder):
    def start(self, *arguments, status=0):
        """Rows of the CSV by (entry, case, quantity), and what the program prints."""
        command = [sys.executable, papers.__file__, "--train", PROGRAMS / "annulus-train", "--out", self.folder / "out", *arguments]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual(result.returncode, status, result.stderr)
        if status == 2:
            return {}, result.stderr
        self.assertEqual((self.folder / "out.md").read_text(), result.stdout)
        with open(self.folder / "out.csv", newline="") as file:
            return {(row["entry"], row["case"], row["quantity"]): row for row in csv.DictReader(file)}, result.stdout

    def test_predicts_without_mpi_and_data(self):
        rows, text = self.start("--predict", "--table", "distflashattn:helper", "burstattention:volume", "--mpirun", "no-mpirun")
        self.assertRegex(text, "^Annulus git [^,]+, [-0-9]+\n\n### ", "no card predicts")
        idle = lambda case: rows["claim distflashattn:helper", case, "idle"]  # noqa: E731
        for ranks in (4, 8, 16):  # the last rank has P - 1/2 blocks to compute, all together P²/2
            self.assertAlmostEqual(float(idle(f"ring, P = {ranks}")["predicted"]), 100 * (ranks - 1) / (2 * ranks - 1), delta=0.2)
        self.assertLess(float(idle("helper-worker, P = 7")["predicted"]), 0.1)
        self.assertEqual(idle("ring, P = 8")["paper"], "43.75")
        volume = {(case, quantity): row for (entry, case, quantity), row in rows.items() if entry.endswith("volume")}
        for case, quantity, tensors in (("RingAttention", "forward", 2), ("RingAttention", "backward", 4), ("BurstAttention", "backward", 3 + 2 / 128)):
            self.assertAlmostEqual(float(volume[case, quantity]["predicted"]), 7 / 8 * tensors, delta=1e-6)
        refused = volume["Tensor parallelism (Megatron-V3)", "total"]
        self.assertEqual((refused["predicted"], refused["measured"]), ("", ""))
        self.assertIn("| 8 | refused: Annulus has no tensor parallelism | – |\n", text)
        self.assertEqual(len(json.loads((self.folder / "out.json").read_text())["rows"]), 8 + 3)

    def test_a_page_of_the_tables(self):
        rows, text = self.start("--predict", "--html", "--table", "distflashattn:helper", "burstattention:volume")
        page = xml.etree.ElementTree.parse(self.folder / "out.html").getroot()
        tables = page.findall(".//table")
        self.assertEqual(len(tables), 2)
        cells = [["".join(cell.itertext()) for cell in row.findall("td")] for table in tables for row in table.find("tbody").findall("tr")]
        self.assertEqual(len(cells), len(rows))
        for row in cells:
            self.assertIn("| " + " | ".join(row) + " |\n", text)
        self.assertIn("distflashattn:helper", "".join(page.find(".//h2").itertext()))
        self.assertNotIn("http://", (self.folder / "out.html").read_text().replace("http://www.w3.org", ""), "needs nothing else")

    def test_ranges_of_guessed_rates_and_ratios(self):
        rows, text = self.start("--predict", "--range", "--table", "distflashattn:checkpoints", "--set", "model.layers=2")
        step = lambda case: [float(rows["claim distflashattn:checkpoints", case, "step"][f"predicted{bound}"]) for bound in ("_low", "", "_high")]  # noqa: E731
        slow, usual, fast = step("Hugging Face")
        self.assertTrue(slow > usual > fast)
        speedup = rows["claim distflashattn:checkpoints", "at attention's output", "speedup"]
        self.assertAlmostEqual(float(speedup["predicted"]), usual / step("at attention's output")[1], places=6)
        self.assertIn("rates of a100.toml (guessed)", text)
        self.assertIn("Predicted and measured with --set model.layers=2;", text)

    def test_against_is_the_time_of_the_other_keys_over_that_of_the_row(self):
        rows, _ = self.start("--predict", "--table", "striped:2", "--tokens", 16384, "--set", "model.layers=1")
        for number, case in enumerate(("1B, 2×4, 262144", "3B, 2×4, 262144", "7B, 2×4, 262144"), 1):
            striped, contiguous = (json.loads((self.folder / "out-runs" / f"table-striped-2-{number}-usual{other}.json").read_text()) for other in ("", "-against"))
            self.assertEqual((striped["layout"], contiguous["layout"]), ("striped", "contiguous"))
            speedup = float(rows["table striped:2", case, "speedup"]["predicted"])
            self.assertAlmostEqual(speedup, contiguous["configured"]["seconds"] / striped["configured"]["seconds"], places=9)
            self.assertGreater(speedup, 1)

    def test_a_table_fits_the_gpus_at_hand(self):
        rows, text = self.start("--predict", "--table", "burstengine:5", "--ranks", 4, "--tokens", 65536, "--model", ROOT / "data/llama-1b.toml", "--rows", "of [128]")
        self.assertEqual({case for _, case, _ in rows}, {"groups of 1, 32K", "groups of 2, 64K", "groups of 8, 256K"})
        self.assertIn("the row divides its ranks (4) by 8: raise --ranks", rows["table burstengine:5", "groups of 1, 32K", "TGS"]["predicted_note"])
        for number, context, tokens in ((2, 1, 16384), (3, 4, 65536)):
            report = json.loads((self.folder / f"out-runs/table-burstengine-5-{number}-usual.json").read_text())
            self.assertIn(f"\ncontext = {context}\n", report["config"])
            self.assertEqual((report["tokens"], report["ranks"], "hidden = 2048\n" in report["config"]), (65536, 4, True), "of all groups together")
            self.assertIn(f"\nsequence_length = {tokens}\n", report["config"])
        self.assertIn("with --model llama-1b.toml --ranks 4 --tokens 65536;", text)

    def test_longest_is_that_of_the_planner(self):
        options, (case, *_) = self.of("table", "distflashattn:longest", "--predict", "--ranks", 2, "--set", "model.layers=1", "model.vocabulary=1024",
                                  refused=False)
        case.gpu_memory = "16GiB"
        found = papers.longest(options, case, case.cluster, self.folder / "longest")["longest"] * 1024
        _, good = launch.measured([options.program, case.model, "--plan-memory", "--longest", "--ranks", 2, "--ranks-per-node", 2, "--gpu-memory", "16GiB",
                                   *launch.settings(case.keys), "--json"], self.folder / "planner", 60)
        self.assertTrue(good)
        planner = json.loads((self.folder / "planner.json").read_text())["longest"]
        (most,) = [one["tokens"] for one in planner if one["outline"] == "selective, chunks of 4096"]
        self.assertIn(found, papers.LENGTHS)
        self.assertTrue(found <= most < 2 * found, (found, most))
        case.gpu_memory = "1GiB"
        self.assertEqual(papers.longest(options, case, case.cluster, self.folder / "longest"), {"longest": 0})

    def test_imbalance_of_recorded_selections(self):
        selection = self.folder / "lines.h5"
        subprocess.run(list(map(str, [PROGRAMS / "annulus-bench", "attention", "--inputs", "vertical-slash", "--sparsity", "vertical-slash:verticals=64,slashes=5",
                                      "--tokens", 8192, "--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--pass", "forward", "--cluster", "none", "--warm-up", 0,
                                      "--repetitions", 1, "--dump", selection])), check=True, capture_output=True)
        rows, _ = self.start("--predict", "--table", "mtraining:5", "--figure", "mtraining:12", "--tokens", 8192, "--ranks", 4, "--selection", selection)
        degree = lambda case, level: float(rows["table mtraining:5", case, f"{level}-level"]["predicted"])  # noqa: E731
        over = lambda case, level: float(rows["figure mtraining:12", case, f"{level}-level"]["predicted"])  # noqa: E731
        flat, zigzag = "MTraining w/o Hierarchical", "MTraining w/ Zigzag"
        for level in ("worker", "step"):
            self.assertAlmostEqual(over("w/o Hierarchical, over MTraining", level), degree(flat, level) / degree("MTraining", level), places=9)
            self.assertAlmostEqual(over("w/ Zigzag, over w/o Hierarchical", level), degree(zigzag, level) / degree(flat, level), places=9)
        self.assertAlmostEqual(degree("Dense", "worker"), 1, places=6)
        self.assertTrue(1 < degree(flat, "worker") < degree(zigzag, "worker"))
        # That of data/papers is of the rows' tokens and heads.
        options, cases = self.of("table", "mtraining:5", "--predict")
        (case,) = [case for case in cases if case.case == flat]
        self.assertTrue(1 <= papers.imbalance(options, case, case.cluster, self.folder / "shipped")["worker_imbalance"] < 1.05)

    def test_what_does_not_fit_and_what_is_refused_is_told(self):
        rows, _ = self.start("--predict", "--table", "mtraining:5", "burstengine:2", "--tokens", 16777216, "--ranks", 8, "--set", "model.layers=2",
                             "--selection", self.folder / "none.h5", status=1)  # a program failed
        self.assertIn("none.h5", rows["table mtraining:5", "MTraining", "worker-level"]["predicted_note"])
        self.assertRegex(rows["table burstengine:2", "none", "memory"]["predicted_note"], r"lacks [\d.]+ GiB")

    def test_unknown_names_are_refused_with_the_known_ones(self):
        for option, name, known in (("--table", "burstengine:9", "burstengine:2, burstengine:3"), ("--figure", "burstengine:3", "burstengine:12")):
            _, errors = self.start("--predict", option, name, status=2)
            self.assertIn(f"{option} {name}: data/papers has ", errors)
            self.assertIn(known, errors)
        _, errors = self.start("--table", "burstengine:5", status=2)
        self.assertIn("--shards", errors)
        for option, value, said in (("--rows", "groups of 9", "finds no row of burstengine:5"), ("--rows", "[", "unterminated"), ("--ranks", -1, "give 1 or more"), ("--steps", -1, "give 1 or more"),
                                    ("--tokens", -5, "give 1 or more"), ("--cluster", self.folder / "none.toml", "is no file"), ("--nodes", 3, "cannot be dealt to 3 nodes")):
            _, errors = self.start("--predict", "--table", "burstengine:5", *(["--ranks", 8] if option == "--nodes" else []), option, value, status=2)
            self.assertIn(f"error: {'--ranks' if option == '--nodes' else option} ", errors)
            self.assertIn(said, errors)

    def test_predictions_that_the_budget_leaves_out_are_a_failure(self):
        rows, _ = self.start("--predict", "--table", "burstengine:3", "--budget", 1, status=1)
        self.assertIn("the budget was spent", rows["table burstengine:3", "causal", "TGS"]["predicted_note"])
        self.start("--predict", "--table", "burstengine:3", "--rows", "^causal", "--set", "model.layers=1", "--continue", "missing")

    def here(self):
        """Options of measurements on two ranks of this machine's cores."""
        shards = self.folder / "shards"
        subprocess.run([PROGRAMS / "annulus-tokens", "pack", "--out", shards, ROOT / "data/fixture/text"], check=True, capture_output=True)
        return ["--shards", shards, "--device", "cpu", "--gpus", 2, "--tokens", 128, "--mpirun", shlex.join(MPIRUN), "--ranks", 2, "--set", *TINY]

    def of(self, form, key, *arguments, refused=True):
        """The options and cases of one entry; without those that papers.py refuses where `refused` is false."""
        command = ["papers.py", "--train", PROGRAMS / "annulus-train", "--out", self.folder / "out", f"--{form}", key, *arguments]
        with mock.patch.object(sys, "argv", list(map(str, command))):
            options = papers.parse()
        (entry,) = options.entries
        return options, [case for case in papers.cases(options, entry) if refused or not case.refused]

    def test_a_steps_parts_give_attentions_share_and_what_it_waits(self):
        options, (*_, case) = self.of("figure", "burstengine:2", *self.here())
        found, good = papers.measure(options, case, self.folder / "run")
        self.assertTrue(good, found)
        records = training.records(self.folder / "run" / "metrics.jsonl")[1:case.steps]
        spent = [sum(record["parts"].get(f"attention{part}", 0) for part in ("", "_backward", "_recompute")) for record in records]
        share = 100 * sum(spent) / sum(sum(record["parts"].values()) for record in records)
        self.assertTrue(0 < share < 100)
        self.assertAlmostEqual(found["usual"]["attention_share"], share, places=6)
        waited = sum(record["least_exposed_communication_seconds"] for record in records)
        self.assertAlmostEqual(found["usual"]["communication_overhead"], 100 * waited / (sum(spent) - waited), places=6)

    def test_against_is_measured_in_a_second_run(self):
        (entry,) = [entry for key, entry in papers.entries().items() if key == ("table", "striped:2")]
        options = argparse.Namespace(predict=False, ranks=4, asked_ranks=0, asked_steps=0, tokens=0, all_keys=[], nodes=1, hosts=1, cluster=None, model=None, rows="", end=float("inf"), budget=float("inf"), time_limit=9)
        case = next(papers.cases(options, entry))

        def annulus(here, tokens, name, keys, folder):
            layout = [key for key in keys if key.startswith("attention.layout=")][-1]
            return {"seconds": [9.0, 3.0 if layout.endswith("contiguous") else 2.0], "tokens_per_step": tokens, "arrays": 2e9}, True
        with mock.patch.object(training, "annulus", annulus):
            found, good = papers.measure(options, case, self.folder / "run")
        self.assertEqual((found["usual"]["against"], found["usual"]["seconds"], good), (1.5, 2.0, True))

    def test_measures_rows_of_as_many_ranks_as_there_are(self):
        rows, text = self.start(*self.here(), "--table", "distflashattn:checkpoints", "--steps", 2)
        for case, quantity in (("Hugging Face", "step"), ("at attention's output", "speedup")):
            self.assertGreater(float(rows["claim distflashattn:checkpoints", case, quantity]["measured"]), 0)
        self.assertRegex(text, "^2 ranks on CPU, Annulus git .*\n\nPredicted and measured with .* --steps 2 ")
        for row in json.loads((self.folder / "out.json").read_text())["rows"]:
            self.assertEqual([len(run["seconds"]) for run in row["measured"]["usual"]["rows"]], [2])
        options = argparse.Namespace(predict=False, ranks=2)
        case = argparse.Namespace(refused="", kind="both", predictor="step", ranks=32)
        self.assertEqual(papers.measure(options, case, self.folder), ({"refused": "32 ranks, 2 here: --ranks 2 takes these"}, True))

    def test_attention_is_measured_by_its_bench(self):
        (entry,) = [entry for key, entry in papers.entries().items() if key == ("figure", "burstengine:14")]
        options = argparse.Namespace(predict=False, ranks=32, asked_ranks=0, asked_steps=0, tokens=0, all_keys=[], nodes=4, cluster=None, model=None, rows="", program=PROGRAMS / "annulus-train",
                                     device="gpu", end=float("inf"), budget=float("inf"), time_limit=9)
        for case, name in zip(papers.cases(options, entry), ("ring", "double-ring", "hybrid:8x4", "topology-burst"), strict=True):
            def ours(here, nodes, stem, name=name, **_):
                self.assertEqual((here.schedules, here.heads, here.head_dim, here.tokens, nodes), ([name], 40, 128, [1048576], 4))
                self.assertEqual(here.layout, "striped" if name == "topology-burst" else "zigzag")
                ranks = [{"forward": {"seconds": {"median": seconds}, "exposed_communication_share": 0.5}} for seconds in (2.0, 1.0)]
                return {"forward": {"seconds": 2.0}, "backward": {"seconds": 4.0}, "ranks": ranks}, True, [(1048576, name, {}, "")]
            with mock.patch.object(attention, "ours", ours):
                found, good = papers.measure(options, case, self.folder)
            self.assertEqual((found["usual"]["seconds"], found["usual"]["idle"], good), (6.0, 62.5, True))

    def test_what_ranks_send_is_what_the_plan_says(self):
        rows, _ = self.start(*self.here(), "--table", "burstattention:volume", "distflashattn:volume", "--tokens", 256)
        for entry, case in (("burstattention", "RingAttention"), ("burstattention", "BurstAttention"), ("distflashattn", "DistFlashAttn")):
            for quantity in ("forward", "backward", "total"):
                row = rows[f"claim {entry}:volume", case, quantity]
                self.assertAlmostEqual(float(row["measured"]), float(row["predicted"]), places=9, msg=row)

    def test_imbalance_and_the_parts_of_a_sparse_attention_are_measured(self):
        rows, _ = self.start(*self.here(), "--table", "mtraining:5", "mtraining:4", "--tokens", 2048)
        degree = lambda case, level="worker-level": float(rows["table mtraining:5", case, level]["measured"])  # noqa: E731
        self.assertAlmostEqual(degree("Dense"), 1, places=3)
        self.assertGreater(degree("MTraining w/ Zigzag"), 1)
        self.assertTrue(0 < degree("MTraining", "step-level compute ratio") <= 100)
        ours = {quantity: float(row["measured"]) for (entry, case, quantity), row in rows.items() if entry.endswith("mtraining:4") and case.startswith("Naive") and row["measured"]}
        for name in ("forward", "backward"):
            self.assertTrue(0 < 2 * ours[f"{name}: a chunk"] <= ours[name], ours)
        self.assertTrue(0 < ours["forward: indexing"] < ours["forward"], ours)

    def test_sparse_steps_show_what_training_shows(self):
        options, found = self.of("table", "mtraining:steps", *self.here(), "--tokens", 2048, "--rows", "^128K: (dense, zig|.*block)")
        names = ("128K: dense, zigzag", "128K: vertical-slash, block-striped")
        rows = []
        self.assertEqual([(case.case, case.tokens) for case in found], [(name, 2048) for name in names])
        for case in found:
            measured, good = papers.measure(options, case, self.folder / f"run-{len(rows)}")
            self.assertTrue(good, measured)
            rows.append({"entry": "mtraining:steps", "form": "claim", "case": case.case, "predicted": {"refused": "not here"}, "measured": measured})
        sparse = rows[1]["measured"]["usual"]["rows"][0]
        self.assertTrue(0 < sparse["density"] < 0.2 and 0 < sparse["recall"] <= 1 and min(sparse["imbalance"]) >= 1, sparse)
        self.assertEqual(len(sparse["seconds"]), 3, "the audited step is not timed")
        text = papers.markdown(options, rows, [])
        self.assertIn(f"| {100 * sparse['density']:.2f} %, recall {sparse['recall']:.3f}, imbalance ", text)
        self.assertIn("rates of h200.toml (guessed where it says so)", text)
        total = sum(sparse["parts"].values())
        self.assertRegex(text, rf"\| 2048 \| {names[1]} \| {total:.3f} \|")
        step = sum(sparse["seconds"][1:]) / 2
        self.assertLessEqual(total, step * 1.001, "the mean of the ranks' steps")
        self.assertGreater(total, step / 2)

    def test_goes_on_where_a_command_ended(self):
        here, entry = self.here(), "claim distflashattn:checkpoints"
        first, _ = self.start(*here, "--table", "distflashattn:checkpoints")
        self.start(*here, "--table", "distflashattn:checkpoints", status=2)
        again, _ = self.start(*here, "--table", "distflashattn:checkpoints", "--continue", "missing")
        self.assertEqual((again, list((self.folder / "out-runs-2").glob("*.log"))), (first, []))
        written = json.loads((self.folder / "out.json").read_text())
        written["rows"][0]["measured"] = {"refused": "not run: 3 s of the budget were left"}
        (self.folder / "out.json").write_text(json.dumps(written))
        again, _ = self.start(*here, "--table", "distflashattn:checkpoints", "--continue", "missing")
        self.assertEqual(again[entry, "at attention's output", "step"]["measured"], first[entry, "at attention's output", "step"]["measured"])
        self.assertNotEqual(again[entry, "Hugging Face", "step"]["measured"], "")
        both, text = self.start(*here, "--table", "distflashattn:checkpoints", "--continue", "all")
        step = both[entry, "Hugging Face", "step"]
        least, middle, most = (float(step[name]) for name in ("measured_low", "measured", "measured_high"))
        self.assertTrue(least < middle < most)
        self.assertAlmostEqual(middle, (least + most) / 2)
        self.assertIn(f"{middle:.4g} ({least:.4g} to {most:.4g})", text)

    def test_steps_that_the_budget_does_not_suffice_for_are_left_to_the_next_command(self):
        options, (case, *_) = self.of("table", "distflashattn:checkpoints", *self.here(), "--budget", 30)
        self.assertEqual(case.steps, 3)
        options.end = time.monotonic() + 20
        found, good = papers.measure(options, case, self.folder / "run", 9)
        self.assertRegex(found["refused"], "^not run: ")
        self.assertFalse(good)
        found, good = papers.measure(options, case, self.folder / "run", 11)  # no command of 30 s has time for it: it is tried
        self.assertTrue(good, found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
