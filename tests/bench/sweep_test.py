"""annulus-bench attention with many cases: what is run, refused, checked, predicted and written.

usage: sweep_test.py PROGRAM MPIRUN [MPIRUN FLAG...]. Exit status 77 means skipped (no h5py).
"""

import itertools
import os
import subprocess
import sys
import time
import unittest
import xml.dom.minidom

import support
from support import RESULTS, np, run

SMALL = ["--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--repetitions", 2]


def shards(layout, tokens, ranks):
    """Positions of every rank's rows."""
    if layout == "zigzag":
        chunks = np.array_split(np.arange(tokens), 2 * ranks)
        return [np.concatenate([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
    if layout == "striped":
        return [np.arange(r, tokens, ranks) for r in range(ranks)]
    return np.array_split(np.arange(tokens), ranks)


def allowed(mask, q, k):
    if mask == "causal":
        return k <= q
    left, right = map(int, mask.split(":")[1].split(","))
    return (q - left <= k) & (k <= q + right)


def rounds(mask, layout, tokens, ranks):
    """Sum over the rounds of a ring of the pairs of the busiest rank, pair by pair."""
    rows = shards(layout, tokens, ranks)
    pairs = lambda q, k: int(allowed(mask, rows[q][:, None], rows[k][None, :]).sum())
    return sum(max(pairs(j, (j - i) % ranks) for j in range(ranks)) for i in range(ranks))


class Sweep(support.InFolder):
    def sweep(self, arguments, ranks, status=0):
        result = run([*arguments, "--json", self.path("x.json"), "--csv", self.path("x.csv"), "--html", self.path("x.html")], ranks)
        self.assertEqual(result.returncode != 0, status != 0, result.stdout + result.stderr)
        return result, self.read_json("x.json")

    def test_every_combination(self):
        lists = {"schedule": ["ring", "helper-worker"], "layout": ["contiguous", "zigzag"], "mask": ["causal", "window:20,5"],
                 "ranks": [1, 2, 4]}
        arguments = [*SMALL, "--tokens", 64, "--check"]
        for name, values in lists.items():
            arguments += ["--" + name, *values]
        result, report = self.sweep(arguments, 4)
        self.assertEqual((report["program"], bool(report["git_hash"]), bool(report["version"])),
                         ("annulus-bench attention", True, True))
        keys = lambda case: (case["config"]["schedule"], case["config"]["layout"], case["config"]["mask"], case["topology"]["ranks"])
        done = [keys(case) for case in report["cases"]]
        refused = [tuple(case[name] for name in lists) for case in report["unsupported"]]
        self.assertEqual(sorted(done + refused), sorted(itertools.product(*lists.values())))
        for schedule, layout, mask, ranks in refused:
            self.assertEqual(schedule, "helper-worker")
            self.assertTrue(layout == "zigzag" or mask != "causal")
        self.assertIn(("helper-worker", "zigzag", "causal", 4), refused)
        self.assertIn(("helper-worker", "contiguous", "causal", 4), done)
        self.assertTrue(all("--schedule" in case["reason"] or "helper-worker" in case["reason"] for case in report["unsupported"]))
        self.assertIn("case 24 of 24", result.stderr)
        self.assertIn(f"{len(done)} cases, {len(refused)} unsupported, 0 failed their check", result.stdout)

        for case in report["cases"]:
            self.check_case(case, report["cases"], keys)
        self.check_csv(report["cases"])
        self.check_html(report)

    def check_case(self, case, cases, keys):
        schedule, layout, mask, ranks = keys(case)
        self.assertTrue(case["check"]["passed"])
        self.assertEqual(case["config"]["tokens"], 64)
        self.assertEqual(len(case["ranks"]), ranks)
        q = np.arange(64)
        pairs = 4 * int(allowed(mask, q[:, None], q[None, :]).sum())
        maximum = rounds(mask, "contiguous", 64, ranks) / rounds(mask, layout, 64, ranks)
        for name in ("forward", "backward"):
            p = case[name]
            self.assertEqual(p["pairs"], pairs)
            self.assertLessEqual(p["seconds_min"], p["seconds"])
            self.assertLessEqual(p["seconds"], p["seconds_max"])
            self.assertEqual(len(p["seconds_each"]), 2)
            self.assertAlmostEqual(p["tflops_per_rank"], p["flops"] / p["seconds"] / ranks * 1e-12)
            self.assertAlmostEqual(p["local_kernel_share"], p["gflops_per_rank"] / p["local_kernel"]["gflops_per_rank"])
            self.check_scaling(case, cases, keys, name)
            self.assertAlmostEqual(p["striped_attention"]["theoretical_maximum_speedup"], maximum)
            self.assertEqual(p["sent_bytes"]["intra_node"], sum(r[name]["sent_bytes"] for r in case["ranks"]))
            self.assertEqual(p["sent_bytes"]["inter_node"], 0)
            self.assertGreaterEqual(p["imbalance_degree"]["step"], 1)
            self.assertAlmostEqual(p["imbalance_degree"]["worker"], p["imbalance"])
            self.assertAlmostEqual(p["exposed_communication"]["seconds"],
                                   np.mean([r[name]["exposed_communication_seconds"] for r in case["ranks"]]))
            self.assertLessEqual(p["exposed_communication"]["seconds"], p["exposed_communication"]["seconds_max"])
            self.assertIsNone(p["predicted"])
            self.assertIn("--cluster", p["prediction_source"])
            ring = next(c for c in cases if keys(c) == ("ring", "contiguous", mask, ranks))
            self.assertAlmostEqual(p["striped_attention"]["measured_speedup"], ring[name]["seconds"] / p["seconds"])
            self.assertAlmostEqual(p["striped_attention"]["speedup_at_equal_rate"], p["local_kernel_share"] / ring[name]["local_kernel_share"])
        self.assertTrue(ranks > 1 or case["forward"]["exposed_communication"]["seconds"] == 0)

    def check_scaling(self, case, cases, keys, name):
        """T1 / (N TN), of the case on one rank with the same schedule and layout."""
        scaling, ranks = case[name]["scaling"], case["topology"]["ranks"]
        self.assertIsNone(scaling["weak_efficiency"] if ranks > 1 else None)  # nobody asked for half of the tokens
        one = [c for c in cases if keys(c)[:3] == keys(case)[:3] and c["topology"]["ranks"] == 1]
        if one:
            self.assertAlmostEqual(scaling["strong_efficiency"], one[0][name]["seconds"] / (ranks * case[name]["seconds"]))

    def check_csv(self, cases):
        rows = self.read_csv("x.csv")
        self.assertEqual(len(rows), 2 * len(cases))
        expected = [(case, name) for case in cases for name in ("forward", "backward")]
        for row, (case, name) in zip(rows, expected):
            self.assertEqual((row["schedule"], row["mask"], row["pass"]), (case["config"]["schedule"], case["config"]["mask"], name))
            self.assertEqual(int(row["ranks"]), case["topology"]["ranks"])
            self.assertEqual(row["git_hash"], case["git_hash"])
            for column, value in (("seconds", case[name]["seconds"]), ("local_kernel_share", case[name]["local_kernel_share"]),
                                  ("strong_scaling_efficiency", case[name]["scaling"]["strong_efficiency"]),
                                  ("exposed_communication_share", case[name]["exposed_communication"]["share"]),
                                  ("imbalance_of_steps", case[name]["imbalance_degree"]["step"])):
                self.assertAlmostEqual(float(row[column]), value, msg=column)
            self.assertEqual(row["predicted_seconds"], "")
            self.assertEqual(row["check_passed"], "true")

    def check_html(self, report):
        page = xml.dom.minidom.parse(self.path("x.html"))
        text = self.read("x.html")
        for foreign in ("<script", "<link", "src=", "http://", "https://"):
            self.assertNotIn(foreign, text.replace("http://www.w3.org/2000/svg", ""))
        headings = [node.firstChild.data for node in page.getElementsByTagName("h2")]
        self.assertEqual(headings, ["Strong scaling", "Weak scaling", "All cases", "Unsupported"])
        tables = page.getElementsByTagName("table")
        # Wide tables scroll inside the page.
        self.assertEqual({table.parentNode.getAttribute("class") for table in tables}, {"scroll"})
        self.assertIn(".scroll { overflow-x: auto;", text)
        self.assertEqual(len(tables[0].getElementsByTagName("tr")), 1 + 2 * len(report["cases"]))
        self.assertEqual(len(tables[1].getElementsByTagName("tr")), 1 + len(report["unsupported"]))
        # Two masks, two passes, each time, efficiency and share of the kernel's rate; ring on two layouts everywhere,
        # helper-worker on one.
        self.assertEqual(len(page.getElementsByTagName("svg")), 12)
        dotted = [line for line in page.getElementsByTagName("polyline") if "dotted" in line.getAttribute("class")]
        self.assertGreaterEqual(len(dotted), 4)  # what would be ideal
        run = report["cases"][0]["run"]
        for fact in (run["date"], run["host"], "--schedule"):
            self.assertIn(fact, text)
        self.assertRegex(run["command"], r"^mpirun .*-n 4 \S*annulus-bench attention ")
        self.assertRegex(page.getElementsByTagName("h1")[0].firstChild.data, r" on 4 ranks, layout .* [0-9.]+ (us|ms|s) forward")
        lines = {tuple(line.getAttribute("points").split()) for line in page.getElementsByTagName("polyline")}
        self.assertGreaterEqual(len(lines), 10)
        self.assertTrue(all(len(points) >= 2 for points in lines))

    def test_weak_scaling_and_the_forward_pass_alone(self):
        _, report = self.sweep([*SMALL, "--tokens-per-rank", 24, "--ranks", 1, 2, "--dtype", "f32", "bf16", "--schedule", "burst",
                                "--layout", "striped", "--pass", "forward", "--warm-up", 0, "--check"], 2)
        self.assertEqual([(c["config"]["dtype"], c["config"]["tokens"]) for c in report["cases"]],
                         [("f32", 24), ("f32", 48), ("bf16", 24), ("bf16", 48)])
        for case in report["cases"]:
            self.assertIsNone(case["backward"])
            self.assertEqual(set(case["check"]["errors"]), {"out", "lse"})
            self.assertEqual((case["config"]["pass"], case["config"]["warm_up"]), ("forward", 0))
            one = next(c for c in report["cases"] if c["config"]["dtype"] == case["config"]["dtype"] and c["topology"]["ranks"] == 1)
            scaling = case["forward"]["scaling"]
            self.assertAlmostEqual(scaling["weak_efficiency"], case["forward"]["gflops_per_rank"] / one["forward"]["gflops_per_rank"])
            # Of 48 tokens one rank alone was not measured.
            self.assertEqual(scaling["strong_efficiency"], 1 if case is one else None)
        self.assertEqual([row["pass"] for row in self.read_csv("x.csv")], ["forward"] * 4)
        self.assertIn("24 tokens per rank", self.read("x.html"))

    def test_bytes_between_nodes(self):
        _, report = self.sweep(["--heads", 2, "--head-dim", 16, "--tokens", 32, "--mask", "full", "--layout", "contiguous",
                                "--schedule", "ring", "topology-burst", "--ranks-per-node", 2, "--pass", "forward"], 4)
        shard = 2 * (32 // 4) * 16 * 2 * 4  # K and V
        ring, topology = (case["forward"]["sent_bytes"] for case in report["cases"])
        self.assertEqual((ring["intra_node"], ring["inter_node"]), (3 * 2 * shard, 3 * 2 * shard))
        self.assertEqual((topology["intra_node"], topology["inter_node"]), (8 * shard, 4 * shard))
        self.assertEqual([case["topology"]["nodes"] for case in report["cases"]], [2, 2])

    def test_overlap_on_and_off(self):
        _, report = self.sweep([*SMALL, "--tokens", 64, "--overlap", "both", "--check"], 2)
        with_overlap, without = report["cases"]
        self.assertEqual((with_overlap["config"]["overlap"], without["config"]["overlap"]), (True, False))
        for name in ("forward", "backward"):
            exposed = [case[name]["exposed_communication"] for case in (with_overlap, without)]
            self.assertGreater(exposed[1]["seconds"], 0)
            self.assertAlmostEqual(exposed[0]["overlapped_share"], 1 - exposed[0]["seconds"] / exposed[1]["seconds"])
            self.assertIsNone(exposed[1]["overlapped_share"])

    def test_predictions_and_the_choice_of_the_planner(self):
        cluster = self.write("cluster.toml", "[intra_node]\nbandwidth = 1e9\nlatency = 1e-6\n\n[[kernel]]\npass = \"forward\"\nhead_dim = 16\nrate = 1e6\n"
                                             "\n[[kernel]]\npass = \"backward\"\nhead_dim = 16\nrate = 2e6\n")
        for topology, where in ((cluster, "its kernel rates"), ("measure", "of this run")):
            with self.subTest(topology=topology):
                _, report = self.sweep([*SMALL, "--tokens", 64, "--schedule", "auto", "--layout", "auto", "zigzag", "--ranks", 2,
                                        "--cluster", topology, "--check"], 3)
                asked = [case["asked"] for case in report["cases"]]
                self.assertIn("auto, zigzag", "; ".join(asked).split("; "))
                self.assertEqual([row["asked"] for row in self.read_csv("x.csv") if row["pass"] == "forward"], asked)
                self.assertIn(asked[0], self.read("x.html"))
                for case in report["cases"]:
                    self.assertEqual(case["config"]["asked_schedule"], "auto")
                    self.assertNotEqual(case["config"]["schedule"], "auto")
                    self.assertNotEqual(case["config"]["layout"], "auto")
                    for name in ("forward", "backward"):
                        p = case[name]
                        self.assertIn(where, p["prediction_source"])
                        self.assertGreater(p["predicted"]["seconds"], 0)
                        self.assertAlmostEqual(p["predicted"]["measured_over_predicted"], p["seconds"] / p["predicted"]["seconds"])
                        if topology != "measure":  # so slow a kernel is all that counts
                            busiest = max(r[name]["pairs"] for r in case["ranks"])
                            factor, rate = (4, 1e6) if name == "forward" else (10, 2e6)
                            self.assertAlmostEqual(p["predicted"]["seconds"] / (factor * 16 * busiest / rate), 1, delta=0.05)

    def test_auto_marks_the_case_of_the_sweep_that_it_became(self):
        # Links so slow that all that counts is what travels.
        cluster = self.write("cluster.toml", "[intra_node]\nbandwidth = 1e6\nlatency = 1e-6\n")
        _, report = self.sweep([*SMALL, "--tokens", 64, "--layout", "zigzag", "--cluster", cluster, "--pass", "forward",
                                "--schedule", "ring", "burst", "all-gather", "ulysses", "auto"], 2)
        asked = [case["config"]["schedule"] for case in report["cases"] if case.get("asked") == "auto, zigzag"]
        self.assertEqual(len(asked), 1)
        self.assertEqual([row["schedule"] for row in self.read_csv("x.csv") if row["asked"]], asked)

    def test_auto_takes_balanced_for_documents_that_ask_for_it(self):
        # A document with most of the pairs, on fewer rows than a rank has, pairs of tokens, which striped ranks do not share evenly, and
        # kernels so slow that the busiest rank's pairs decide.
        cluster = self.write("cluster.toml", "[[kernel]]\npass = \"forward\"\nhead_dim = 16\nrate = 1e3\n"
                                             "\n[[kernel]]\npass = \"backward\"\nhead_dim = 16\nrate = 1e3\n")
        mask = "documents:" + ",".join(map(str, [0, *range(20, 64, 2)]))
        arguments = [*SMALL, "--tokens", 64, "--mask", mask, "--layout", "auto", "zigzag", "--schedule", "all-gather", "--cluster", cluster]

        def chosen(*more):
            _, report = self.sweep([*arguments, *more], 2)
            return [case["config"]["layout"] for case in report["cases"] if case["config"].get("asked_layout") == "auto"]

        self.assertEqual(chosen("--check"), ["balanced"])
        self.assertNotIn("balanced", chosen("--sparsity", "moba:block=64,top=1"))  # which refuses it

    def test_more_ranks_than_cores_are_told(self):
        ranks = 1 + len(os.sched_getaffinity(0))
        if ranks > 9:
            self.skipTest("a large machine")
        result, report = self.sweep([*SMALL, "--tokens", 64, "--pass", "forward", "--ranks", 1, ranks, "--cluster", "none"], ranks)
        self.assertIn(f"{ranks} ranks of 1 threads share", result.stderr)
        self.assertEqual([case["run"]["more_threads_than_cores"] for case in report["cases"]], [False, True])
        self.assertIn("more threads than their machine has cores", self.read("x.html"))

    def test_sampled_rows_pass_and_fail(self):
        cases = [["--tokens", 1], ["--tokens", 50, "--mask", "window:0,0"], ["--tokens", 200, "--mask", "documents:0,50,51,130"],
                 ["--tokens", 130, "--mask", "dilated:5,7", "full", "causal", "--batch", 2, "--layout", "zigzag", "striped"]]
        for arguments in cases:
            with self.subTest(arguments=arguments):
                _, report = self.sweep([*SMALL, *arguments, "--dtype", "f32", "bf16", "--check", "sampled"], 3)
                for case in report["cases"]:
                    self.assertEqual(case["check"]["method"], "sampled")
                    self.assertEqual(set(case["check"]["errors"]), set(RESULTS))
                    self.assertLessEqual(case["check"]["rows_of_head"], 14)
        _, report = self.sweep([*SMALL, "--tokens", 64, 32, "--layout", "zigzag", "striped", "--mask", "documents:0,40,64",
                                "--check", "sampled", "--tolerance", 1e-12], 2, status=1)
        self.assertEqual([case["check"]["passed"] for case in report["cases"]], [False, False])  # the second was run, too
        self.assertEqual([case["tokens"] for case in report["unsupported"]], [32, 32])  # documents behind the end

    def test_sampled_rows_are_those_of_the_selected_pairs(self):
        arguments = [*SMALL, "--tokens", 330, "--layout", "zigzag", "--batch", 2, "--check", "sampled", "--mask", "causal", "documents:0,50,51,200"]
        for pattern in ("vertical-slash:recall=0.4,select=heads", "xattention:block=64,stride=8,threshold=0.4",
                        "moba:block=64,top=2", "infllm-v2:block=64,top=0,sinks=1,window=10"):
            with self.subTest(pattern=pattern):
                _, report = self.sweep([*arguments, "--sparsity", pattern], 3)
                for case in report["cases"]:
                    self.assertEqual(case["check"]["method"], "sampled")
                    self.assertEqual(set(case["check"]["errors"]), set(RESULTS))
                    self.assertTrue(case["check"]["passed"])
                    self.assertLess(case["sparsity"]["density"], 0.98)  # other pairs would be other results

    def test_tokens_and_documents_of_data(self):
        self.write_shard(["In the beginning was the word.", "And then came another one,", "and a third."])
        _, report = self.sweep([*SMALL, "--data", self.path("tokens-000000.h5"), "--mask", "documents", "causal", "--tokens", 40, 65, 5000,
                                "--ranks", 1, 2, "--check"], 2)
        masks = {(c["config"]["mask"], c["config"]["tokens"]): c["config"]["effective_mask"] for c in report["cases"]}
        self.assertEqual(len(report["cases"]), 8)
        self.assertIn("documents:0,31", masks["documents", 40])
        self.assertIn("documents:0,31,58", masks["documents", 65])
        self.assertEqual(masks["causal", 65], "causal")
        self.assertEqual({r["tokens"] for r in report["unsupported"]}, {5000})

    def test_placement_of_hybrids(self):
        _, report = self.sweep([*SMALL, "--tokens", 40, "--schedule", "hybrid:2x2", "ring", "--placement", "context-first",
                                "--layout", "zigzag", "balanced", "--ranks-per-node", 2, "--check"], 4)
        self.assertEqual([c["config"]["schedule"] for c in report["cases"]], 2 * ["hybrid:2x2:context-first", "ring"])
        bounds = [c["forward"]["striped_attention"]["theoretical_maximum_speedup"] for c in report["cases"]]
        self.assertEqual(bounds[::2], bounds[1::2])  # of a layout's ring on all ranks, also where the cut has shards for two groups

    def test_cut_off_and_resumed(self):
        arguments = [*SMALL, "--check", "--json", self.path("x.json")]
        long = subprocess.Popen(support.command([*arguments, "--tokens", 48, 100000], 2),
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=support.environment())
        self.addCleanup(long.wait)
        self.addCleanup(long.kill)
        deadline = time.time() + 60
        while not os.path.exists(self.path("x.json")) and time.time() < deadline:
            time.sleep(0.05)
        long.terminate()
        long.wait(30)
        first = self.read_json("x.json")
        self.assertEqual([case["config"]["tokens"] for case in first["cases"]], [48])

        first["cases"][0]["forward"]["seconds"] = 123.0
        self.write_json("x.json", first)
        result, second = self.sweep([*arguments[:-2], "--tokens", 48, 32, "--resume"], 2)
        self.assertEqual([case["config"]["tokens"] for case in second["cases"]], [48, 32])
        self.assertEqual(second["cases"][0]["forward"]["seconds"], 123.0)
        self.assertIn("done before", result.stderr)
        self.assertEqual(len(self.read_csv("x.csv")), 4)

        # What other settings gave is another result. It stays in the file.
        for other in (["--max-ctas", 4], ["--transport", "mpi"]):
            result, third = self.sweep([*arguments[:-2], "--tokens", 48, 32, "--resume", *other], 2)
            self.assertNotIn("done before", result.stderr)
            self.assertEqual([case["forward"]["seconds"] == 123.0 for case in third["cases"]][:2], [False, False])
            self.assertIn(123.0, [case["forward"]["seconds"] for case in third["cases"]])
        # A result serves a run that asks for less, not one that asks for more.
        for more in (["--compute-only"], ["--tolerance", 1e-30], ["--cluster", "none"]):
            result = run([*arguments, "--tokens", 48, 32, "--resume", *more], 2)
            self.assertNotIn("done before", result.stderr, more)
        result = run([*arguments, "--tokens", 48, 32, "--resume", "--cluster", "none"], 2)
        self.assertEqual(result.stderr.count("done before"), 2)

        second["git_hash"] = "another"
        self.write_json("x.json", second)
        result = run([*arguments, "--tokens", 48, 32, "--resume"], 2)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("written by the build another", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
