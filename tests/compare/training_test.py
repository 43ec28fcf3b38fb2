"""Scripts that train: training.py, auto.py, saving.py, fixed_order.py and same_bits.py."""

import argparse
import contextlib
import datetime
import io
import itertools
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from common import MPIRUN, PROGRAMS, ROOT, SCRIPTS, OnTheHost, option

import auto
import fixed_order
import launch
import same_bits
import saving
import training


class Training(OnTheHost):
    def test_cases_run_and_one_that_fails_leaves_the_others(self):
        result = self.train(training, "--tokens", 64, "--steps", 3, "--case", "wrong: memory.recompute=nothing", "groups: parallel.context=1 memory.recompute=full")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("'nothing' is unknown", result.stderr)
        self.assertIn("| 64 | Annulus | wrong | failed |", result.stdout)
        _, row = self.rows()
        self.assertEqual((len(row["losses"]), row["tokens_per_step"], row["attention"]), (3, 128, 2), "two groups read a sequence each")
        self.assertRegex(result.stdout, rf"\| 2\.00 \| {row['slowest']:.3f} \|", "slowest rank")
        self.assertEqual(self.train(training, "--tokens", 64).returncode, 2, "records of earlier runs are not taken for new ones")

    def test_steps_are_compared_with_what_a_cluster_file_allows(self):
        cluster = self.folder / "measured.toml"
        command = ["--tokens", 64, "--steps", 2, "--case", "full: memory.recompute=full", "--cluster", cluster]

        def bench(options, ranks, what, stem, **words):
            self.assertEqual((options.program.name, what, ranks[-2:]), ("annulus-bench", "links", ["-n", 2]))
            self.assertEqual([words[name] for name in ("heads", "kv_heads", "head_dim", "ranks_per_node", "rows", "output")], [4, 2, 32, 2, [16, 32], cluster])
            cluster.write_text((ROOT / "data/clusters/h200.toml").read_text())
            return {}, True
        argv = [training.__file__, "--train", PROGRAMS / "annulus-train", "--shards", "none", "--device", "cpu", "--gpus", 2, "--model", ROOT / "data/demo.toml",
                "--mpirun", shlex.join(MPIRUN), "--out", self.folder / "rates", *command]
        with mock.patch.object(sys, "argv", list(map(str, argv))), mock.patch.object(launch, "bench", bench):
            options = training.parse()
            training.measure_rates(options)
        expected = training.predicted(options, 64, ["memory.recompute=full", "model.layers=1", "model.vocabulary=257"])["predicted_seconds"]
        result = self.train(training, *command)
        self.assertEqual(result.returncode, 0, result.stderr)
        (row,) = self.rows()
        self.assertEqual(row["predicted_seconds"], expected)
        self.assertIn(f"| {100 * expected / row['seconds'][1]:.1f} % |", result.stdout)
        result = self.train(training, *command, "--tokens", 64, 128, "--continue", "missing")
        self.assertEqual((result.returncode, [each["tokens"] for each in self.rows()]), (0, [64, 128]), result.stderr)
        self.assertEqual(self.rows()[0], row, "it is not measured again")

    def test_a_killed_run_goes_on_and_is_compared(self):
        result = self.train(saving, "--tokens", 64, "--every", 40, "--case", "copy:")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertTrue(result.stdout.startswith("2 ranks on CPU, Annulus git "), result.stdout)
        (row,) = self.rows()
        self.assertEqual(len(row["bits"][0]), 2, "steps that both runs made")
        self.assertEqual(int(min(row["bits"][0])) % 40, 1, "from the one behind a checkpoint")
        self.assertRegex(result.stdout, r"\| copy \| 64 \| .* MB \| .* MB/s \| .* \| 2 steps: yes \|")
        self.assertFalse(list(self.folder.glob("out-runs/*/checkpoints")), "room for the next")
        self.assertIn("2 steps: no", saving.cells(mock.Mock(compare=2), row | {"same": False}))

    def test_pytorch_beside_it_and_ranks_in_turns(self):
        def run(command, log, seconds, enough):
            if "--out" not in command:
                return False, 0
            pathlib.Path(option(command, "--out")).write_text(json.dumps({"seconds": [9.0, 2.0, 2.0], "losses": [10.0] * 3, "arrays": 72 * 2**30, "flops": 989.4e12}))
            return True, 63 * 2**30
        status, text, _ = self.start(training, "--shards", "text", "--tokens", 1024, "--gpus", 2, "--case", "none:", "--pytorch", "full", run=run)
        self.assertEqual((status, text.splitlines()[5]), (1, "| 1024 | PyTorch | full | 256 | 2.00 (2.00 to 2.00) | 25.0 % |  | 72.0 | 63.0 |  |  |  |"))
        command = " ".join(map(str, training.train_command(mock.Mock(ranks=4, nodes=2, device="gpu", mpirun=["mpirun"]), self.folder, [])))
        self.assertRegex(command, r"NCCL_HOSTID=node.*parallel.ranks_per_node=2 --set parallel.transport=nccl")
        refusals = ((["--case", "full"], "--case 'full'"), (["--gpus", 5], "--gpus 5"), (["--steps", 0], "--steps 0"), (["--nodes", 3], "--nodes 3"),
                    (["--ranks", 4, "--gpus", 2], "--nodes 2 or more"), (["--config", "none.toml"], "none.toml"),
                    (["--pytorch", "full", "--nodes", 2], "--pytorch runs on one node"))
        self.refused(training, [(["--shards", "text", *arguments], text, {}) for arguments, text in refusals])

    def test_tables_name_card_and_build_and_cards_are_not_mixed(self):
        def annulus(options, tokens, name, keys, folder):
            return {"tokens": tokens, "program": "Annulus", "case": name, "seconds": [9.0, 2.0], "tokens_per_step": tokens}, True
        command, today = ["--shards", "text", "--tokens", 1024, "--continue", "missing"], str(datetime.date.today())
        with mock.patch.object(training, "annulus", annulus):
            status, text, _ = self.start(training, *command, "--gpus", 2, "--case", "none:")
            self.assertEqual((status, text.splitlines()[:2]), (0, [f"2 × NVIDIA H200, Annulus git abc, {today}", ""]))
            self.assertEqual(self.rows()[0]["made"], {"git_hash": "abc", "date": today, "card": "NVIDIA H200", "gpus": 2})
            written = json.loads((self.folder / "out.json").read_text())
            for made, line in (({"git_hash": "old", "date": "2026-01-02"}, "2 × NVIDIA H200, Annulus git old, 2026-01-02"), (None, "build and card not recorded")):
                written["rows"][0]["made"] = written["rows"][0]["made"] | made if made else {}
                (self.folder / "out.json").write_text(json.dumps(written))
                status, text, _ = self.start(training, *command, "--gpus", 2, "--case", "none:", "full:")
                self.assertEqual((status, text.splitlines()[:4]), (0, [f"{line}: 1024 Annulus none", "", f"2 × NVIDIA H200, Annulus git abc, {today}: 1024 Annulus full", ""]))
            status, _, errors = self.start(training, *command, "--gpus", 4, "--case", "none:")
        self.assertEqual(status, 2)
        self.assertIn("out.json has rows of 2 × NVIDIA H200, and this is 4 × NVIDIA H200: give another --out", errors)

    def test_auto_is_compared_with_the_fastest_variant_of_each_policy_that_fits(self):
        def policy(name, seconds, fits, rows=0):
            memory = dict.fromkeys(auto.KEYS, 0) | {"recompute": [name], "chunk_rows": rows, "offload_optimizer": False}
            return {"memory": memory, "outline": name, "seconds": seconds, "fits": fits, "predicted_peak_bytes": {"device": {"total": 50 * 2**30}}}
        policies = [policy("none", 1.0, False), policy("selective", 1.25, True), policy("selective", 1.25, True, 4096), policy("full", 2.0, True)]
        plan = lambda command: {"configured": policies[1 if option(command, "--gpu-memory") == "80GiB" else 0], "policies": policies}  # noqa: E731
        took = {"selective": 1.25, "full": 2.0}

        def annulus(options, tokens, name, keys, folder):
            return {"tokens": tokens, "case": name, "seconds": [9.0, took[name.removeprefix("auto: ")]], "arrays": 60 * 2**30}, True
        for full, status, inside in ((2.0, 0, 1), (1.0, 3, 0)):
            took["full"] = full
            with mock.patch.object(training, "annulus", annulus):
                result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--runs", self.folder / f"{full}", report=plan)
            self.assertEqual(result, status)
            self.assertIn(f"| llama-7b | 4096 | 80GiB | auto: selective | 1.250 | 1.250 | 1.000 | 50.00 | 60.00 | {1.25 / min(took.values()):.3f} |\n", text)
            self.assertTrue(text.startswith("1 × NVIDIA H200, Annulus git abc, "), text)
            self.assertIn(f"within 5% of it in {inside} of 1 settings. One session: noise is not known.", text)
        took |= {"selective": 1.5, "full": 1.47}  # the last session measured full alone at 1.0 and is joined by one more
        with mock.patch.object(training, "annulus", annulus):
            result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--continue", "all", report=plan)
        self.assertIn("| auto: selective | 1.250 | 1.375 (1.250 to 1.500) | 1.100 | 50.00 | 60.00 | 1.113 |\n", text)
        self.assertIn("| full | 2.000 | 1.235 (1.000 to 1.470) | 0.617 | 50.00 | 60.00 | 1.000 |\n", text)
        self.assertEqual((result, "differ by up to 47.0%." in text, text.count("| auto: ")), (3, True, 1))
        with mock.patch.object(training, "annulus", lambda *_: self.fail("all is measured")):
            self.assertEqual(self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--continue", "missing", report=plan)[:2], (result, text))
        self.assertIn("memory.chunk_rows=4096", auto.settings_of(policies[2]["memory"]))
        result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:1GiB", "--cluster", "c.toml", "--runs", self.folder / "none", report=plan)
        self.assertEqual((result, "| 4096 | 1GiB | auto | nothing fits |" in text), (1, True))
        self.refused(auto, ((["--shards", "text", "--cluster", "c.toml", "--settings", "4096"], "--settings 4096", {}),
                            (["--shards", "text", "--cluster", "c.toml", "--settings", "4096:1GiB", "--file", "a.toml"], "not allowed with", {})))

    def test_the_eight_settings_are_planned_on_one_two_and_four_gpus(self):
        outlines = set()
        for ranks in (1, 2, 4):
            options = argparse.Namespace(file=SCRIPTS / "auto.toml", ranks=ranks, set=[], device="gpu", nodes=1, host_memory=f"{120 * ranks}GiB", end=float("inf"), time_limit=60,
                                         cluster=ROOT / "data/clusters/h200.toml", program=PROGRAMS / "annulus-train", candidates=4)
            settings = auto.settings_in(options)
            self.assertEqual(len({setting["setting"] for setting in settings}), 8)
            for number, setting in enumerate(settings):
                with contextlib.redirect_stderr(io.StringIO()) as err:
                    report = auto.plan(options, setting, self.folder / f"plan-{ranks}-{number}")
                self.assertTrue(report and report["configured"]["fits"], err.getvalue())
                self.assertTrue(2 <= len(auto.candidates(options, report)) <= 5)
                self.assertLess(report["configured"]["seconds"], 5)
                outlines.add(report["configured"]["outline"])
        for kind in ("none", "selective but for", "sequence-selective", "layers offloaded", "optimizer offloaded"):
            self.assertTrue([outline for outline in outlines if kind in outline], (kind, outlines))

    def test_settings_of_a_file_run_on_the_host(self):
        (self.folder / "settings.toml").write_text(f"[[setting]]\nname = 'demo'\nmodel = '{ROOT / 'data/demo.toml'}'\nlayers = 1\ntokens = 64\nmemory = '2GiB'\n")
        arguments = ["--file", self.folder / "settings.toml", "--cluster", ROOT / "data/clusters/h200.toml", "--candidates", 1, "--steps", 2, "--within", 99]
        result = self.train(auto, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(row["setting"], row["tokens"], row["auto"], len(row["losses"])) for row in self.rows()], [("demo", 128, True, 2), ("demo", 128, False, 2)])
        self.assertIn("parallel.zero=3 ", result.stderr)


