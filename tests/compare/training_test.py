"""apps/compare/training.py with programs in the place of GPUs, mpirun, annulus-train and PyTorch: commands, table, exit status,
errors. No number in here was measured by the test."""

import json
import unittest

import support


class Training(support.TrainingPrograms):
    def run_script(self, *arguments, failure=""):
        return self.start("training.py", "--steps", "3", "--tokens", "1024", *arguments, FAKE_FAILURE=failure)

    def test_every_case_runs_and_pytorch_beside_it(self):
        result = self.run_script("--set", "parallel.zero=3", "--case", "full: memory.recompute=full",
                                 "half: memory.recompute=sequence-selective memory.store_fraction=0.5", "--pytorch", "full")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.calls()
        self.assertEqual(len(calls), 2)
        for call, keys in zip(calls, (["memory.recompute=full"], ["memory.recompute=sequence-selective", "memory.store_fraction=0.5"])):
            for key in ["data.sequence_length=1024", "data.shards=text", "parallel.zero=3", *keys]:
                self.assertIn(key, call)
        self.assertEqual(result.stdout.splitlines()[2:], [
            "| 1024 | Annulus | full | 315 | 1.62 (1.50 to 1.75) | 50.0 % | 0.12 / 0.25 | 60.0 | 63.0 | 2.0 | 1.25 |",
            "| 1024 | Annulus | half | 315 | 1.62 (1.50 to 1.75) | 50.0 % | 0.12 / 0.25 | 60.0 | 63.0 | 2.0 | 1.25 |",
            "| 1024 | PyTorch | full | 256 | 2.00 (2.00 to 2.00) | 25.0 % |  | 72.0 | 63.0 |  |  |"])
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        self.assertEqual([len(row["losses"]) for row in rows], [3, 3, 3])

    def test_a_case_that_fails_is_told_and_others_go_on(self):
        result = self.run_script("--case", "none: memory.recompute=none", "full: memory.recompute=full", failure="none")
        self.assertEqual(result.returncode, 1)
        self.assertIn("out of memory", result.stderr)
        self.assertIn("| 1024 | Annulus | none | failed |", result.stdout)
        self.assertIn("| 1024 | Annulus | full | 315 |", result.stdout)

    def test_ranks_in_turns_and_on_emulated_nodes(self):
        result = self.run_script("--case", "full: memory.recompute=full", "--ranks", "4", "--nodes", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        (call,) = self.calls()
        for key in ("parallel.ranks_per_node=2", "parallel.transport=nccl"):
            self.assertIn(key, call)
        self.assertIn("NCCL_HOSTID=node$((${OMPI_COMM_WORLD_RANK", result.stderr)
        self.assertIn("| 1024 | Annulus | full | 315 | 1.62 (1.50 to 1.75) | 100.0 % |", result.stdout, "two ranks a GPU")

    def test_one_step_counts_where_there_are_no_others(self):
        result = self.run_script("--case", "full: memory.recompute=full", "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| 9.00 (9.00 to 9.00) |", result.stdout)

    def test_tries_on_the_host_need_no_gpu(self):
        (self.folder / "bin" / "nvidia-smi").unlink()
        result = self.run_script("--case", "groups: parallel.context=1", "--device", "cpu")
        self.assertEqual(result.returncode, 0, result.stderr)
        (call,) = self.calls()
        self.assertIn("run.device=cpu", call)
        self.assertFalse([key for key in call if key.startswith("run.peak_tflops")])
        self.assertIn("| 1024 | Annulus | groups | 630 | 1.62 (1.50 to 1.75) |  | 0.12 / 0.25 | 2.0 |  |  | 1.25 |", result.stdout,
                      "two groups read a sequence each")

    def test_what_the_time_does_not_suffice_for_is_told(self):
        result = self.run_script("--case", "full: memory.recompute=full", "--budget", "4")
        self.assertEqual(result.returncode, 1)
        self.assertIn("| 1024 | Annulus | full | not run: the budget was spent |", result.stdout)
        self.assertFalse((self.folder / "log").exists(), "nothing ran")

    def test_records_of_earlier_runs_are_not_taken_for_new_ones(self):
        (self.folder / "out-runs" / "1").mkdir(parents=True)
        result = self.run_script("--case", "full: memory.recompute=full")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("out-runs exists: remove it", result.stderr)

    def test_what_cannot_be_run_is_refused(self):
        for arguments, error in ((["--case", "full"], "--case 'full': give a name, a colon and keys"),
                                 (["--gpus", "3"], "--gpus 3: this machine has 2"), (["--steps", "0"], "give 1 or more"), (["--nodes", "3"], "2 ranks cannot be dealt to --nodes 3"),
                                 (["--ranks", "4"], "give --nodes 2 or more"), (["--pytorch", "full", "--nodes", "2"], "--pytorch runs on one node"),
                                 (["--mpirun", "no-mpirun -q"], "there is no such program"),
                                 (["--config", "missing.toml"], "--config missing.toml is no file"),
                                 (["--train", "missing"], "--train missing is no program")):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(error, result.stderr)


if __name__ == "__main__":
    unittest.main()
