"""attention.py, documents.py and prediction.py: what they start, their tables and their exit statuses."""

import csv
import itertools
import json
import pathlib
import sys
import unittest

from common import InFolder, option

import attention
import documents
import prediction


class Attention(InFolder):
    """4 ranks, or 8 in turns; passes of the times given, of which a quarter is exposed."""

    times = [[0.5]]

    def report(self, command):
        tokens = int(option(command, "--tokens"))
        if "--schedule" not in command:
            passes = {name: {"seconds_each": [seconds], "exposed_communication": {"seconds": 0.1}} for name, seconds in (("forward", 0.25), ("backward", 1.0))}
            config = {"tokens": tokens, "schedule": "allgather", "layout": "cudnn"}
            return {"version": "2.11", "gpu": "a GPU", "cudnn": 9, "nccl": "2.28", "cases": [{"config": config} | passes],
                    "unsupported": [config | {"schedule": "alltoall", "reason": "out of memory"}]}
        each = self.times[min(len([1 for ours, _ in self.commands if "--schedule" in ours]), len(self.times)) - 1]
        if each is None:
            return None
        passes = {name: {"seconds_each": seconds, "exposed_communication": {"seconds": 0.25 * seconds[0]}}
                  for name, seconds in (("forward", each), ("backward", [1.5]))}
        return {"git_hash": "abc", "cases": [{"config": {"schedule": "ring", "layout": "zigzag", "tokens": tokens}} | passes],
                "unsupported": [{"schedule": "double-ring", "layout": "zigzag", "tokens": tokens, "reason": "not on 1 rank"}]}

    def compare(self, *arguments, **more):
        status, text, errors = self.start(attention, "--tokens", 1024, *arguments, report=self.report, **more)
        with open(self.folder / "out.csv", newline="") as file:
            return status, text, list(csv.DictReader(file))

    def test_one_table_of_all_gpus_and_two_nodes(self):
        status, text, rows = self.compare()
        self.assertEqual(status, 0)
        ours = [command for command, _ in self.commands if "--schedule" in command]
        self.assertEqual([option(command, "--ranks-per-node") for command in ours], ["4", "2"])
        self.assertIn("NCCL_HOSTID=node$((${OMPI_COMM_WORLD_RANK", ours[1][5])
        cases = [("PyTorch", "allgather, cudnn"), ("PyTorch", "alltoall, cudnn"), ("Annulus", "ring, zigzag"), ("Annulus", "double-ring, zigzag")]
        self.assertEqual([(r["nodes"], r["program"], r["case"]) for r in rows], [(nodes, *case) for nodes in "12" for case in cases])
        pairs = 32 * 1024 * 1025 / 2
        self.assertAlmostEqual(float(rows[2]["forward_tflops"]), 4 * 128 * pairs / 0.5 / 4 * 1e-12)
        self.assertAlmostEqual(float(rows[2]["backward_tflops"]), 10 * 128 * pairs / 1.5 / 4 * 1e-12)
        self.assertEqual([rows[i]["error"] for i in (0, 1, 3)], ["", "out of memory", "not on 1 rank"])
        self.assertIn("| 2 × 2 | 1024 | Annulus, ring, zigzag | 500.00 (500.00 to 500.00) | 0 | 125.00 | 1500.00 (1500.00 to 1500.00) | 0 | 375.00 |\n", text)
        self.assertEqual({line.count("|") for line in text.splitlines()[4:]}, {10}, "every row has all columns")
        self.assertEqual((self.folder / "out.md").read_text(), text)

    def test_more_ranks_than_gpus_take_turns_on_emulated_nodes(self):
        status, text, rows = self.compare("--ranks", 8)
        self.assertEqual((status, {(r["nodes"], r["ranks"], r["gpus"]) for r in rows}), (0, {("2", "8", "4")}))
        self.assertAlmostEqual(float(rows[2]["forward_tflops"]), 4 * 128 * 32 * 1024 * 1025 / 2 / 0.5 / 4 * 1e-12, msg="a GPU, not a rank")
        self.assertRegex(text, "^4 × NVIDIA H200, Annulus git abc, [-0-9]+\n\n8 ranks in turns; causal, ")

    def test_rounds_alternate_and_give_ranges(self):
        self.times = [[0.2, 0.3], [0.6, 0.4], [0.1, 0.9]]
        status, text, rows = self.compare("--nodes", 2, "--rounds", 3)
        self.assertEqual((status, ["--schedule" in command for command, _ in self.commands]), (0, [False, True] * 3))
        self.assertEqual([rows[2][f"forward_{name}"] for name in ("ms", "ms_min", "ms_max", "exposed_ms")], ["350.0", "100.0", "900.0", "50.0"])
        self.assertIn("3 rounds in turns", text)

    def test_a_round_that_fails_is_told_beside_those_that_did_not(self):
        self.times = [[0.5], None]
        status, text, rows = self.compare("--without-pytorch", "--nodes", 1, "--rounds", 2)
        self.assertEqual(status, 1)
        self.assertEqual([(r["rounds"], r["error"]) for r in rows], [("1", ""), ("0", "not on 1 rank"), ("0", "failed")])
        again = ["--without-pytorch", "--nodes", 1, "--rounds", 2, "--continue", "missing"]
        self.commands, self.times = [], [[0.25]]
        status, text, rows = self.compare(*again)
        self.assertEqual((status, len(self.commands), [(r["rounds"], r["error"]) for r in rows]), (0, 1, [("2", ""), ("0", "not on 1 rank")]))
        self.assertEqual([rows[0][f"forward_{name}"] for name in ("ms_min", "ms_max")], ["250.0", "500.0"])
        self.commands = []
        self.assertEqual((*self.compare(*again)[:2], self.commands), (0, text, []))
        written = json.loads((self.folder / "out.json").read_text())
        for row in written["rows"][:2]:
            row["whole"] = False  # the budget ended the program of this round between two cases
        (self.folder / "out.json").write_text(json.dumps(written))
        self.assertEqual((self.compare(*again)[0], len(self.commands)), (0, 1))
        self.refused(attention, [([*again, "--gpus", 2], "has rows of 4 × NVIDIA H200, and this is 2 × NVIDIA H200", {})])

    def test_fewer_gpus_than_there_are(self):
        for arguments, seen, more in ((["--gpus", 2], "0,1", {}), (["--ranks", 1], "0", {}), (["--gpus", 1, "--ranks", 2], "3", {"visible": "3,2"}),
                                      ([], "0", {"gpus": 1}), ([], "0,1,2", {"gpus": 3, "visible": "0,1,2"})):
            self.commands = []
            self.assertEqual(self.compare("--without-pytorch", *arguments, **more)[0], 0)
            self.assertLessEqual({visible for _, visible in self.commands}, {seen, more.get("visible", "0,1,2,3")})

    def test_what_cannot_be_run_is_refused(self):
        self.refused(attention, (([], "shows no NVIDIA GPU", {"gpus": 0}), ([], "shows no NVIDIA GPU", {"visible": ""}),
                                 (["--gpus", 8], "--gpus 8, but programs see 4", {}), (["--ranks", -1], "--ranks -1", {}), (["--rounds", 0], "--rounds 0", {}),
                                 (["--ranks", 8, "--nodes", 2, 1], "--nodes 1 has 8 ranks a node for 4 GPUs", {}), (["--nodes", 3], "--nodes 3", {}),
                                 (["--bench", "none"], "none is no program", {}), (["--mpirun", "no-mpirun -q"], "no-mpirun", {})))
        status, _, errors = self.start(attention, "--budget", 4, report=lambda command: self.fail("nothing runs"))
        self.assertEqual((status, errors.count("NOT RUN")), (1, 4))