class FixedOrder(OnTheHost):

    @staticmethod
    def row(order, seconds, losses=(1.0, 0.5), exposed=0.0):
        return {"case": "a case", "order": order, "seconds": [9.0, seconds, seconds], "exposed": [9.0, exposed, exposed], "losses": list(losses)}

    def test_the_table_has_ratio_spread_and_whether_losses_are_equal(self):
        rows = [self.row("any", 2.0), self.row("fixed", 2.1, exposed=0.25), self.row("any", 2.2), self.row("fixed", 2.1)]
        self.assertEqual(fixed_order.line(rows), ["a case", "2.100", "2.100", "1.000", "1.100", "0.00 / 0.12", "equal"])
        self.assertEqual(fixed_order.line([*rows[:3], self.row("fixed", 2.1, losses=(1.0, 0.75))])[-1], "**differ**")
        any_order = [self.row("any", 2.0, losses=(1.0, 0.25)), *rows[1:]]
        self.assertEqual(fixed_order.line(any_order)[-1], "equal", "losses in any order may be what they like")
        self.assertEqual(fixed_order.line([rows[0], {"case": "a case", "order": "fixed", "error": "not run"}])[1:3], ["not run"] * 2)

    def test_other_losses_are_an_error(self):
        arguments = ["--turns", 2, "--steps", 3, "--layers", 1, "--case", "tiny: data.sequence_length=64"]
        result = self.train(fixed_order, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\| tiny \|.*\| equal \|")
        self.assertEqual([row["order"] for row in self.rows()], ["any", "fixed"] * 2)
        losses = iter([[1.0], [1.0], [1.0], [2.0]])
        (self.folder / "shards").mkdir(exist_ok=True)
        with mock.patch.object(training, "annulus", lambda options, tokens, name, keys, folder: (self.row("", 2.0, next(losses)) | {"case": name}, True)):
            status, text, _ = self.start(fixed_order, "--shards", "text", "--runs", self.folder / "more", "--turns", 2, "--case", "tiny: data.sequence_length=64")
        self.assertEqual((status, "**differ**" in text), (1, True))

    def test_the_turns_that_are_missing_are_made(self):
        made = []

        def annulus(options, tokens, name, keys, folder):
            made.append((options.config.name, tokens, keys[-1]))
            return self.row("", 2.0) | {"case": name, "tokens": tokens, "program": "Annulus"}, True
        arguments = ["--shards", "text", "--case", "a case: config=llama-1b.toml data.sequence_length=64", "--continue", "missing"]
        with mock.patch.object(training, "annulus", annulus):
            self.assertEqual(self.start(fixed_order, *arguments, "--turns", 1)[0], 0)
            self.assertEqual(self.start(fixed_order, *arguments, "--turns", 2)[0], 0)
        self.assertEqual(made, [("llama-1b.toml", 64, fixed_order.ORDERS[order]) for order in ("any", "fixed")] * 2)
        self.assertEqual([(row["turn"], row["order"]) for row in self.rows()], [("0", "any"), ("0", "fixed"), ("1", "any"), ("1", "fixed")])

    def test_the_table_has_every_case_and_each_is_a_configuration(self):
        cases = dict(training.split_cases(None, fixed_order.CASES))
        self.assertEqual(len(cases), len(fixed_order.CASES))
        for model, tokens, layout, mask in itertools.product(("7B", "8B"), ("131072", "32768"), ("zigzag", "striped"), ("", ", documents")):
            self.assertIn(f"attention.layout={layout}", cases.pop(f"{model}, {layout}{mask}, {tokens}"))
        self.assertEqual(list(cases), ["1B, zigzag, 131072", "1B, zigzag, 8192", "7B, window 4096, 131072", "7B, vertical-slash, 131072"])
        for keys in dict(training.split_cases(None, fixed_order.CASES)).values():
            config, others = training.DATA / launch.value_of(keys, "config"), [key for key in keys if not key.startswith("config=")]
            result = subprocess.run([PROGRAMS / "annulus-train", config, "--print-config", *launch.settings(others)], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)


class SameBits(OnTheHost):
    def test_runs_give_the_same_bits_and_another_record_is_compared(self):
        self.keys = [*OnTheHost.keys, "model.hidden=32", "model.heads=2", "model.kv_heads=2", "model.head_dim=16", "model.ffn=32", "data.sequence_length=64", "train.dtype=f32"]
        arguments = ["--count", 2, "--steps", 2, "--no-planted-fault", "--case", "default:", "no overlap: attention.overlap=false"]
        first = self.train(same_bits, *arguments)
        self.assertEqual((first.returncode, "2 runs of 2 steps, 0 records of other sessions: 0 differ, 0 failed\n"), (0, first.stdout), first.stderr)
        written = json.loads((self.folder / "out.json").read_text())
        (report, _), record = written["reports"], written["rows"][0]["record"]
        self.assertEqual((report["card"], report["trained"]["steps"], len(record["losses"]), len(record["checkpoint"])), ("CPU", 2, 2, 2))
        version = subprocess.run([PROGRAMS / "annulus-train", "--version"], capture_output=True, text=True).stdout
        self.assertIn(f"({report['git_hash']})", version)
        good, bad, of_other = (self.folder / name for name in ("good.json", "bad.json", "other.json"))
        good.write_text(json.dumps(written))
        record["losses"][1] += 1e-9
        bad.write_text(json.dumps(written))
        report["trained"]["steps"] = 3
        of_other.write_text(json.dumps(written))
        for others, status, text in (([good], 0, "1 records of other sessions: 0 differ"), ([good, bad], 1, f"{bad} (CPU, git {report['git_hash']}) differs from run 0, default: losses, step 2")):
            shutil.rmtree(self.folder / "out-runs")
            found = self.train(same_bits, *arguments, "--with", *others)
            self.assertEqual(found.returncode, status, found.stderr)
            self.assertIn(text, found.stdout)
        shutil.rmtree(self.folder / "out-runs")
        self.assertIn("a record of another training", self.train(same_bits, *arguments, "--with", of_other).stderr)

    def test_a_fault_that_is_not_seen_is_a_failure(self):
        (self.folder / "text").mkdir()
        (self.folder / "text" / "tokens.h5").write_text("tokens")
        record = {"losses": [1.0], "gradient norms": [1.0], "checkpoint": ["a"]}
        for number, (planted, failing, status, text) in enumerate((
                (record | {"checkpoint": ["b"]}, [], 0, "0 differ, 0 failed; the planted fault was found"), (record, [], 1, "changed no bit"),
                (None, [], 1, "not found: sums of dQ in any order failed"), (record | {"losses": [2.0]}, [1], 1, "3 runs of 2 steps, 0 records of other sessions: 0 differ, 1 failed"))):
            started = []

            def run(options, number, keys, gpus):
                started.append((number, keys, gpus))
                return planted if number == 4 else None if number in failing else record

            with mock.patch.object(same_bits, "run", run):
                found, said, _ = self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--count", 4, "--steps", 2, "--runs", self.folder / f"runs-{number}")
            self.assertEqual((found, text in said), (status, True), said)
            by_number = {one: keys for one, keys, _ in started}
            self.assertEqual((by_number[4], by_number[1]), (["attention.deterministic=false", "attention.kernel=hopper"], ["parallel.copy_engines=false", "parallel.max_ctas=1"]))
            self.assertLessEqual({gpus for *_, gpus in started}, {"0,1", "2,3"})
            self.assertEqual((self.folder / "out.md").read_text(), said)
        # The run that failed and those that are new are made, and compared with the others.
        started.clear()
        with mock.patch.object(same_bits, "run", lambda options, number, *_: started.append(number) or record | {"losses": [3.0 if number == 5 else 1.0]}):
            found, said, _ = self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--count", 6, "--steps", 2, "--continue", "missing")
        self.assertEqual((found, sorted(started)), (1, [1, 4, 5]))
        self.assertIn("run 5, default differs from run 0, default: losses, step 1: 1.0 and 3.0\n6 runs of 2 steps, 0 records of other sessions: 1 differ, 0 failed", said)
        self.assertIn("a record of another training", self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--steps", 3, "--continue", "missing")[2])

    def test_runs_without_time_are_not_failures(self):
        (self.folder / "text").mkdir()
        (self.folder / "text" / "tokens.h5").write_text("tokens")
        started = []

        def run(options, number, *_):
            started.append(number)
            if len(started) == 3:
                options.end = 0
            return {"losses": [2.0 if number == 6 else 1.0], "gradient norms": [1.0], "checkpoint": ["a"]}

        with mock.patch.object(same_bits, "run", run), mock.patch.object(launch, "groups_of", lambda *_: ["0,1"]):
            found, said, _ = self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--count", 6, "--steps", 2)
        self.assertEqual((found, started), (1, [0, 6, 1]))
        self.assertEqual(said, "2 runs of 2 steps, 0 records of other sessions: 0 differ, 0 failed, 4 not run; the planted fault was found\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
