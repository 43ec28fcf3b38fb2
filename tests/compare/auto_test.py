"""apps/compare/auto.py with programs in the place of GPUs, mpirun and annulus-train: which policies run, the table, the exit
status. No number in here was measured by the test."""

import json
import textwrap
import unittest

import support

# Plans as annulus-train does; a run then goes on as the program of support.py, with steps of the time that its policy has.
PLAN = """\
    import json, sys
    arguments = sys.argv[1:]
    if "--plan-memory" in arguments:
        option = lambda name: arguments[arguments.index(name) + 1]
        def policy(name, seconds, fits, **memory):
            memory = {"recompute": [name], "store_fraction": 0.5, "layers_without_recompute": 0, "offload_activations": 0.0, "chunk_rows": 0, "offload_optimizer": False} | memory
            return {"memory": memory, "outline": name, "seconds": seconds, "fits": fits, "predicted_peak_bytes": {"device": {"total": 50 * 2**30}}}
        policies = [policy("none", 1.0, False), policy("selective", 1.25, True), policy("selective", 1.25, True, chunk_rows=4096),
                    policy("sequence-selective", 1.5, True), policy("full", 2.0, True)]
        if option("--gpu-memory") == "1GiB":
            policies = [dict(each, fits=False) for each in policies]
        configured = next((each for each in policies if each["fits"]), policies[-1])
        json.dump({"configured": configured, "policies": policies}, open(option("--json"), "w"))
        sys.exit(0 if configured["fits"] else 3)
"""


class Auto(support.TrainingPrograms):
    def setUp(self):
        super().setUp()
        train = textwrap.dedent(support.TRAIN).replace('9.0 if step == 1 else 1.0 + 0.25 * step',
                                                       'float(os.environ["FAKE_" + keys["memory.recompute"].upper().replace("-", "_")])')
        self.python_program("annulus-train", textwrap.dedent(PLAN) + train)
        (self.folder / "cluster.toml").write_text("")

    def auto(self, *settings, selective="1.25", full="2.0", **more):
        return self.start("auto.py", "--settings", *settings, "--cluster", self.folder / "cluster.toml", "--steps", 2,
                          FAKE_SELECTIVE=selective, FAKE_SEQUENCE_SELECTIVE="1.5", FAKE_FULL=full, **more)

    def test_the_fastest_variant_of_each_policy_that_fits_runs(self):
        result = self.auto("4096:80GiB", "8192:40GiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        runs = [dict(setting.split("=", 1) for setting in call[2::2]) for call in self.calls()]
        self.assertEqual([(run["data.sequence_length"], run["memory.recompute"], run["memory.chunk_rows"]) for run in runs],
                         [(tokens, policy, "0") for tokens in ("4096", "8192") for policy in ("selective", "sequence-selective", "full")])
        self.assertIn("| 4096 | 80GiB | auto: selective | 1.250 | 1.250 | 1.000 | 50.00 | 60.00 | 1.000 |", result.stdout)
        self.assertIn("| 8192 | 40GiB | full | 2.000 | 2.000 | 1.000 | 50.00 | 60.00 | 1.600 |", result.stdout)
        self.assertIn("within 3% of it in 2 of 2 settings", result.stdout)

    def test_a_choice_that_is_slower_is_told(self):
        result = self.auto("4096:80GiB", full="1.0")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("| auto: selective | 1.250 | 1.250 | 1.000 | 50.00 | 60.00 | 1.250 |", result.stdout)
        self.assertIn("in 0 of 1 settings", result.stdout)

    def test_what_fails_leaves_the_others(self):
        result = self.auto("4096:1GiB", "4096:80GiB", FAKE_FAILURE="sequence-selective")
        self.assertEqual(result.returncode, 1)
        self.assertIn("| 4096 | 1GiB | auto | nothing fits |", result.stdout)
        self.assertIn("| sequence-selective | 1.500 | failed |", result.stdout)
        self.assertIn("in 1 of 1 settings", result.stdout)

    def test_bad_options(self):
        for arguments, message in ((["--settings", "4096"], "--settings 4096"),
                                   (["--settings", "4096:80GiB", "--cluster", "none.toml"], "--cluster none.toml")):
            result = self.start("auto.py", *(["--cluster", self.folder / "cluster.toml"] if "--cluster" not in arguments else []), *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