class Documents(InFolder):
    """Each layout takes 10 ms on 4 ranks, but for the one balanced, and 32 ms on one."""

    def compare(self, balanced, *arguments):
        def report(command):
            seconds = lambda layout: {"seconds": 0.032 if option(command, "-n") == "1" else balanced if layout == "balanced" else 0.01, "tflops_per_rank": 501.2}  # noqa: E731
            layouts = command[command.index("--layout") + 1:command.index("--json")]
            cases = [{"config": {"schedule": "ring", "layout": layout}, "forward": seconds(layout), "backward": seconds(layout)} for layout in layouts]
            return {"cases": cases} if len(cases) > 1 else cases[0]
        return self.start(documents, "--schedule", "ring", "--tokens", 4096, *arguments, report=report)

    def test_mixes_fill_the_sequence(self):
        for mix in documents.MIXES:
            lengths = documents.lengths_of(mix, 5000)
            self.assertEqual((sum(lengths), min(lengths) > 0), (5000, True), mix)
            self.assertEqual(lengths, documents.lengths_of(mix, 5000), "drawn from a fixed seed")
        self.assertEqual(max(documents.lengths_of("a half", 5000)), 2500)
        lengths = [length for drawing in range(100) for length in documents.lengths_of("magi", 262144, drawing)]
        self.assertEqual(max(lengths), 65536, "no document has more than a quarter")
        self.assertAlmostEqual(sum(length <= 350 for length in lengths) / len(lengths), 0.4675, delta=0.02)

    def test_balanced_beside_the_fastest_fixed_layout(self):
        status, text, _ = self.compare(0.0095, "--mix", "tiny", "one")
        self.assertEqual((status, text.startswith("4 × NVIDIA H200, Annulus git abc, ")), (0, True), text)
        self.assertIn("| one | 1 | 4096 | 4 | 8.0 + 8.0 | 10.0 + 10.0 (ring, contiguous) | 9.5 + 9.5 (ring, balanced) | 0.950 | 0.842 | 501 / 501 |\n", text)
        self.assertEqual([option(command, "-n") for command, _ in self.commands], ["1", "4"] * 2)
        self.assertEqual(option(self.commands[-1][0], "--mask"), "causal+documents:0")

    def test_numbers_of_ranks_in_one_run(self):
        status, text, _ = self.compare(0.0095, "--mix", "tiny", "one", "--ranks", 1, 2, 0)
        self.assertEqual(status, 0)
        self.assertEqual([option(command, "-n") for command, _ in self.commands], ["1", "1", "2", "4"] * 2)
        self.assertIn("| one | 1 | 4096 | 2 | 16.0 + 16.0 |", text)

    def test_predicts_on_nodes(self):
        def report(command):
            self.assertEqual(pathlib.Path(option(command, "--documents")).read_text(), "4096\n")
            self.assertIn("--no-steps", command)
            sent = {"k": {"intra_node": 5, "inter_node": 3 * 10**9}, "v": {"intra_node": 5, "inter_node": 10**9}}
            return {"time": (2.5 if option(command, "--pass") == "backward" else 1) * (0.008 if option(command, "--ranks") == "1" else 0.001),
                    "imbalance": {"worker": 1.5 if option(command, "--layout") == "zigzag" else 1.002, "step": 1}, "planning_seconds": 0.0021, "totals": [{"sent": sent}, {"sent": sent}, {"sent": {}}]}
        status, text, _ = self.start(documents, "--predict", 2, "--ranks", 4, "--mix", "one", "--tokens", 4096, "--schedule", "hybrid:2x2", "--layout", "balanced", "zigzag", report=report)
        self.assertEqual(status, 0)
        self.assertIn("| one | 1 | 4096 | 4 | 2.0 + 5.0 | 1.0 + 2.5 (hybrid:2x2, zigzag) | 1.0 + 2.5 (hybrid:2x2, balanced) | 1.000 | 2.000 | 34 / 34 |\n", text)
        self.assertIn("| one | 4 | 1.500, 8, 2.1 (hybrid:2x2, zigzag) | 1.002, 8, 2.1 |\n", text)
        self.assertEqual([option(command, "--ranks-per-node") for command, _ in self.commands], ["1", "1"] + ["2"] * 4)
        self.refused(documents, [(["--predict", 2], "give --ranks", {})])

    def test_texts_have_the_tokens_of_the_documents(self):
        status, _, _ = self.start(documents, "--texts", self.folder / "texts.jsonl", "--sequences", 2, "--mix", "log-normal", "--tokens", 3000, report=lambda command: self.fail("nothing runs"))
        with open(self.folder / "texts.jsonl", encoding="utf-8") as file:
            tokens = [len(json.loads(line)["text"]) + 1 for line in file]
        self.assertEqual((status, sum(tokens), min(tokens) > 1), (0, 6000, True))
        self.assertIn(3000, list(itertools.accumulate(tokens)), "sequences begin with documents")

    def test_slower_than_a_fixed_layout_is_an_error(self):
        self.assertEqual(self.compare(0.0104, "--mix", "one")[0], 3)
        self.assertEqual(self.compare(0.0104, "--mix", "one", "--within", 1.05)[0], 0)


