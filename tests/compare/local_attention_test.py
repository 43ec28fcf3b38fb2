"""apps/compare/local_attention.py with programs in the place of GPUs, annulus-bench, PyTorch and FlashAttention-4: commands, how
work is timed, table and errors. No number in here was measured by the test."""

import importlib.util
import json
import sys
import unittest

import support

sys.path.insert(0, str(support.SCRIPTS))
import gpu_rates  # noqa: E402
import local_attention  # noqa: E402
import local_peers  # noqa: E402

BENCH = """\
    import json, os, sys
    arguments = sys.argv[1:]
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(["annulus", *arguments]) + "\\n")
    if os.environ.get("FAKE_FAILURE") in arguments:
        sys.exit("annulus: rank 0: out of memory")
    option = lambda name: arguments[arguments.index(name) + 1]
    steps = arguments[arguments.index("--steps") + 1:arguments.index("--json")]
    rates = {name: {"burst": {"tflops": 600}, "sustained": {"tflops": 500}} for name in steps}
    with open(option("--json"), "w") as file:
        json.dump({"git_hash": "abc", "device": "a GPU", "attention_kernel": "hopper", "steps": rates}, file)
"""
# Every call of a kernel takes a second of the stream per 100 heads, more behind others; backwards take 4 times as long.
TORCH = """\
    import json, os
    from types import SimpleNamespace
    from . import nn
    __version__, int32, bfloat16, float16 = "2.11", "int32", "bf16", "f16"
    now, behind = 0.0, 0
    def kernel(seconds):
        global now, behind
        now += seconds * (2 if behind else 1)
        behind += 1
    class Event:
        def __init__(self, enable_timing): pass
        def record(self): self.at = now
        def synchronize(self): pass
        def elapsed_time(self, other): return 1e3 * (other.at - self.at)
    def hold(cycles):
        global behind
        behind = 0
    class Tensor:
        def __init__(self, shape): self.shape = shape
        def requires_grad_(self): return self
    def randn(shape, device, dtype):
        return Tensor(shape)
    def tensor(values, dtype, device):
        return values
    def manual_seed(seed): pass
    def grad(out, inputs, d_out, retain_graph):
        assert d_out.shape == inputs[0].shape
        kernel(4 * out)
    autograd = SimpleNamespace(grad=grad)
    backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 9))
    cuda = SimpleNamespace(Event=Event, _sleep=hold, synchronize=lambda: None, empty_cache=lambda: None, get_device_name=lambda: "a GPU")
    def log(*what):
        with open(os.environ["FAKE_LOG"], "a") as file:
            file.write(json.dumps(what) + "\\n")
"""
NN = """\
    import contextlib
    from types import SimpleNamespace
    from . import attention
    def attend(q, k, v, is_causal, enable_gqa):
        import torch
        torch.log("cudnn", q.shape, k.shape, is_causal, enable_gqa)
        torch.kernel(0.01)
        return 0.01
    functional = SimpleNamespace(scaled_dot_product_attention=attend)
"""
NN_ATTENTION = """\
    import contextlib
    from types import SimpleNamespace
    SDPBackend = SimpleNamespace(CUDNN_ATTENTION=0)
    sdpa_kernel = lambda backend: contextlib.nullcontext()
"""
CUTE = """\
    import torch
    def flash_attn_func(q, k, v, causal, window_size, deterministic):
        torch.log("fa4", q.shape, k.shape, causal, window_size, deterministic)
        if deterministic and causal is False:
            raise RuntimeError("no such mode\\nat all")
        torch.kernel(0.02)
        return 0.02, None
    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k, **options):
        torch.log("fa4 documents", q.shape, cu_seqlens_q, max_seqlen_k)
        torch.kernel(0.02)
        return 0.02, None
"""


class FakeClock:
    """A single call takes 0.25 s, each of several 0.5 s."""

    def __init__(self):
        self.events = []

    def hold(self):
        self.events.append("hold")

    def sleep(self, seconds):
        self.events.append(f"sleep {seconds}")

    def wait(self):
        self.events.append("wait")

    def seconds(self, work, calls):
        self.events.append(f"time {calls}")
        for _ in range(calls):
            work()
        return 0.25 * calls if calls == 1 else 0.5 * calls


