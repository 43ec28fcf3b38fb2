"""annulus-bench lm-head and matmul from outside: what they measure and write, and what they refuse.

usage: products_test.py BENCH MPIRUN [MPIRUN FLAG...].
"""

import sys
import unittest

import support

SMALL = ["--tokens", 70, "--vocabulary", 300, "--hidden", 40, "--repetitions", 2]


class Products(support.InFolder):
    def test_lm_head(self):
        for dtype, limit in (("f32", 2e-5), ("bf16", 5e-3)):
            text, report = self.measure("lm-head", [*SMALL, "--dtype", dtype, "--sequence-tile", 32])
            self.assertIn("head over GEMMs", text)
            self.assertEqual(report["config"]["dtype"], dtype)
            self.assertGreater(report["check"]["tokens"], 10)
            self.assertLess(report["check"]["loss"], 1e-5)
            for name in ("d_hidden", "d_weight"):
                self.assertLess(report["check"][name], limit)
                self.assertGreater(report["check"][name], 0)
            self.assertAlmostEqual(report["ratio"], report["head"]["seconds"] / report["gemms"]["seconds"], places=9)
            # 32 rows of logits, padded to 320 entries, and 70 losses
            self.assertAlmostEqual(report["workspace_bytes"], 32 * 320 * 4 + 70 * 8, delta=100)

    def test_matmul(self):
        text, report = self.measure("matmul", ["--shape", "8x16x32", "30x7x5", "--repetitions", 2, "--dtype", "bf16"])
        self.assertIn("TFLOP/s", text)
        self.assertEqual([(p["tokens"], p["out"], p["in"]) for p in report["gemms"]], [(8, 16, 32), (30, 7, 5)])
        for entry in report["gemms"]:
            for product in ("y", "dx", "dw"):
                flops = 2 * entry["tokens"] * entry["out"] * entry["in"]
                self.assertAlmostEqual(entry[product]["tflops"] * entry[product]["seconds"] * 1e12 / flops, 1)

    def test_refusals(self):
        self.refused([([*SMALL, "--dtype", "f16"], "--dtype is f16"), (["--vocabulary", 0], "--vocabulary is 0"),
                      ([*SMALL, "--workspace-mib", -1], "--workspace-mib -1"), ([*SMALL, "--seed=-1"], "-1 is negative"),
                      (["--repetitions", 0], "--repetitions is 0"),
                      (["--vocabulary", 2**31 - 1, "--hidden", 2**20, "--tokens", 1], "--vocabulary and --hidden")], subcommand="lm-head")
        self.refused([(["--shape", "1x2147483647x2147483647"], "--shape: OUT and IN"), (["--dtype", "f16"], "--dtype is f16"),
                      (["--shape", "8x16"], "--shape 8x16"), (["--shape", "8x16x0"], "--shape 8x16x0")], subcommand="matmul")
        self.refused([(SMALL, "there are 2")], ranks=2, subcommand="lm-head")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
