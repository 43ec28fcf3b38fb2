"""The program annulus-bench from outside: what it writes, checked with numpy, and what it refuses.

usage: attention_test.py PROGRAM MPIRUN [MPIRUN FLAG...]. Exit status 77 means skipped (no h5py).
"""

import subprocess
import sys
import unittest

import support
from support import RESULTS, h5py, np, run


def attention(q, k, v, d_out, allowed, scale):
    """Softmax attention and its gradients in double precision, with matrices: no code shared with the program."""
    batch, heads, tokens, width = q.shape
    group = heads // k.shape[1]
    out, dq, dk, dv = np.zeros(d_out.shape), np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    lse = np.full(q.shape[:3], -np.inf)
    for b in range(batch):
        for h in range(heads):
            qs, ks, vs, g = (x.astype(np.float64) for x in (q[b, h], k[b, h // group], v[b, h // group], d_out[b, h]))
            scores = np.where(allowed, scale * qs @ ks.T, -np.inf)
            some = allowed.any(axis=1)
            highest = np.where(some, scores.max(axis=1), 0.0)
            weights = np.exp(scores - highest[:, None])
            total = weights.sum(axis=1)
            lse[b, h, some] = np.log(total[some]) + highest[some]
            p = weights / np.where(some, total, 1.0)[:, None]
            out[b, h] = p @ vs
            dp = g @ vs.T
            ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) * scale
            dv[b, h // group] += p.T @ g
            dq[b, h] = ds @ ks
            dk[b, h // group] += ds.T @ qs
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def causal(tokens):
    return np.tril(np.ones((tokens, tokens), dtype=bool))


def documents(tokens, starts):
    which = np.searchsorted(starts, np.arange(tokens), side="right")
    return causal(tokens) & (which[:, None] == which[None, :])


def error(x, y):
    keys = np.isfinite(y)
    assert (x[~keys] == y[~keys]).all()
    return np.linalg.norm(x[keys] - y[keys]) / np.linalg.norm(y[keys])


class Bench(support.InFolder):
    def case(self, name, arguments, ranks):
        """Runs a case that must pass its check; returns its dump (attributes under "attributes") and its JSON."""
        result = run(
            [*arguments, "--check", "--repetitions", 2, "--json", self.path(name + ".json"), "--dump", self.path(name + ".h5")],
            ranks,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("check passed", result.stdout)
        with h5py.File(self.path(name + ".h5")) as file:
            dump = {key: file[key][...] for key in file}
            dump["attributes"] = dict(file.attrs)
        return dump, self.read_json(name + ".json")

    def verify(self, dump, allowed):
        scale = dump["attributes"]["scale"]
        expected = attention(dump["q"], dump["k"], dump["v"], dump["do"], allowed, scale)
        for name in RESULTS:
            self.assertEqual(dump[name].dtype, np.float32)
            self.assertLess(error(dump[name], expected[name]), 1e-5, name)

    def test_dump_equals_numpy(self):
        arguments = ["--schedule", "burst", "--mask", "causal", "--tokens", 77, "--heads", 4, "--kv-heads", 2, "--head-dim", 24]
        arguments += ["--batch", 2, "--layout", "block-striped:5"]
        dump, report = self.case("numpy", arguments, 3)
        self.assertEqual(dump["q"].shape, (2, 4, 77, 24))
        self.assertEqual(dump["k"].shape, (2, 2, 77, 24))
        self.assertEqual(dump["lse"].shape, (2, 4, 77))
        self.assertAlmostEqual(dump["attributes"]["scale"], 24**-0.5, places=6)
        self.verify(dump, causal(77))
        for name in ("q", "k", "v", "do"):  # mean 0, variance 1
            self.assertLess(abs(dump[name].mean()), 0.05)
            self.assertLess(abs(dump[name].std() - 1), 0.05)
        self.assertEqual(report["config"]["tokens"], 77)
        self.assertEqual(report["topology"]["ranks"], 3)
        self.assertEqual(report["forward"]["pairs"], 2 * 4 * 77 * 78 // 2)
        self.assertEqual(report["forward"]["flops"], 4 * report["forward"]["pairs"] * 24)
        self.assertEqual(report["backward"]["flops"], 10 * report["backward"]["pairs"] * 24)
        self.assertEqual(sum(r["forward"]["sent_bytes"] for r in report["ranks"]),
                         sum(r["forward"]["received_bytes"] for r in report["ranks"]))
        self.assertGreater(report["ranks"][0]["peak_bytes"]["communication"], 0)
        self.assertGreater(report["forward"]["gflops"], 0)
        self.assertTrue(report["check"]["passed"])
        self.assertEqual(report["check"]["method"], "reference")
        self.assertEqual(set(report["check"]["errors"]), set(RESULTS))
        self.assertTrue(report["git_hash"])

    def test_columns_of_v_count(self):
        """Multi-head latent attention: operations and bytes are those of V's own columns, and predicted rates those of Q's."""
        rates = {24: 1e6, 16: 1e12}  # FLOP/s by head_dim
        cluster = self.write("cluster.toml", "".join(f'[[kernel]]\npass = "{name}"\nhead_dim = {head_dim}\nrate = {rate}\n'
                                                     for name in ("forward", "backward") for head_dim, rate in rates.items()))
        arguments = ["--schedule", "ring", "--mask", "full", "--tokens", 77, "--heads", 4, "--kv-heads", 2, "--head-dim", 24,
                     "--v-head-dim", 16, "--cluster", cluster]
        dump, report = self.case("columns", arguments, 2)
        self.assertEqual(dump["v"].shape, (1, 2, 77, 16))
        self.assertEqual(dump["out"].shape, (1, 4, 77, 16))
        self.verify(dump, np.ones((77, 77), dtype=bool))
        self.assertEqual(report["config"]["v_head_dim"], 16)
        for name, factor in (("forward", 2 * 24 + 2 * 16), ("backward", 6 * 24 + 4 * 16)):
            p = report[name]
            self.assertEqual(p["flops"], factor * 4 * 77**2)
            busiest = max(r[name]["pairs"] for r in report["ranks"])
            self.assertAlmostEqual(p["predicted"]["seconds"] / (factor * busiest / 1e6), 1, delta=0.01)
        self.assertEqual(sum(r["forward"]["sent_bytes"] for r in report["ranks"]), 77 * 2 * (24 + 16) * 4)

    def test_the_problem_knows_neither_ranks_nor_layout(self):
        arguments = ["--mask", "window:20,5", "--tokens", 61, "--heads", 2, "--head-dim", 16, "--dtype", "bf16"]
        one, _ = self.case("one", [*arguments, "--layout", "contiguous"], 1)
        many, _ = self.case("many", [*arguments, "--layout", "zigzag", "--ranks-per-node", 2], 4)
        for name in ("q", "k", "v", "do"):
            np.testing.assert_array_equal(one[name], many[name])
        for name in RESULTS:
            self.assertLess(error(many[name], one[name]), 1e-5, name)
        other, _ = self.case("other", [*arguments, "--seed", 2], 1)
        self.assertFalse((one["q"] == other["q"]).all(axis=-1).any())

    def test_inputs_with_lines_hold_their_mass_on_few_pairs(self):
        arguments = ["--tokens", 1024, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--mask", "causal"]
        shares = {}
        for inputs in ("random", "vertical-slash"):
            lines = ["--inputs", inputs, "--sparsity", "vertical-slash:verticals=16,slashes=4,select=heads"]
            dump, report = self.case(inputs, [*arguments, *lines, "--layout", "block-striped:64"], 2)
            self.assertEqual(report["config"]["inputs"], inputs)
            allowed, probabilities = dump["allowed"][0].astype(bool), []
            for head in range(4):
                scores = dump["q"][0, head].astype(np.float64) @ dump["k"][0, head // 2].T * dump["attributes"]["scale"]
                weights = np.where(causal(1024), np.exp(scores - scores.max(axis=1, keepdims=True)), 0)
                probabilities.append((weights / weights.sum(axis=1, keepdims=True))[allowed[head]].sum() / 1024)
            shares[inputs] = min(probabilities)
        self.assertGreater(shares["vertical-slash"], shares["random"] + 0.1)
        one, _ = self.case("one", [*arguments, "--inputs", "vertical-slash", "--layout", "contiguous"], 1)
        for name in ("q", "k"):
            np.testing.assert_array_equal(one[name], dump[name])

    def test_a_dump_holds_the_blocks_of_each_query(self):
        arguments = ["--tokens", 700, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--mask", "causal", "--pass", "forward"]
        blocks = ["--sparsity", "xattention:block=128,stride=16,threshold=0.6,select=kv-heads"]
        dump, report = self.case("blocks", [*arguments, *blocks, "--layout", "zigzag"], 3)
        bits = np.unpackbits(dump["selected_blocks"], axis=-1, bitorder="little")[..., :11]
        self.assertEqual(bits.shape, (1, 2, 700, 11))
        allowed = np.repeat(np.repeat(bits, 64, axis=-1)[..., :700], 2, axis=1) & causal(700)
        np.testing.assert_array_equal(dump["allowed"], allowed)
        self.assertNotIn("selected_columns", dump)
        sparsity = report["sparsity"]
        self.assertEqual(sparsity["pairs"], allowed.sum())
        self.assertLess(sparsity["density"], 0.9)

    def test_a_dump_holds_blocks_that_queries_select_for_themselves(self):
        arguments = ["--tokens", 700, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--mask", "causal"]
        for pattern, lists in (("moba:block=128,top=2", 4), ("infllm-v2:block=64,top=1,sinks=1,window=100", 2)):
            blocks = ["--sparsity", pattern, "--layout", "zigzag"]
            dump, report = self.case(pattern[:4], [*arguments, *blocks], 3)
            bits = np.unpackbits(dump["selected_query_blocks"], axis=-1, bitorder="little")[..., :11]
            self.assertEqual(bits.shape, (1, lists, 700, 11))
            allowed = np.repeat(np.repeat(bits, 64, axis=-1)[..., :700], 4 // lists, axis=1) & causal(700)
            np.testing.assert_array_equal(dump["allowed"], allowed)
            self.assertEqual(report["sparsity"]["pairs"], allowed.sum())
            self.assertLess(report["sparsity"]["density"], 0.9)

    def test_runs_without_mpirun(self):
        result = run(["--tokens", 40, "--head-dim", 16, "--heads", 2, "--check"], ranks=0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 rank", result.stdout)

    def test_embedded_tokens_and_their_documents(self):
        tokens, starts = self.write_shard(["In the beginning was the word.", "And then came another one,", "and a third."])
        n = 60
        arguments = ["--data", self.path("tokens-000000.h5"), "--mask", "documents", "--tokens", n, "--heads", 2,
                     "--head-dim", 32, "--layout", "striped"]
        dump, report = self.case("data", arguments, 2)
        self.assertIn("documents:0,31", report["config"]["effective_mask"])
        self.verify(dump, documents(n, starts[starts < n]))
        for name in ("q", "k", "v"):  # one token, one embedding; two tokens, two
            rows = dump[name][0, 0]
            for i in range(n):
                np.testing.assert_array_equal((rows == rows[i]).all(axis=1), tokens[:n] == tokens[i])
        self.assertFalse((dump["do"][0, 0, 0] == dump["do"][0, 0, 1:]).all(axis=1).any())
        reseeded, _ = self.case("reseeded", [*arguments, "--vocabulary-embedding-seed", 9], 1)
        self.assertFalse((dump["q"] == reseeded["q"]).all(axis=-1).any())
        np.testing.assert_array_equal(dump["do"], reseeded["do"])
        result = run([*arguments[:4], "--tokens", 5000])
        self.assertEqual(result.returncode, 1)
        self.assertIn("5000", result.stderr)

    def test_local_measures_checked_kernels_beside_sgemm(self):
        for options in (["--mask", "causal"], ["--mask", "documents:0,100,401", "--dtype", "bf16", "--kernel", "portable"]):
            with self.subTest(options=options):
                text, report = self.measure("attention", ["--local", *options, "--tokens", 500, "--heads", 4, "--kv-heads", 2,
                                                          "--head-dim", 32, "--repetitions", 2])
                for name in ("forward", "backward"):
                    self.assertGreater(report[name]["gflops"], 0)
                    self.assertAlmostEqual(report[name]["gflops"], report[name]["share_of_sgemm"] * report["sgemm_gflops"], 3)
                self.assertAlmostEqual(report["backward"]["flops"], 2.5 * report["forward"]["flops"])
                for part in ("short_sequence", "sampled_rows"):
                    self.assertEqual(set(report["check"][part]["errors"]), {"out", "lse", "dq", "dk", "dv"})
                self.assertIn("of sgemm", text)

    def test_local_steps_are_checked_and_timed_at_two_rates(self):
        options = ["--local", "--tokens", 300, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--batch", 2, "--mask", "window:40,0",
                   "--dtype", "bf16", "--repetitions", 3, "--pause", 0.02, "--sustained", 0.01]
        text, report = self.measure("attention", [*options, "--steps", "all"])
        passes = {"forward_first": 4, "forward_merging": 4, "forward_finished": 4, "backward_running": 10, "backward_finished": 10}
        self.assertEqual(set(report["steps"]), set(passes), "kernels of the host have one order")
        self.assertNotIn("forward", report)
        pairs = (41 * 300 - 40 * 41 // 2) * 4 * 2
        self.assertEqual(report["pairs"], pairs)
        for name, factor in passes.items():
            step = report["steps"][name]
            self.assertEqual(step["flops"], factor * 32 * pairs)
            for rate in ("burst", "sustained"):
                self.assertAlmostEqual(step[rate]["tflops"] * step[rate]["seconds"], step["flops"] * 1e-12)
            self.assertLessEqual(step["burst"]["seconds_min"], step["burst"]["seconds"])
            self.assertGreaterEqual(step["sustained"]["calls"], 1)
            errors = report["check"]["steps"][name]
            self.assertEqual(set(errors), {"out", "lse"} if factor == 4 else {"dq", "dk", "dv"})
            self.assertLessEqual(max(errors.values()), report["check"]["steps"]["tolerance"])
            self.assertIn(name, text)
        self.assertEqual({name: report["config"][name] for name in ("pause", "sustained", "repetitions", "mask", "batch")},
                         {"pause": 0.02, "sustained": 0.01, "repetitions": 3, "mask": "window:40,0", "batch": 2})
        self.assertEqual(report["attention_kernel"], "host_simd")
        _, report = self.measure("attention", [*options, "--steps", "backward_finished", "forward_first"])
        self.assertEqual(set(report["steps"]), {"forward_first", "backward_finished"})

    def test_soft_cap_and_sinks_are_checked(self):
        _, report = self.measure("attention", ["--tokens", 90, "--head-dim", 16, "--heads", 4, "--kv-heads", 2, "--schedule", "burst", "ulysses",
                                               "--soft-cap", 2, "--sinks", "--check", "--repetitions", 1], 2)
        cases = report["cases"]
        self.assertEqual(len(cases), 2)
        for case in cases:
            self.assertEqual((case["config"]["soft_cap"], case["config"]["sinks"]), (2, True))
            self.assertEqual(set(case["check"]["errors"]), set(RESULTS) | {"d_sinks"})
            self.assertTrue(case["check"]["passed"])

    def test_rows_with_one_key_pass_the_check(self):
        for arguments in (["--tokens", 1], ["--tokens", 50, "--mask", "dilated:5,100"], ["--tokens", 50, "--mask", "window:0,0"]):
            for dtype in ("f32", "bf16"):
                with self.subTest(arguments=arguments, dtype=dtype):
                    result = run([*arguments, "--dtype", dtype, "--heads", 2, "--head-dim", 16, "--check", "--repetitions", 1], 2)
                    self.assertEqual(result.returncode, 0, result.stdout)

    def test_failed_check_is_exit_status_one(self):
        result = run(["--tokens", 50, "--head-dim", 16, "--check", "--tolerance", 1e-12, "--json", self.path("x.json")], 2)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("check FAILED", result.stdout)
        self.assertFalse(self.read_json("x.json")["check"]["passed"])

    def test_bad_options(self):
        self.refused([
            (["--schedule", "spiral"], "--schedule", "ring, burst"),
            (["--layout", "diagonal"], "--layout", "diagonal"),
            (["--layout", "block-striped:0"], "--layout", "block-striped"),
            (["--mask", "causl"], "--mask", "causl"),
            (["--mask", "documents"], "--mask", "--data"),
            (["--mask", "documents:0,9000"], "--mask", "9000"),
            (["--heads", 6, "--kv-heads", 4], "--kv-heads", "divisible"),
            (["--heads", 0], "--heads", "at least 1"),
            (["--head-dim", 20], "--head-dim", "multiples of 8"),
            (["--head-dim", 264], "--head-dim", "256"),
            (["--dtype", "f64"], "--dtype", "bf16"),
            (["--dtype", "int8"], "--dtype", "int8"),
            (["--local", "--dump", "x.h5"], "--local", "--dump"),
            (["--local", "--steps", "forward_last"], "--steps", "forward_merging"),
            (["--local", "--steps", "all", "forward_first"], "--steps", "give all, or some"),
            (["--steps", "all"], "--steps", "--local"),
            (["--local", "--pause", -1], "--pause", "60"),
            (["--local", "--sustained", 0], "--sustained", "60"),
            (["--kernel", "magic"], "--kernel", "portable"),
            (["--inputs", "diagonal"], "--inputs", "vertical-slash"),
            (["--inputs", "vertical-slash", "--local"], "--inputs", "--local"),
            (["--tokens", 0], "--tokens", "at least 1"),
            (["--tokens", "many"], "--tokens", "many"),
            (["--batch", -1], "--batch", "at least 1"),
            (["--repetitions", 0], "--repetitions", "at least 1"),
            (["--ranks-per-node", 2], "--ranks-per-node", "1 rank"),
            (["--ranks-per-node", -1], "--ranks-per-node", "-1"),
            (["--check", "reference", "--tokens", 1000000], "--check", "--check sampled"),
            (["--check", "twice"], "--check", "sampled"),
            (["--soft-cap", -1], "--soft-cap", "-1"),
            (["--sinks", "--local"], "--sinks", "--local"),
            (["--soft-cap", 50, "--dump", "x.h5"], "--soft-cap", "--dump"),
            (["--sinks", "--sparsity", "vertical-slash"], "--sinks", "--sparsity"),
            (["--v-head-dim", 16, "--sparsity", "vertical-slash"], "--v-head-dim 16", "--sparsity"),
            (["--v-head-dim", 12], "--v-head-dim", "12"),
            (["--v-head-dim", -8], "--v-head-dim", "-8"),
            (["--pass", "sideways"], "--pass", "forward"),
            (["--overlap", "perhaps"], "--overlap", "both"),
            (["--warm-up", -1], "--warm-up", "-1"),
            (["--seed", -1], "--seed", "negative"),
            (["--vocabulary-embedding-seed", -1], "--vocabulary-embedding-seed", "negative"),
            (["--ranks", 5], "--ranks", "start more"),
            (["--tokens-per-rank", 0], "--tokens-per-rank", "at least 1"),
            (["--schedule", "hybrid:1x1:head-first", "--placement", "context-first"], "--placement", "give one of them"),
            (["--schedule", "hybrid:1x1", "--placement", "sideways"], "--placement", "head-first"),
            (["--placement", "head-first"], "--placement", "hybrid:HxC"),
            (["--schedule", "auto", "--cluster", "none"], "--cluster", "measure"),
            (["--cluster", "/no/such/file.toml"], "/no/such/file.toml"),
            (["--resume"], "--resume", "--json"),
            (["--layout", "zigzag", "striped", "--dump", "x.h5"], "--dump", "single case"),
            (["--local", "--dtype", "f32", "bf16"], "--local", "one value"),
            (["--mask", "causal", "window:1", "--tokens", 16, 32], "--mask", "window"),
            (["--tolerance", 1e-3], "--tolerance", "--check"),
            (["--data", "/no/such/folder"], "/no/such/folder", "check the path"),
            (["--vocabulary-embedding-seed", 3], "--vocabulary-embedding-seed", "--data"),
            (["--json", "/no/such/folder/x.json", "--tokens", 16], "/no/such/folder"),
            (["--dump", "/no/such/folder/x.h5", "--tokens", 16], "/no/such/folder"),
            (["--colour", "red"], "--colour"),
        ])

    def test_bad_options_end_all_ranks_with_one_message(self):
        for arguments, text in ((["--heads", 6, "--kv-heads", 4], "divisible"), (["--colour", "red"], "--colour"),
                                (["--dump", "/no/such/folder/x.h5", "--tokens", 16], "/no/such/folder")):
            with self.subTest(arguments=arguments):
                result = run(arguments, ranks=3)
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(result.stderr.count(text), 1, result.stderr)

    def test_ranks_that_were_started_differently_end_together(self):
        here, other = ([*map(str, ["--tokens", tokens, "--heads", 2, "--head-dim", 16])] for tokens in (64, 96))
        start = [*support.command(here, ranks=1), ":", "-np", "1", *support.command(other, ranks=0)]
        result = subprocess.run(start, capture_output=True, text=True, timeout=60, env=support.environment())
        self.assertEqual(result.returncode, 1)
        self.assertIn("annulus: rank 0: ranks disagree about --tokens: 96 on rank 1, 64 on rank 0; start every rank with the same",
                      result.stderr)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