class Method(unittest.TestCase):
    def test_burst_follows_pauses_and_sustained_follows_work(self):
        clock = FakeClock()
        rates = gpu_rates.measure(clock, lambda: clock.events.append("work"), repetitions=2, pause=0.5, sustained=1.0)
        single = ["sleep 0.5", "hold", "time 1", "work"]
        self.assertEqual(clock.events, ["work", "wait", *single, *single, *["work"] * 2, "time 4", *["work"] * 4])
        self.assertEqual(rates, {"burst": 0.25, "burst_each": [0.25, 0.25], "sustained": 0.5, "calls": 4})

    def test_masks_and_their_pairs(self):
        for mask in ("full", "causal", "window:3,0", "window:90,0", "documents:0,4,5", "documents:0,6,10"):
            causal, window, documents = local_peers.mask_of(mask, 10)
            document = [number for number, length in enumerate(documents or [10]) for _ in range(length)]
            allowed = [(i, j) for i in range(10) for j in range(10) if not causal or (
                j <= i and document[i] == document[j] and (window is None or i - j <= window))]
            self.assertEqual(local_attention.pairs_of({"tokens": 10, "mask": mask}), len(allowed), mask)
        for mask in ("dilated:4,2", "window:3,1", "causal+window:3,0", "blocks:128,file", "documents"):
            with self.assertRaisesRegex(ValueError, "not supported"):
                local_peers.mask_of(mask, 10)


