"""annulus-bench kernels from outside: what it checks, measures, writes and refuses.

usage: kernels_test.py BENCH MPIRUN [MPIRUN FLAG...].
"""

import sys
import unittest

import support

SMALL = ["--tokens", 70, "--hidden", 48, "--ffn", 40, "--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--seconds", 0.001,
         "--repetitions", 2]
NAMES = ["embed", "embed_backward", "rms_norm", "rms_norm_recompute", "rms_norm_backward", "swiglu", "swiglu_backward",
         "split_qkv_rope", "split_qkv_rope_backward", "join_heads", "split_heads", "adamw",
         "offloaded_adamw", "gradient_norm"]


class Kernels(support.InFolder):
    def kernels(self, *arguments, ranks=0):
        return self.measure("kernels", [*SMALL, *arguments], ranks)

    def test_every_kernel_in_both_types(self):
        table, report = self.kernels()
        self.assertEqual([(k["dtype"], k["name"]) for k in report["kernels"]],
                         [("f32", n) for n in NAMES] + [("bf16", n) for n in [*NAMES, "cast"]])
        for k in report["kernels"]:
            with self.subTest(kernel=k["name"], dtype=k["dtype"]):
                self.assertIn(k["name"], table)
                self.assertTrue(k["passed"] and 0 <= k["error"] <= k["tolerance"] < 5e-3, k)
                s = k["seconds"]
                self.assertTrue(0 < s["min"] <= s["median"] <= s["max"], s)
                self.assertAlmostEqual(k["bandwidth"] * s["median"] / k["bytes"], 1)
                self.assertAlmostEqual(k["share"] * k["copy_bandwidth"] / k["bandwidth"], 1)
        rounded = {k["dtype"]: k["error"] for k in report["kernels"] if k["name"] == "swiglu"}
        self.assertLess(rounded["f32"], 1e-6)
        self.assertGreater(rounded["bf16"], 1e-4)  # it is compared with more than bf16

    def test_bytes_are_what_the_operation_needs(self):
        _, report = self.kernels("--kernel", "swiglu", "swiglu_backward", "join_heads", "adamw")
        tokens, ffn, width, parameters = 70, 40, 4 * 16, 3 * 48 * 40
        expected = {("swiglu", "f32"): 12 * tokens * ffn, ("swiglu", "bf16"): 6 * tokens * ffn,
                    ("swiglu_backward", "f32"): 20 * tokens * ffn, ("swiglu_backward", "bf16"): 10 * tokens * ffn,
                    ("join_heads", "f32"): 8 * tokens * width, ("join_heads", "bf16"): 6 * tokens * width,
                    ("adamw", "f32"): 28 * parameters, ("adamw", "bf16"): 30 * parameters}
        self.assertEqual({(k["name"], k["dtype"]): k["bytes"] for k in report["kernels"]}, expected)

    def test_ranks_at_once(self):
        table, report = self.kernels("--kernel", "rms_norm", "--dtype", "bf16", ranks=2)
        self.assertEqual(report["topology"]["ranks"], 2)
        self.assertIn("2 ranks", table)
        self.assertEqual(len(report["kernels"]), 1)

    def test_bad_options(self):
        self.refused([(["--kernel", "softmax"], "--kernel 'softmax'", "rms_norm"), (["--dtype", "f16"], "--dtype f16", "bf16"),
                      (["--hidden", 0], "--hidden is 0"), (["--head-dim", 15], "--head-dim is 15"),
                      (["--json", "/no/such/folder/k.json"], "/no/such/folder")], subcommand="kernels")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
