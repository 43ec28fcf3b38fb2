"""annulus-bench links from outside: what it measures and writes, that annulus-plan reads it, and what it refuses.

usage: links_test.py BENCH MPIRUN [MPIRUN FLAG...]; annulus-plan lies beside BENCH.
"""

import os
import re
import subprocess
import sys
import unittest

import support
from support import PROGRAM, run

TINY = ["--min-bytes", 1000, "--max-bytes", 20000, "--repetitions", 2, "--seconds", 0.02]
KERNELS = ["--head-dim", 16, "--rows", 32, "--heads", 2, "--kv-heads", 1, "--width", 32, 16, "--tokens", 24]


def section(text, name):
    """The keys of a table of a cluster file, as text."""
    body = re.search(rf"^\[{name}\]\n((?:[^\[#\n].*\n)*)", text, re.MULTILINE).group(1)
    return dict(line.split(" = ") for line in body.splitlines())


class Links(support.InFolder):
    def links(self, arguments, ranks, tiny=TINY):
        """What it prints, the cluster file and the JSON."""
        printed, report = self.measure("links", [*tiny, *arguments, "--output", self.path("c.toml")], ranks)
        return printed, self.read("c.toml"), report

    def plan(self):
        """annulus-plan on the file: the cluster that it has read."""
        result = subprocess.run([os.path.join(os.path.dirname(PROGRAM), "annulus-plan"), "--cluster", self.path("c.toml"), "--tokens", "256",
                                 "--head-dim", "16", "--dtype", "bf16", "--json", self.path("p.json")], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.read_json("p.json")["config"]

    def test_two_emulated_nodes(self):
        table, text, report = self.links([*KERNELS, "--ranks-per-node", 2], 4)
        self.assertEqual(report["topology"]["ranks_per_node"], [2, 2])
        expected = {("intra_node", "one way"), ("intra_node", "both ways"), ("intra_node", "all"), ("inter_node", "one way"),
                    ("inter_node", "both ways"), ("inter_node", "all"), ("inter_node", "ring")}
        self.assertEqual({(p["link_class"], p["pattern"]) for p in report["links"]}, expected)
        for link, pattern in expected:
            points = [p for p in report["links"] if (p["link_class"], p["pattern"]) == (link, pattern)]
            sizes = [p["bytes"] for p in points]
            self.assertEqual(sizes, [1000, 4000, 16000][:len(sizes)])
            for p in points:
                s = p["seconds"]
                self.assertTrue(0 < s["min"] <= s["median"] <= s["max"], s)
                self.assertTrue(1 <= s["repetitions"] <= 2 and s["iterations"] >= 1, s)
                self.assertAlmostEqual(p["bandwidth"] * s["median"], p["bytes"], 3)
        self.assertEqual([(k["pass"], k["dtype"], k["mask"]) for k in report["kernels"]],
                         [(p, d, m) for d in ("f32", "bf16") for m in ("full", "causal") for p in ("forward", "backward")])
        for k in report["kernels"]:
            pairs = 32 * 32 if k["mask"] == "full" else 32 * 33 // 2
            self.assertEqual(k["flops"], (4 if k["pass"] == "forward" else 10) * 16 * 2 * pairs)
        self.assertIn("nodes are emulated", table)
        self.assertIn("between nodes:", table)

        self.assertIn(report["git_hash"], text.splitlines()[0])
        self.assertIn("annulus-bench links", text.splitlines()[0])
        self.assertIn("2 nodes × 2 ranks on 1 host", text)
        self.assertIn("mpi:", text)
        config = self.plan()
        self.assertEqual(config["ranks_per_node"], [2, 2])
        for name in ("intra_node", "inter_node"):
            read = config["cluster"][name]
            self.assertEqual(read["bandwidth"], float(section(text, name)["bandwidth"]))
            self.assertEqual(read["latency"], float(section(text, name)["latency"]))
            times = [p["seconds"]["median"] for p in report["links"] if p["link_class"] == name and p["pattern"] == "all"]
            self.assertLessEqual(read["latency"], 1.001 * max(times))
        self.assertIn(report["nics_per_node"], (0, 1))
        self.assertEqual(report["format_version"], 3)
        self.assertEqual(set(report["fits"]), {"intra_node", "inter_node"})
        rates = [(k["pass"], k["mask"], k["rate"]) for k in config["cluster"]["kernel"]]
        measured = [(k["pass"], k["mask"], float(f"{k['rate']:.3e}")) for k in report["kernels"]]
        self.assertEqual(rates, measured)
        self.assertEqual([(p["dtype"], p["width"], p["tokens"]) for p in report["products"]],
                         [(d, w, 24) for d in ("f32", "bf16") for w in (16, 32)])
        gemms = re.findall(r'\[\[gemm\]\]\ndtype = "(\w+)"\nwidth = (\d+)\nrate = (\S+)', text)
        self.assertEqual([(dtype, int(width), float(rate)) for dtype, width, rate in gemms],
                         [(p["dtype"], p["width"], float(f"{p['rate']:.3e}")) for p in report["products"]])
        for p in report["products"]:
            self.assertEqual(p["flops"], 6 * 24 * p["width"] ** 2)
            self.assertAlmostEqual(p["rate"] * p["seconds"]["median"] / p["flops"], 1)
        memory = {key: float(value) for key, value in section(text, "memory").items()}
        for key in ("bandwidth", "host_bandwidth"):
            self.assertEqual(memory[key], float(f"{report['memory'][key]:.3e}"))
        self.assertIsNone(report["memory"]["host_copy_bandwidth"], "no device, no copies")
        self.assertEqual(memory["host_copy_bandwidth"], 50e9)
        self.assertIn("# host_copy_bandwidth: not measured: the defaults", text)

    def test_one_node_keeps_what_is_between(self):
        base = self.write("base.toml", '[inter_node]\nbandwidth = 7e9\nlatency = 8e-6\nnics_per_node = 3\n'
                                       '[[kernel]]\npass = "forward"\nhead_dim = 64\nrate = 9e9\n'
                                       '[[kernel]]\npass = "backward"\nhead_dim = 64\nrate = 10e9\n')
        _, text, report = self.links(["--no-kernels", "--base", base], 2)
        self.assertEqual({p["link_class"] for p in report["links"]}, {"intra_node"})
        self.assertEqual((report["kernels"], report["products"]), ([], []))
        self.assertIsNone(report["memory"]["bandwidth"])
        self.assertIsNone(report["fits"]["inter_node"])
        self.assertIn(f"# There is one node; not measured: as in {base}", text)
        self.assertEqual(section(text, "inter_node"), {"bandwidth": "7e9", "latency": "8e-6", "nics_per_node": "3"})
        self.assertEqual([k["rate"] for k in self.plan()["cluster"]["kernel"]], [9e9, 10e9])

        _, text, _ = self.links(["--no-kernels", "--ranks-per-node", 1], 2)
        self.assertIn("# No node has two ranks; not measured: the defaults", text)
        self.assertEqual(section(text, "intra_node"), {"bandwidth": "300e9", "latency": "5e-6"})

    def test_one_rank_measures_all_but_the_links(self):
        base = self.write("base.toml", "guessed = true\n[intra_node]\nbandwidth = 3e9\nlatency = 4e-6\n[inter_node]\nbandwidth = 7e9\nlatency = 8e-6\n")
        printed, text, report = self.links([*KERNELS, "--base", base], 1)
        self.assertIn("note: there is 1 rank", printed)
        self.assertEqual((report["links"], report["fits"], report["topology"]["ranks_per_node"]), ([], {"intra_node": None, "inter_node": None}, [1]))
        for name, link in (("intra_node", ("3e9", "4e-6")), ("inter_node", ("7e9", "8e-6"))):
            self.assertEqual(tuple(section(text, name)[key] for key in ("bandwidth", "latency")), link)
        self.assertIn("guessed = true", text, "its links are")
        self.assertEqual([k["rate"] for k in self.plan()["cluster"]["kernel"]][:len(report["kernels"])],
                         [float(f"{k['rate']:.3e}") for k in report["kernels"]])
        self.assertEqual(float(section(text, "memory")["bandwidth"]), float(f"{report['memory']['bandwidth']:.3e}"))
        self.assertEqual({p["width"] for p in report["products"]}, {16, 32})

    def test_bad_options(self):
        bad = self.write("bad.toml", "[intra_node]\nspeed = 3\n")
        self.refused([(["--min-bytes", 4096, "--max-bytes", 1024], "--max-bytes", "4096"), (["--ranks-per-node", 3], "--ranks-per-node", "2 ranks"),
                      (["--dtype", "f64"], "--dtype", "bf16"), (["--output", "/no/such/folder/c.toml"], "/no/such/folder"),
                      (["--base", bad], "bad.toml:2:", "intra_node.speed")], ranks=2, subcommand="links")
        self.refused([([*TINY, "--no-kernels"], "there is 1", "mpirun", "leave --no-kernels out")], subcommand="links")

    def test_one_size_of_message_is_said_to_tell_no_latency(self):
        table, text, _ = self.links(["--no-kernels"], 2, ["--min-bytes", 1000, "--max-bytes", 1000, "--seconds", 0.02])
        self.assertRegex(table, r"note: .*latency is taken as 0")
        self.assertIn("the latency is taken as 0", text)
        self.assertEqual(float(section(text, "intra_node")["latency"]), 0)

    def test_what_was_guessed_is_measured_or_stays_a_guess(self):
        guess = self.write("guess.toml", "guessed = true\n[intra_node]\nbandwidth = 1e9\n")
        for options, guessed in (["--no-kernels"], True), (KERNELS, False):
            _, text, _ = self.links([*options, "--base", guess], 2)
            self.assertEqual("guessed = true" in text, guessed, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