class Compare(support.InFolder):
    def with_torch(self, flash_attention=True):
        for name, text in (("torch/__init__.py", TORCH), ("torch/nn/__init__.py", NN), ("torch/nn/attention.py", NN_ATTENTION)):
            self.module(name, text)
        if flash_attention:
            self.module("flash_attn/cute.py", CUTE)

    def run_script(self, *arguments, gpus=1, **environment):
        return self.run_with("local_attention.py", BENCH, "--pause", "0", "--sustained", "0.1", *arguments, FAKE_GPUS=str(gpus), **environment)

    def test_one_table_of_all_programs(self):
        self.with_torch()
        result = self.run_script("--cases", "128:1000:causal", "64:1000:window:9,0", "128:1000:documents:0,300", "--heads", 4, "--kv-heads", 4, 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.calls()
        order = [call[0] for i, call in enumerate(calls) if i == 0 or call[0] != calls[i - 1][0]]
        self.assertEqual(order, ["annulus", "cudnn", "fa4", "annulus", "fa4", "annulus", "fa4 documents"] * 2)
        text = " ".join(calls[0])
        for part in ("attention --local --tokens 1000 --heads 4 --kv-heads 4 --head-dim 128 --batch 1 --mask causal --dtype bf16",
                     "--repetitions 5 --pause 0.0 --sustained 0.1 --steps forward_first forward_merging backward_finished"):
            self.assertIn(part, text)
        self.assertIn(["cudnn", [1, 4, 1000, 128], [1, 2, 1000, 128], True, True], calls)
        self.assertIn(["fa4", [1, 1000, 4, 64], [1, 1000, 2, 64], True, [9, 0], True], calls)
        self.assertIn(["fa4 documents", [1000, 4, 128], [0, 300, 1000], 700], calls)
        table = result.stdout.splitlines()
        self.assertTrue(table[0].startswith("a GPU, bf16, 4 heads, batch 1; TFLOP/s burst / sustained (pause 0 s, sustained 0.1 s), 1 round; "
                                            "Annulus git abc, kernel hopper; PyTorch 2.11, cuDNN 9, FlashAttention-4 unknown version; "))
        self.assertEqual({line.count("|") for line in table[2:]}, {8}, "every row has all columns")
        self.assertEqual(len(table), 4 + 6 * 6)
        self.assertIn("| d 64, 1000, window:9,0 | forward, first step | 600 / 500 | not supported |  | 0 / 0 |", result.stdout)
        self.assertIn("| d 128, 1000, documents, 2 kv heads | backward, running, any order | 600 / 500 | not supported |", result.stdout)
        self.assertEqual((self.folder / "out.md").read_text(), result.stdout)

    def test_rates_and_ratios(self):
        self.with_torch()
        result = self.run_script("--cases", "128:1000000:causal", "--heads", 1, "--steps", "forward_first", "backward_finished", "backward_finished_any_order")
        self.assertEqual(result.returncode, 0, result.stderr)
        flops = 4 * 128 * 1000000 * 1000001 // 2 * 1e-12
        lines = {line.split(" | ")[1]: line.split(" | ")[2:] for line in result.stdout.splitlines() if line.startswith("| d 128")}
        self.assertEqual(list(lines), ["forward, first step", "backward, finished", "backward, finished, any order"])
        cell = lambda burst: f"{burst:.0f} / {burst / 2:.0f}"  # noqa: E731
        ratio = lambda burst: f"{600 / burst:.2f} / {500 / (burst / 2):.2f}"  # noqa: E731
        for line, cudnn, fa4 in (("forward, first step", flops / 0.01, flops / 0.02), ("backward, finished", flops * 2.5 / 0.04, flops * 2.5 / 0.08)):
            self.assertEqual([each.rstrip(" |") for each in lines[line]],
                             ["600 / 500", cell(cudnn), ratio(cudnn), cell(fa4), ratio(fa4)])
        modes = {call[5] for call in self.calls() if call[0] == "fa4"}
        self.assertEqual(modes, {True, False})

    def test_a_program_that_fails_leaves_the_rows_of_the_others(self):
        self.with_torch()
        result = self.run_script("--cases", "128:1000:full", "64:1000:causal", "--steps", "forward_first", "backward_finished", FAKE_FAILURE="64")
        self.assertEqual(result.returncode, 1)
        self.assertIn("out of memory", result.stderr)
        (backward,) = (line for line in result.stdout.splitlines() if line.startswith("| d 128, 1000, full | backward"))
        self.assertTrue(backward.endswith("| no such mode |  |"), backward)
        (failed,) = (line for line in result.stdout.splitlines() if line.startswith("| d 64, 1000, causal | forward"))
        self.assertTrue(failed.startswith("| d 64, 1000, causal | forward, first step | failed | 0 / 0 |  | 0 / 0 |  |"), failed)

    def test_without_flash_attention_and_without_pytorch(self):
        self.with_torch(flash_attention=False)
        result = self.run_script("--cases", "128:1000:causal")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("FlashAttention-4 not there", result.stdout)
        (self.folder / "log").unlink()
        result = self.run_script("--cases", "128:1000:causal", "--without-pytorch", "--rounds", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([call[0] for call in self.calls()], ["annulus"] * 2)
        self.assertIn("| d 128, 1000, causal | forward, first step | 600 / 500 |  |  |  |  |", result.stdout)

    def test_bounds_of_time(self):
        result = self.run_script("--cases", "128:1000:causal", "128:2000:full", "--without-pytorch", "--limit", 0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse((self.folder / "log").exists())
        self.assertIn("not measured: 128:1000:causal, 128:2000:full", result.stdout)
        options = lambda seconds: local_attention.argparse.Namespace(  # noqa: E731
            seconds_per_case=seconds, repetitions=9, pause=0.5, sustained=0.2)
        self.assertEqual([local_attention.repetitions_in(options(seconds), 10) for seconds in (None, 100, 35, 1)], [9, 9, 5, 3])

    def test_what_is_missing_is_told_before_anything_runs(self):
        for arguments, gpus, text in (((), 0, "shows no NVIDIA GPU"), (("--cases", "128:causal"), 1, "give HEAD_DIM:TOKENS:MASK"),
                                      (("--kv-heads", 3), 1, "give divisors of --heads 32"), (("--rounds", 0), 1, "give 1 or more"),
                                      (("--bench", "/none"), 1, "is no program")):
            result = self.run_script(*arguments, gpus=gpus)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(text, result.stderr)
            self.assertFalse((self.folder / "log").exists(), "nothing ran")
        if importlib.util.find_spec("torch") is None:
            self.assertIn("has no PyTorch", self.run_script().stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
