"""extension.py, matrix.py, quality.py and sparse_training.py: models that train and are evaluated."""

import contextlib
import io
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import unittest
from unittest import mock
from xml.etree import ElementTree

from common import MPIRUN, PROGRAMS, ROOT, InFolder

import extension
import launch
import matrix
import quality
import sparse_training


class Matrix(InFolder):
    def test_trains_and_evaluates_each_by_each(self):
        (self.folder / "tiny.toml").write_text("[run]\ndevice = 'cpu'\n[model]\nlayers = 1\nhidden = 32\nheads = 2\nkv_heads = 2\nhead_dim = 16\nffn = 32\n"
                                               "[data]\nsequence_length = 128\n[train]\nsteps = 2\nwarmup_steps = 1\n")
        shards, samples, pattern = self.folder / "shards", self.folder / "samples", "vertical-slash:verticals=6,slashes=1,window=20"
        subprocess.run([PROGRAMS / "annulus-tokens", "pack", "--out", shards, ROOT / "data/fixture/text"], check=True, capture_output=True)
        subprocess.run([PROGRAMS / "annulus-eval", "make", "--out", samples, "--terse", "--lengths", "128", "--depths", "0.5", "--samples", "2", "--shards", shards],
                       check=True, capture_output=True)
        command = [sys.executable, matrix.__file__, "--train", PROGRAMS / "annulus-train", "--mpirun", shlex.join(MPIRUN), self.folder / "tiny.toml",
                   "--set", f"data.shards={shards}", "--shards", shards, "--attention", "dense", pattern, "--ranks", "1",
                   "--samples", samples, "--runs", self.folder / "runs", "--out", self.folder / "out"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(f"| {pattern} |"), 5, done.stdout)
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        self.assertEqual([[(used, one["sparsity"], len(one["samples"])) for used, one in row["retrieval"].items()] for row in rows],
                         [[("dense", "", 2), (pattern, pattern, 2)]] * 2)
        losses = [one["loss"] for row in rows for one in row["perplexity"].values()]
        self.assertEqual(len(set(losses)), 4)
        for loss in losses:
            self.assertIn(f" {loss:.4f} |", done.stdout)
        # The files of the rows are enough to go on from; one that lacks is measured again, and another command takes none of them.
        of_dense, of_pattern = (matrix.file_of(mock.Mock(runs=self.folder / "runs"), attention) for attention in ("dense", pattern))
        shutil.rmtree(of_dense.with_suffix(""))
        of_pattern.unlink()
        again = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((again.returncode, again.stdout), (0, done.stdout), again.stderr)
        self.assertEqual([line.count("run.folder=") for line in again.stderr.splitlines() if "annulus-train" in line], [1])
        other = subprocess.run([*map(str, command), "--windows", "1", "--budget", "0"], capture_output=True, text=True)
        self.assertEqual((other.returncode, "the budget is spent" in other.stderr), (1, True), other.stdout)


