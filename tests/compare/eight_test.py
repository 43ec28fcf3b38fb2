"""apps/compare/eight.sh with programs in the place of GPUs, mpirun, Annulus and PyTorch: what each command runs. No number in here was
measured by the test."""

import json
import subprocess
import unittest

import attention_test
import support


class Eight(support.TrainingPrograms):
    def setUp(self):
        super().setUp()
        self.python_program("annulus-bench", attention_test.BENCH)
        self.program("annulus-tokens", "#!/bin/sh\nmkdir \"$3\"\n")

    def run_script(self, *arguments):
        return subprocess.run(["bash", support.SCRIPTS / "eight.sh", *map(str, arguments), "--bin", self.folder / "bin", "--out", self.folder / "out"],
                              capture_output=True, text=True, env=self.environment())

    def lengths(self):
        keys = [dict(setting.split("=", 1) for setting in call[2::2]) for call in self.calls()]
        return [(int(of_run["data.sequence_length"]), of_run.get("memory.offload_activations")) for of_run in keys]

    def test_training(self):
        result = self.run_script("training", "--tokens", 1024, "--set", "model.layers=2 parallel.zero=0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.lengths(), [(1024, None), (2048, "1"), (4096, "1"), (2048, None)])
        for key in ("model.layers=2", "parallel.zero=0", f"data.shards={self.folder}/out/shards"):
            self.assertIn(key, self.calls()[0])
        self.assertEqual(result.stdout.count("| PyTorch | full |"), 2)
        self.assertEqual(result.stdout.count("### "), 4)

    def test_a_million_and_the_longest(self):
        for command, lengths in (("million", [(1048576, None)]), ("longest", [(1400000, "0.3")])):
            (self.folder / "log").unlink(missing_ok=True)
            result = self.run_script(command, "--shards", "text")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.lengths(), lengths)

    def test_attention_on_one_node_and_two(self):
        result = self.run_script("attention", "--tokens", 1024, "--without-pytorch")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = [json.loads(line)["arguments"] for line in (self.folder / "log").read_text().splitlines()]
        self.assertEqual(len(calls), 6, "three rounds on one node, three on two")
        self.assertIn("--tokens 1024 2048 4096 ", " ".join(calls[0]))
        self.assertIn("--tokens 1024 --heads", " ".join(calls[3]))
        self.assertIn("### attention-1-node", result.stdout)

    def test_eight_ranks_in_turns_on_two_gpus(self):
        result = self.run_script("million", "--tokens", 128, "--ranks", 8, "--shards", "text")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("parallel.ranks_per_node=2", self.calls()[0])
        self.assertIn("-n 8 ", result.stderr)

    def test_time_that_is_over_is_told(self):
        result = self.run_script("training", "--tokens", 1024, "--shards", "text", "--budget", 4)
        self.assertEqual(result.returncode, 1)
        self.assertIn("training-4T was not run, as 4 s were over", result.stderr)

    def test_what_cannot_be_run_is_refused(self):
        for arguments, error in ((["million", "--ranks", 3], "3 ranks cannot be dealt to 2 nodes"), (["everything"], "no command 'everything'"),
                                 (["million", "--tokens", "many"], "--tokens many: give a number"), (["million", "--fast", 1], "no option '--fast'"),
                                 (["attention", "--device", "cpu", "--gpus", 2], "--device cpu is for training")):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(error, result.stderr)


if __name__ == "__main__":
    unittest.main()