class Prediction(InFolder):
    ratios = (1.1, 1.2)

    def report(self, command):
        of = lambda ratio: {"seconds": 0.1 * ratio, "predicted": {"seconds": 0.1, "measured_over_predicted": ratio}}  # noqa: E731
        return {"git_hash": "abc", "config": {"schedule": "ring", "layout": "zigzag", "tokens": 64}, "topology": {}, "forward": of(self.ratios[0]), "backward": of(self.ratios[1])}

    def test_predicts_from_what_was_measured_before(self):
        common = ["--tokens", 64, "--ranks", 4, "--nodes", 1, 2]
        status, text, _ = self.start(prediction, *common, "--within", 0.3, "--mean", 0.2, report=self.report)
        self.assertEqual((status, ["links" in command for command, _ in self.commands]), (0, [True, False] * 2))
        self.assertEqual(option(self.commands[2][0], "--output"), option(self.commands[3][0], "--cluster"))
        self.assertIn("| 2 × 2 | 64 | ring, zigzag | 110.00 | 100.00 | 1.100 | 120.00 | 100.00 | 1.200 |\n", text)
        self.assertRegex(text, "^4 × NVIDIA H200, Annulus git abc, [-0-9]+\n\n4 ranks, causal, ")
        self.assertEqual(self.commands[0][0][self.commands[0][0].index("--rows") + 1:self.commands[0][0].index("--output")], ["16"])
        self.assertEqual(self.start(prediction, *common, report=lambda command: None)[0], 1)
        self.refused(prediction, ((["--ranks", 1], "--ranks 1", {}),
                                  (["--ranks", 4, "--nodes", 3], "--nodes 3", {}), (["--ranks", 128, "--tokens", 64], "--ranks 128", {})))

    def test_the_worst_error_and_the_mean_are_judged(self):
        for self.ratios, status, text in (((1.09, 0.995), 0, "0.995 to 1.090; 2 of 2 are within 10%, and the mean error is 4.8% (goal: 5%)"), ((1.11, 1.0), 3, "1 of 2 are within 10%"),
                                          ((0.93, 0.93), 3, "2 of 2 are within 10%, and the mean error is 7.0%")):
            found, said, _ = self.start(prediction, "--tokens", 64, "--ranks", 4, report=self.report)
            self.assertEqual((found, text in said), (status, True), said)

    def test_blocks_are_as_large_as_shards_up_to_what_links_measures(self):
        self.start(prediction, "--tokens", 262144, 1048576, "--ranks", 4, report=self.report)
        command = self.commands[0][0]
        self.assertEqual(command[command.index("--rows") + 1:command.index("--output")], ["4096", "32768", "65536"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