class Quality(unittest.TestCase):
    """Of models whose answers are made up."""

    @staticmethod
    def rows(answers):
        """Of one seed, with the same answers whatever the evaluation, of which there is one more than models."""
        evaluations = [*answers, "xattention"]
        samples = lambda of: [{"tokens": 64 + 64 * (i % 2), "depth": i % 3 / 2, "correct": one} for i, one in enumerate(of)]  # noqa: E731
        buckets = [{"from": up_to // 2, "up_to": up_to, "loss": 2.0, "targets": 9} for up_to in (64, 128, 256)]
        run = [{"step": i, "loss": 3.0 - 0.1 * i, "step_seconds": 0.5, "attention_density": 0.25, "attention_imbalance": {}} for i in range(1, 9)]
        return [{"attention": name, "follows from": {"program": "annulus-train 1"}, "run": run, "retrieval": {used: {"samples": samples(of)} for used in evaluations},
                 "perplexity": {used: {"loss": 2.0, "by_position": buckets} for used in evaluations}} for name, of in answers.items()]

    def test_intervals(self):
        self.assertEqual([[round(end, 3) for end in launch.interval(*of)] for of in ((0, 10), (98, 100), (10, 10))], [[0, 0.278], [0.93, 0.994], [0.722, 1]])

    def test_tells_a_miss_from_too_few_samples(self):
        dense, right = [True] * 600, lambda of: [True] * of + [False] * (600 - of)  # noqa: E731
        found = {of: quality.of_dense({1: self.rows({"dense": dense, "moba": right(of)})}, "moba") for of in (600, 590, 540, 0)}
        self.assertIsNone(found.pop(0))
        self.assertEqual({of: quality.verdict(ratio) for of, ratio in found.items()}, {600: "reached", 590: "not told by so few samples", 540: "missed"})
        self.assertAlmostEqual(found[590][0], 590 / 600)
        self.assertLess(found[590][1], 0.98)

    def test_pools_seeds_and_draws_what_is_there(self):
        rows = {1: self.rows({"dense": [True] * 12, "moba": [True] * 6 + [False] * 6}), 2: self.rows({"dense": [True] * 12, "moba": [False] * 12})[:1]}
        text = quality.markdown(["dense", "moba", "xattention"], rows)
        share = lambda of: f"{sum(of) / len(of):.3f} ({'–'.join(f'{end:.3f}' for end in launch.interval(sum(of), len(of)))})"  # noqa: E731
        self.assertIn(f"| dense | all | all | 0.500 | 2.0000 | {share([1] * 12)} | {share([1] * 12)} | {share([1] * 24)} |", text)
        self.assertIn(f"| moba | all | 25.0 % | 0.500 | 2.0000 | {share([1] * 3 + [0] * 3)} | {share([1] * 3 + [0] * 3)} | {share([1] * 6 + [0] * 6)} | 0.500 (", text)
        self.assertIn("98% of dense with moba: missed", text)
        self.assertIn("Missing: moba of seed 2; xattention of seed 1; xattention of seed 2.", text)
        with tempfile.TemporaryDirectory() as folder:
            quality.draw(["dense", "moba", "xattention"], rows).write(pathlib.Path(folder) / "picture.svg")
            drawn = ElementTree.parse(pathlib.Path(folder) / "picture.svg").getroot()
        words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
        self.assertEqual([words.count(word) for word in ("dense", "moba", "xattention", "samples answered, 95 % intervals")], [1, 1, 0, 2])
        with_intervals = 2 * 2 + 2 * 3  # of each attention, by two lengths and three depths
        self.assertEqual(sum(element.get("stroke-width") == "1" and element.get("stroke") in quality.COLORS for element in drawn.iter()), with_intervals)


class Audits(InFolder):
    """Records that are made up: of two layers with three heads, in three optimizer steps."""

    def audited(self, attention):
        layer = lambda step, number: {  # noqa: E731
            "layer": number, "selects": attention != "dense", "density": [0.1, 0.2, 0.30004], "recall": [0.5, None, step / 10], "entropy": [1, 2, 3 + number],
            "gradient_recall": [0.25] * 3, "pattern": {"head": number, "block": 8, "weights": [[0.123456, 0], [0.5, 0.5]], "gradients": [[0, 0], [step / 100, 0.5]]}}
        (self.folder / "attention.jsonl").write_text("".join(json.dumps({"step": step, "layers": [layer(step, 0), layer(step, 1)]}) + "\n" for step in (2, 4, 6)))
        return quality.audits(attention, self.folder)

    def test_keeps_the_first_and_the_last(self):
        found = {"program": "annulus-train 1", "runs": [self.audited("dense"), self.audited("moba:block=8,top=1")]}
        self.assertEqual(json.loads(quality.in_lines(found)), found)
        run = found["runs"][1]
        self.assertEqual([(audit["step"], audit["recall"]) for audit in run["audits"]], [(step, [[0.5, None, step / 10]] * 2) for step in (2, 6)])
        self.assertEqual(run["audits"][0]["density"][0], [0.1, 0.2, 0.3])
        self.assertEqual(run["pattern"], {"layer": 1, "head": 1, "block": 8, "weights": [[0.12, 0], [0.5, 0.5]], "gradients": [[[0, 0], [0.02, 0.5]], [[0, 0], [0.06, 0.5]]]})
        text = quality.audits_table(found)
        self.assertIn("| dense | 2 | all | all | all | 2.167 (1.000–4.000) |", text)
        self.assertIn("|  | 6 | 0.200 (0.100–0.300) | 0.550 (0.500–0.600) | 0.250 (0.250–0.250) | 2.167 (1.000–4.000) |", text)

    def test_draws_all_heads_and_what_docs_show(self):
        found = {"program": "", "runs": [self.audited("dense"), self.audited("moba:block=8,top=1")]}
        quality.pictures.draw_audits(found).write(self.folder / "picture.svg")
        maps = [element for element in ElementTree.parse(self.folder / "picture.svg").getroot().iter() if element.tag.endswith("}g")]
        self.assertEqual(len(maps), (2 + 3) + (6 + 3), "entropy and pictures of the dense run, all of the other one")
        cells = lambda of: {tuple(map(int, cell)) for way in of for cell in re.findall(r"M(\d+) (\d+)h(\d+)", way.get("d"))}  # noqa: E731
        self.assertEqual(cells(maps[0]), {(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 1)})
        self.assertEqual(cells(maps[7]), {(0, 0, 1), (2, 0, 1), (0, 1, 1), (2, 1, 1)}, "recall that is not finite has no cell")
        self.assertEqual(cells(maps[-1]), {(0, 1, 1), (1, 1, 1)}, "pairs without a gradient have none")
        docs = quality.pictures.sparse_audits()
        docs.write(self.folder / "docs.svg")
        self.assertEqual((self.folder / "docs.svg").read_text(), (ROOT / "docs/pictures/sparse-audits.svg").read_text(), "python3 src/driver/docs/pictures.py docs/pictures")
        with mock.patch.object(quality.pictures, "ROOT", self.folder):
            page = self.folder / "docs/benchmarks/sparse-training.md"
            page.parent.mkdir(parents=True)
            page.with_name("sparse-audits.json").write_text(quality.in_lines(found))
            page.write_text(quality.audits_table(found))
            quality.pictures.sparse_audits()
            page.write_text(page.read_text().replace("2.167", "2.166", 1))
            self.assertRaises(SystemExit, quality.pictures.sparse_audits)

    def test_refuses_what_audits_do_not_go_with(self):
        argv = ["", "--train", sys.executable, "--mpirun", "env", "--out", str(self.folder / "out"), "--audit-every"]
        for wrong in (["3", "--seeds", "1"], ["3", "--attention", "dense"], ["451", "--seeds", "1", "--attention", "dense"],
                      ["3", "--seeds", "1", "--attention", "dense", "--asked", "2"], ["0", "--seeds", "1", "--attention", "dense"]):
            with self.subTest(wrong), mock.patch.object(sys, "argv", argv + wrong), contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertRaises(SystemExit, extension.parse)
                self.assertIn("--audit-every", said.getvalue())
        with mock.patch.object(sys, "argv", [*argv, "450", "--seeds", "1", "--attention", "dense"]):
            self.assertEqual(extension.parse().audit_every, 450)


class Extension(InFolder):
    def test_trains_twice_and_evaluates_both(self):
        text = self.folder / "text"
        text.mkdir()
        for i in range(8):
            (text / f"{i}.txt").write_text(f"{i} makes a text, long enough to be read in windows. " * 160)
        tiny = ["model.layers=1", "model.hidden=16", "model.heads=1", "model.kv_heads=1", "model.head_dim=16", "model.ffn=16"]
        command = [sys.executable, extension.__file__, "--train", PROGRAMS / "annulus-train", "--mpirun", shlex.join(MPIRUN), "--text", text, "--seeds", 3,
                   "--ranks", 1, "--scale", 0.001, "--runs", self.folder / "runs", "--out", self.folder / "out", "--set", *tiny]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((done.returncode, "Missed: seed 3, after: recall" in done.stdout), (1, True), done.stderr)
        written = json.loads((self.folder / "out.json").read_text())
        self.assertEqual([(row["seed"], row["model"]) for row in written["rows"]], [(3, "before"), (3, "after")])
        self.assertEqual((self.folder / "out.html").read_text().count("<iframe"), 2)
        self.assertNotEqual(*(row["loss"] for row in written["rows"]))
        # The runs up to the longer context are there: that one is learned with each attention.
        pattern = "moba:block=64,top=2"
        command += ["--attention", "dense", pattern, "--asked", 2]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads((self.folder / "out.json").read_text())["rows"]["3"]
        self.assertEqual([[one["sparsity"] for one in row["perplexity"].values()] for row in rows], [["", pattern]] * 2)
        self.assertEqual([len(one["samples"]) for row in rows for one in row["retrieval"].values()], [2 * 4 * len(extension.DEPTHS)] * 4)
        self.assertEqual(done.stdout.count(f"| {pattern} | all |"), 1, done.stdout)
        self.assertIn("loss by position", (self.folder / "out.svg").read_text())
        # Or it is learned on text alone, and looked at.
        done = subprocess.run([*map(str, command[:command.index("--attention")]), "--attention", pattern, "--audit-every", "1"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.count(f"| {pattern} | 1 | 0.")), (0, 1), done.stderr)
        self.assertIn("recall, 0 to 1", (self.folder / "out.svg").read_text())
        with open(self.folder / "runs/seed-3-audited/moba-block-64-top-2/config.toml", "rb") as config:
            self.assertEqual(tomllib.load(config)["data"]["shards"], [str(self.folder / "runs/text")])
        run, = json.loads((self.folder / "out.json").read_text())["runs"]
        self.assertGreater(min(sum(row) for row in run["pattern"]["gradients"][0][1:]), 0, "all queries have a gradient")

    def test_seeds_side_by_side_have_gpus_of_their_own(self):
        together, seen = threading.Barrier(2, timeout=20), {}

        def rows_of_seed(options, seed, samples):
            seen[seed] = options.visible
            if seed < 3:
                together.wait()  # until the other one has started, too
            if seed == 2:
                sys.exit(1)
            return [f"{samples} of {seed}"], True

        options = mock.Mock(groups=launch.groups_of(list("45678"), 2), seeds=[1, 2, 3])
        self.assertEqual(options.groups, ["4,5", "6,7"])
        with mock.patch.object(extension, "rows_of_seed", rows_of_seed):
            found = extension.rows_of_seeds(options, "samples")
        self.assertEqual(found, {1: (["samples of 1"], True), 2: ([], False), 3: (["samples of 3"], True)})
        self.assertEqual({seen[1], seen[2]}, {"4,5", "6,7"})
        self.assertTrue(launch.run(["bash", "-c", "echo $CUDA_VISIBLE_DEVICES"], self.folder / "log", 20, gpus="4,5")[0])
        self.assertEqual((self.folder / "log").read_text(), "4,5\n")
        with mock.patch.object(extension, "rows_of_seed", lambda options, seed, samples: ([options.visible], True)):
            options.groups = [None]
            self.assertEqual(extension.rows_of_seeds(options, "samples")[1], ([None], True), "one seed at a time has what this program sees")
        argv = ["", "--train", sys.executable, "--mpirun", "env", "--out", str(self.folder / "out"), "--size", "100m", "--ranks", "2", "--at-once"]
        with mock.patch.object(launch, "visible_gpus", lambda parser: list("4567")), contextlib.redirect_stderr(io.StringIO()) as said:
            with mock.patch.object(sys, "argv", [*argv, "2"]):
                self.assertEqual(extension.parse().groups, ["4,5", "6,7"])
            with mock.patch.object(sys, "argv", [*argv, "3"]):
                self.assertRaises(SystemExit, extension.parse)
        self.assertIn("--at-once 3 with 2 ranks each, but programs see 4 GPUs", said.getvalue())

    def test_tells_which_limits_are_missed(self):
        small = extension.SIZES["small"]

        def evaluations(beyond, far_answers):
            text = {"by_position": [{"from": at, "loss": 2.0 if at < 512 else beyond, "targets": at} for at in (128, 256, 512, 1024, 2048)]}
            samples = [{"tokens": length, "depth": depth, "correct": (1 - depth) * length <= 1024 or far_answers} for length in small.lengths() for depth in extension.DEPTHS]
            return text, {"samples": samples}

        short = {"seed": 1, "model": "before", **extension.figures(small, *evaluations(2.5, False))}
        long = {"seed": 1, "model": "after", **extension.figures(small, *evaluations(2.0, True))}
        self.assertEqual((short["recall, far"], short["recall"][1024], short["recall"][4096], long["recall, far"]), (0, 1, 0.4, 1))
        self.assertAlmostEqual(short["loss, far / near"], 1.25)
        self.assertEqual(extension.missed([short, long]), [])
        self.assertEqual(len(extension.missed([short | {"model": "after"}, long | {"model": "before"}])), 4)


class SparseTraining(InFolder):
    def compare(self, dense, sparse):
        for name, records in (("dense", dense), ("sparse", sparse)):
            (self.folder / name).mkdir()
            (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return subprocess.run([sys.executable, sparse_training.__file__, self.folder / "dense", self.folder / "sparse",
                               "--last", "10"], capture_output=True, text=True)

    def test_compares(self):
        dense = [{"step": s, "loss": 2 + 10 / s, "attention_density": 1, "step_seconds": 1} for s in range(1, 101)]
        sparse = [dict(r, loss=1.01 * r["loss"]) for r in dense]
        for r in sparse[20:]:
            r.update(attention_density=0.25, attention_imbalance={}, step_seconds=0.5)
            if r["step"] % 10 == 0:
                r["attention_recall"] = 0.5 if r["step"] <= 50 else 0.75
        done = self.compare(dense, sparse)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 91 to 100 |", done.stdout)
        self.assertIn("| +1.00 % | 0.250 | 0.750 | 1.00, 0.50 |", done.stdout)

    def test_refuses_other_steps(self):
        record = {"loss": 1, "attention_density": 1, "step_seconds": 1}
        done = self.compare([dict(record, step=1), dict(record, step=2)], [dict(record, step=1)])
        self.assertEqual(done.returncode, 1)
        self.assertIn("(2 and 1)", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
