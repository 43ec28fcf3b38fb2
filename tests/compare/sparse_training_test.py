"""apps/compare/sparse_training.py on run folders that no run has written."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).parents[2] / "apps/compare/sparse_training.py"


def write(folder, records):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


class SparseTraining(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_script(self, dense, sparse):
        return subprocess.run([sys.executable, SCRIPT, write(self.folder / "dense", dense), write(self.folder / "sparse", sparse),
                               "--last", "10", "--smooth", "5", "--out", self.folder / "made"], capture_output=True, text=True, check=False)

    def test_draws_and_compares(self):
        dense = [{"step": s, "loss": 2 + 10 / s, "attention_density": 1, "step_seconds": 1} for s in range(1, 101)]
        sparse = [dict(r, loss=1.01 * r["loss"]) for r in dense]
        for r in sparse[20:]:
            r.update(attention_density=0.25, attention_imbalance={}, step_seconds=0.5)
            if r["step"] % 10 == 0:
                r["attention_recall"] = 0.5 if r["step"] <= 50 else 0.75
        done = self.run_script(dense, sparse)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 91 to 100 |", done.stdout)
        self.assertIn("| +1.00 % | 0.250 | 0.750 | 1.00, 0.50 |", done.stdout)
        picture = xml.etree.ElementTree.parse(self.folder / "made.svg").getroot()
        self.assertEqual(len(picture.findall("{*}polyline")), 4)

    def test_refuses_other_steps(self):
        record = {"loss": 1, "attention_density": 1, "step_seconds": 1}
        done = self.run_script([dict(record, step=1), dict(record, step=2)], [dict(record, step=1)])
        self.assertEqual(done.returncode, 1)
        self.assertIn("do not have the same optimizer steps (2 and 1)", done.stderr)


if __name__ == "__main__":
    unittest.main()
