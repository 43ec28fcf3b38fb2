"""apps/compare/saving.py with programs in the place of GPUs, mpirun and annulus-train: kill, second start, comparison, table, errors.
No number in here was measured by the test."""

import json
import re
import unittest

import support

# Saves after the asked number of steps, ends the save two steps later, and goes on from it when it is started again.
TRAIN = """\
    import json, os, sys, time
    arguments = sys.argv[1:]
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(arguments) + "\\n")
    keys = dict(setting.split("=", 1) for setting in arguments[2::2])
    folder, every = keys["run.folder"], int(keys["checkpoint.every"])
    checkpoint = os.path.join(folder, "checkpoints", f"step-{every}")
    resumes = os.path.exists(checkpoint)
    os.makedirs(folder, exist_ok=True)
    print(f"LLaMA of {os.environ.get('FAKE_PARAMETERS', '0.62')} M parameters: 3 layers", flush=True)
    for step in range(every + 1 if resumes else 1, 1000):
        time.sleep(0.1 if step == every + 1 and not resumes else 0.05)
        if step == every + 2 and not resumes:
            os.makedirs(checkpoint)
            print(f"saved {checkpoint} (7.40 MB in 0.15 s, 49.33 MB/s; training waited 0.01 s)", flush=True)
        record = {"step": step, "loss": 3.0 / step + (float(os.environ.get("FAKE_DRIFT", 0)) if resumes else 0), "grad_norm": 1.0,
                  "peak_memory_bytes": {"total": 2**30, "resident": 2**31}}
        with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
            file.write(json.dumps(record) + "\\n")
"""


class Saving(support.TrainingPrograms):
    def setUp(self):
        super().setUp()
        self.python_program("annulus-train", TRAIN)

    def run_script(self, *arguments, **environment):
        return self.start("saving.py", "--tokens", 1024, "--every", 6, *arguments, **environment)

    def test_a_killed_run_goes_on_and_is_compared(self):
        result = self.run_script("--set", "parallel.zero=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.calls()
        self.assertEqual(len(calls), 4, "two cases, each started twice")
        self.assertEqual(calls[0], calls[1], "the same command goes on")
        for key in ("checkpoint.every=6", "checkpoint.keep=1", "data.sequence_length=1024", "parallel.zero=3"):
            self.assertIn(key, calls[0])
        self.assertIn("memory.offload_optimizer=true", calls[2])
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        for row in rows:
            self.assertEqual([sorted(bits) for bits in row["bits"]], [["7", "8"]] * 2)
            self.assertEqual(len(row["before"]), 5)
            self.assertGreater(row["saving"], 0.09)
        self.assertTrue(re.search(r"\| copy \| 1024 \| 0\.0\d \(.*\| 0\.01 \| 0\.0074 GB \| 0\.1 s, 0\.0493 GB/s \| 1\.0 \(2\.0\) \| .* \| 2 steps: yes \|",
                                  result.stdout), result.stdout)
        self.assertFalse(list(self.folder.glob("out-runs/*/checkpoints")), "room for the next")

    def test_other_bits_are_told(self):
        result = self.run_script("--case", "copy:", FAKE_DRIFT="1e-12")
        self.assertEqual(result.returncode, 1)
        self.assertIn("2 steps: no |", result.stdout)

    def test_room_on_the_disk_is_asked_first(self):
        result = self.run_script("--case", "copy:", FAKE_PARAMETERS="1000000000000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("GB are needed in", result.stdout)

    def test_what_makes_no_sense_is_refused(self):
        for arguments in (["--every", "2"], ["--compare", "6"], ["--after", "0"]):
            self.assertEqual(self.run_script(*arguments).returncode, 2)


if __name__ == "__main__":
    unittest.main()
