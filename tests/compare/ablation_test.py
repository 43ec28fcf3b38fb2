"""apps/compare/ablation.py with programs in the place of GPUs, mpirun and annulus-train: which settings each row has, tables,
exit status. No number in here was measured by the test."""

import json
import unittest

import support


class Ablation(support.TrainingPrograms):
    def rows(self):
        return json.loads((self.folder / "out.json").read_text())["rows"]

    def test_each_table_has_its_rows(self):
        result = self.start("ablation.py", "--tokens", 1024, "--gpus", 2, "--model", support.SCRIPTS.parents[1] / "data/llama-7b.toml")
        self.assertEqual(result.returncode, 0, result.stderr)
        settings = [(row["table"], row["tokens"], row["settings"]) for row in self.rows()]
        off = "attention.overlap=false memory.lm_head_rows=1024 memory.recompute=full"
        self.assertEqual(settings, [
            ("2", 1024, f"attention.schedule=ring {off}"),
            ("2", 1024, f"attention.schedule=burst {off}"),
            ("2", 1024, f"attention.schedule=topology-burst {off}"),
            ("2", 1024, "attention.schedule=topology-burst attention.overlap=true memory.lm_head_rows=1024 memory.recompute=full"),
            ("2", 1024, "attention.schedule=topology-burst attention.overlap=true memory.lm_head_rows=0 memory.recompute=full"),
            ("2", 1024, "attention.schedule=topology-burst attention.overlap=true memory.lm_head_rows=0 "
             "memory.recompute=sequence-selective memory.store_fraction=0.5"),
            ("2", 1024, "attention.schedule=topology-burst attention.overlap=true memory.lm_head_rows=0 memory.recompute=selective"),
            ("3", 1024, "attention.mask=full memory.recompute=selective attention.see_targets=true"),
            ("3", 1024, "attention.mask=causal memory.recompute=selective"),
            ("3", 1024, "attention.mask=causal+window:31,0 memory.recompute=selective"),
            ("5", 512, "parallel.context=1"), ("5", 1024, "parallel.context=2"),
            *(("12", 1024, f"attention.schedule={name}")
              for name in ("ring", "burst", "topology-burst", "double-ring", "all-gather", "ulysses"))])
        text = result.stdout
        self.assertIn("llama-7b.toml, 2 ranks on 2 GPUs, 2 steps a row\n", text)
        self.assertEqual(text.count("### "), 4)
        self.assertIn("| 1024 | + overlap | 341 | 1.50 (1.50 to 1.50) | 50.0 % | 0.12 / 0.25 | 60.0 | 63.0 | 2.0 | 1.25 | 1.00 |", text)
        self.assertIn("| 512 | groups of 1 | 341 |", text)

    def test_a_row_that_fails_leaves_the_others(self):
        result = self.start("ablation.py", "--tokens", 1024, "--tables", 2, FAKE_FAILURE="selective")
        self.assertEqual(result.returncode, 1)
        self.assertIn("| selective recompute in its place | failed |", result.stdout)
        self.assertIn("| + sequence-selective recompute | 341 |", result.stdout)


if __name__ == "__main__":
    unittest.main()
