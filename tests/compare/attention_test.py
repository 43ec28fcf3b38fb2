"""apps/compare/attention.py with programs in the place of GPUs, mpirun, annulus-bench and PyTorch that write down how
they were called and leave recorded results: commands, table and errors. No number in here was measured by the test."""

import csv
import importlib.util
import json
import subprocess
import sys
import unittest

import support


BENCH = """\
    import json, os, sys
    arguments = sys.argv[1:]
    with open(os.environ["FAKE_LOG"], "a") as file:
        json.dump({"arguments": arguments, "host": os.environ.get("NCCL_HOSTID"),
                   "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}, file)
        file.write("\\n")
    if os.environ.get("FAKE_FAILURE"):
        sys.exit("annulus: rank 0: out of memory")
    option = lambda name: arguments[arguments.index(name) + 1]
    seconds_of = {"forward": [0.5], "backward": [1.5]}
    if "FAKE_TIMES" in os.environ:  # of each call in turn
        with open(os.environ["FAKE_LOG"]) as file:
            seconds_of["forward"] = json.loads(os.environ["FAKE_TIMES"])[len(file.readlines()) - 1]
    passes = {name: {"seconds": -1, "seconds_each": each, "exposed_communication": {"seconds": 0.25 * each[0]}}
              for name, each in seconds_of.items()}
    case = {"config": {"schedule": "ring", "layout": "zigzag", "tokens": int(option("--tokens"))}, **passes}
    refused = {"schedule": "double-ring", "layout": "zigzag", "tokens": int(option("--tokens")), "reason": "not on 1 rank"}
    with open(option("--json"), "w") as file:
        json.dump({"git_hash": "abc", "cases": [case], "unsupported": [refused]}, file)
"""
TORCH_RUN = """\
    import json, os, sys
    option = lambda name: sys.argv[sys.argv.index(name) + 1]
    passes = {name: {"seconds": -1, "seconds_each": [seconds], "exposed_communication_seconds": 0.1} for name, seconds in (("forward", 0.25), ("backward", 1.0))}
    cases = [{"tokens": int(option("--tokens")), "rotation": "allgather", "backend": "cudnn", **passes},
             {"tokens": int(option("--tokens")), "rotation": "alltoall", "backend": "cudnn", "error": "out of memory"}]
    with open(option("--out"), "w") as file:
        json.dump({"version": "2.11", "gpu": "a GPU", "cudnn": 9, "nccl": "2.28", "cases": cases}, file)
"""


class Compare(support.InFolder):
    def setUp(self):
        super().setUp()
        self.program("mpirun", support.MPIRUN)

    def run_script(self, *arguments, gpus=4, **environment):
        return self.run_with("attention.py", BENCH, "--tokens", "1024", *arguments, FAKE_GPUS=str(gpus), **environment)

    def rows(self):
        with open(self.folder / "out.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_one_table_of_all_gpus_and_two_nodes(self):
        self.torch(TORCH_RUN)
        result = self.run_script(FAKE_RANK="3")
        self.assertEqual(result.returncode, 0, result.stderr)
        one, two = self.calls()
        self.assertEqual((one["host"], two["host"]), (None, "node1"), "rank 3 of 4 is on the second of two nodes")
        for call, per_node in ((one, "4"), (two, "2")):
            text = " ".join(call["arguments"])
            self.assertIn(f"--ranks-per-node {per_node} ", text)
            self.assertIn("--transport nccl ", text)
        rows = self.rows()
        self.assertEqual([(r["nodes"], r["program"], r["case"]) for r in rows],
                         [(nodes, program, case) for nodes in "12" for program, case in (
                             ("PyTorch", "allgather, cudnn"), ("PyTorch", "alltoall, cudnn"), ("Annulus", "ring, zigzag"),
                             ("Annulus", "double-ring, zigzag"))])
        mine = rows[2]
        pairs = 32 * 1024 * 1025 / 2
        self.assertEqual(float(mine["forward_ms"]), 500)
        self.assertAlmostEqual(float(mine["forward_tflops"]), 4 * 128 * pairs / 0.5 / 4 * 1e-12)
        self.assertAlmostEqual(float(mine["backward_tflops"]), 10 * 128 * pairs / 1.5 / 4 * 1e-12)
        self.assertEqual(float(mine["backward_exposed_ms"]), 375)
        self.assertEqual((rows[1]["error"], rows[3]["error"]), ("out of memory", "not on 1 rank"))
        table = result.stdout.splitlines()
        self.assertTrue(table[0].startswith("4 × a GPU, causal, bf16, 32 heads, head_dim 128, batch 1; "
                                            "5 repetitions in one round, not repeated; Annulus git abc; PyTorch 2.11, "))
        self.assertIn("| 2 × 2 | 1024 | Annulus, ring, zigzag | 500.00 (500.00 to 500.00) | 0 | 125.00 | "
                      "1500.00 (1500.00 to 1500.00) | 0 | 375.00 |", table)
        cells = {line.count("|") for line in table[2:]}
        self.assertEqual(cells, {10}, "every row has all columns")
        self.assertEqual((self.folder / "out.md").read_text(), result.stdout)

    def test_more_ranks_than_gpus_take_turns_on_emulated_nodes(self):
        self.torch(TORCH_RUN)
        result = self.run_script("--ranks", 8, FAKE_RANK="5")
        self.assertEqual(result.returncode, 0, result.stderr)
        (call,) = self.calls()
        self.assertEqual((call["host"], call["visible"]), ("node1", None))
        self.assertIn("--ranks-per-node 4 ", " ".join(call["arguments"]))
        self.assertIn("--nproc-per-node 8 ", result.stderr)
        self.assertEqual({(r["nodes"], r["ranks"], r["gpus"]) for r in self.rows()}, {("2", "8", "4")})
        pairs = 32 * 1024 * 1025 / 2
        self.assertAlmostEqual(float(self.rows()[2]["forward_tflops"]), 4 * 128 * pairs / 0.5 / 4 * 1e-12, msg="a GPU, not a rank")
        self.assertTrue(result.stdout.startswith("8 ranks in turns on 4 × a GPU, "))
        self.assertIn("| 2 × 4 | 1024 | Annulus, ring, zigzag | 500.00 (", result.stdout)

    def test_rounds_alternate_and_give_ranges(self):
        self.torch(TORCH_RUN)
        times = [[0.2, 0.3], [0.6, 0.4], [0.1, 0.9]]
        result = self.run_script("--nodes", 2, "--rounds", 3, "--repetitions", 2, FAKE_TIMES=json.dumps(times))
        self.assertEqual(result.returncode, 0, result.stderr)
        started = ["PyTorch" if "context_parallel.py" in line else "Annulus" for line in result.stderr.splitlines() if line.startswith("# ")]
        self.assertEqual(started, ["PyTorch", "Annulus"] * 3)
        rows = {r["case"]: r for r in self.rows()}
        self.assertEqual(len(rows), 4, "one row a case, not one a round")
        mine = rows["ring, zigzag"]
        self.assertEqual([float(mine[f"forward_{name}"]) for name in ("ms", "ms_min", "ms_max", "exposed_ms")], [350, 100, 900, 50])
        self.assertEqual(mine["rounds"], "3")
        pairs = 32 * 1024 * 1025 / 2
        self.assertAlmostEqual(float(mine["forward_tflops"]), 4 * 128 * pairs / 0.35 / 4 * 1e-12)
        self.assertIn("3 rounds in turns, 2 repetitions each", result.stdout)
        self.assertIn("| 350.00 (100.00 to 900.00) |", result.stdout)

    def test_a_round_that_fails_is_told_beside_those_that_did_not(self):
        result = self.run_script("--without-pytorch", "--nodes", 1, "--rounds", 2, FAKE_TIMES="[[0.5]]")  # none for the second
        self.assertEqual(result.returncode, 1)
        (failed,) = [r for r in self.rows() if r["error"] == "failed"]
        self.assertEqual(failed["rounds"], "0")
        self.assertIn("Annulus, ring, zigzag | 500.00 (500.00 to 500.00)", result.stdout)
        self.assertIn("| failed |", result.stdout)

    def test_fewer_gpus_than_there_are(self):
        for arguments, visible, environment in ((("--gpus", 2), "0,1", {}), (("--ranks", 1), "0", {}),
                                                (("--gpus", 1, "--ranks", 2), "3", {"CUDA_VISIBLE_DEVICES": "3,2"})):
            (self.folder / "log").unlink(missing_ok=True)
            result = self.run_script("--without-pytorch", *arguments, **environment)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual({call["visible"] for call in self.calls()}, {visible})

    def test_odd_gpus_are_one_node(self):
        for gpus in (1, 3):
            (self.folder / "log").unlink(missing_ok=True)
            result = self.run_script("--without-pytorch", gpus=gpus)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(self.calls()), 1)
            self.assertNotIn("PyTorch", result.stdout)

    def test_a_program_that_fails_leaves_the_rows_of_the_others(self):
        self.torch(TORCH_RUN)
        result = self.run_script("--nodes", 1, FAKE_FAILURE="1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("out of memory", result.stderr)
        self.assertEqual([(r["program"], r["error"]) for r in self.rows()],
                         [("PyTorch", ""), ("PyTorch", "out of memory"), ("Annulus", "failed")])

    def refusal(self, *arguments, **environment):
        result = self.run_script(*arguments, **environment)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertFalse((self.folder / "log").exists(), "nothing ran")
        return result.stderr

    def test_what_is_missing_is_told_before_anything_runs(self):
        self.assertIn("shows no NVIDIA GPU", self.refusal(gpus=0))
        self.assertIn("shows no NVIDIA GPU", self.refusal(CUDA_VISIBLE_DEVICES=""))
        self.assertIn("--gpus 8, but programs see 4 here", self.refusal("--gpus", 8))
        self.assertIn("--gpus 4, but programs see 2 here", self.refusal("--gpus", 4, CUDA_VISIBLE_DEVICES="0,3"))
        self.assertIn("--ranks -1: give 1 or more", self.refusal("--ranks", -1))
        self.assertIn("--rounds 0: give 1 or more", self.refusal("--rounds", 0))
        self.assertIn("--nodes 1 has 8 ranks a node for 4 GPUs", self.refusal("--ranks", 8, "--nodes", 2, 1))
        self.assertIn("4 ranks cannot be dealt to --nodes 3", self.refusal("--nodes", 3))
        self.assertIn("is no program", self.refusal("--bench", self.folder / "none"))
        self.assertIn("there is no such program", self.refusal("--mpirun", "no-mpirun --bind-to none"))
        if importlib.util.find_spec("torch") is None:
            self.assertIn("has no PyTorch", self.refusal())

    def test_help(self):
        result = subprocess.run([sys.executable, support.SCRIPTS / "attention.py", "--help"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0)
        self.assertIn("--without-pytorch", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
