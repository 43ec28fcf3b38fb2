"""local_attention.py and what it puts beside Annulus: the method of timing, masks, selections, the table."""

import contextlib
import io
import itertools
import json
import subprocess
import sys
import unittest
from unittest import mock

from common import PROGRAMS, InFolder, option

import flex_peer
import local_attention
import local_peers

try:
    import h5py
    import numpy
except ImportError:
    h5py = None


class FakeClock:
    """A single call takes 0.25 s, each of several 0.5 s."""

    def __init__(self):
        self.events = []
        self.hold, self.wait, self.sleep = (lambda *values, name=name: self.events.append(" ".join([name, *map(str, values)])) for name in ("hold", "wait", "sleep"))

    def seconds(self, work, calls):
        self.events.append(f"time {calls}")
        for _ in range(calls):
            work()
        return 0.25 if calls == 1 else 0.5 * calls


class NumpyTorch:
    """What flex_peer.py asks of PyTorch, on numpy: attention over exactly the pairs of a BlockMask."""

    def __init__(self):
        class Tensor(numpy.ndarray):
            requires_grad_ = detach = cpu = float = contiguous = to = lambda self, *_: self
            norm = lambda self: numpy.linalg.norm(self)  # noqa: E731
            repeat_interleave = lambda self, count, axis: numpy.repeat(self, count, axis)  # noqa: E731

        self.from_numpy = lambda array: array.view(Tensor)
        self.bfloat16 = self.float16 = self.float32 = None
        self.autograd, self.cuda = mock.Mock(grad=self.gradients), None

    @contextlib.contextmanager
    def in_place_of_pytorch(self):
        flex = mock.Mock(BlockMask=mock.Mock(from_kv_blocks=self.block_mask), flex_attention=self.attention)
        names = ["torch", "torch.nn", "torch.nn.attention"]
        with mock.patch.dict(sys.modules, {name: mock.Mock() for name in names} | {"torch.nn.attention.flex_attention": flex}):
            yield

    def block_mask(self, count, first, whole_count, whole_first, BLOCK_SIZE, mask_mod, seq_lengths):
        q, k = numpy.arange(seq_lengths[0])[:, None], numpy.arange(seq_lengths[1])
        allowed = numpy.zeros((first.shape[1], *seq_lengths), bool)
        for counts, indices, is_whole in ((count, first, False), (whole_count, whole_first, True)):
            for head, row in itertools.product(*map(range, counts.shape[1:])):
                for column in indices[0, head, row, :counts[0, head, row]]:
                    tile = numpy.s_[row * BLOCK_SIZE:(row + 1) * BLOCK_SIZE, column * BLOCK_SIZE:(column + 1) * BLOCK_SIZE]
                    assert not allowed[head][tile].any(), "a tile stands twice"
                    allowed[head][tile] = is_whole or mask_mod(0, head, q, k)[tile]
        self.mask = mock.Mock(allowed=allowed, whole=int(whole_count.sum()))
        return self.mask

    def attention(self, q, k, v, block_mask, scale, enable_gqa):
        assert enable_gqa
        self.scale, group = scale, q.shape[1] // k.shape[1]
        self.q, self.k, self.v = (tensor.astype(float) for tensor in (q, numpy.repeat(k, group, 1), numpy.repeat(v, group, 1)))
        scores = numpy.where(block_mask.allowed, scale * self.q @ self.k.swapaxes(2, 3), -numpy.inf)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        self.p = weights / weights.sum(-1, keepdims=True)
        return self.p @ self.v

    def gradients(self, out, inputs, d_out, retain_graph):
        assert retain_graph
        dp = d_out @ self.v.swapaxes(2, 3)
        ds = self.scale * self.p * (dp - (self.p * dp).sum(-1, keepdims=True))
        of_group = lambda tensor: tensor.reshape(*inputs[1].shape[:2], -1, *tensor.shape[2:]).sum(2)  # noqa: E731
        return ds @ self.k, of_group(ds.swapaxes(2, 3) @ self.q), of_group(self.p.swapaxes(2, 3) @ d_out)


class LocalAttention(InFolder):
    def test_burst_follows_pauses_and_sustained_follows_work(self):
        clock = FakeClock()
        rates = local_peers.rates(clock, lambda: clock.events.append("work"), repetitions=2, pause=0.5, sustained=1.0)
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

    def test_one_table_of_all_programs(self):
        of_case = lambda seconds: {"burst": seconds, "sustained": 2 * seconds}  # noqa: E731
        rates = {"cudnn": {"forward": of_case(0.01), "backward": {"error": "no such mode"}},
                 "fa4": {name: of_case(seconds) for name, seconds in (("forward", 0.02), ("backward", 0.04), ("backward_deterministic", 0.08))}}
        peers = mock.Mock(programs=["cudnn", "fa4"], about={"torch": "2.11", "cudnn": 9, "flash_attn": None}, ask=lambda case: (
            {"error": "not supported"} if case["mask"] != "causal" and case["program"] == "cudnn" else rates[case["program"]]))
        steps = lambda command: command[command.index("--steps") + 1:command.index("--json")]  # noqa: E731
        report = lambda command: {"git_hash": "abc", "device": "a GPU", "attention_kernel": "hopper", "steps": {  # noqa: E731
            name: {"burst": {"tflops": 600}, "sustained": {"tflops": 500}} for name in steps(command)}}
        with mock.patch.object(local_attention, "Peers", lambda log: peers):
            status, text, _ = self.start(local_attention, "--cases", "128:1000000:causal", "64:1000:window:9,0", "--heads", 2, "--kv-heads", 1, "--steps",
                                         "forward_first", "backward_finished_any_order", report=report)
        self.assertEqual(status, 1, "a mode that is missing")
        self.assertRegex(text, "^1 × NVIDIA H200, Annulus git abc, [-0-9]+\n\nbf16, 2 heads, ")
        self.assertIn("--kv-heads 1 --head-dim 128 --batch 1 --mask causal --dtype bf16", " ".join(self.commands[0][0]))
        flops = 2 * 4 * 128 * 1000000 * 1000001 // 2 * 1e-12
        both = lambda burst, digits=0: f"{burst:.{digits}f} / {burst / 2:.{digits}f}"  # noqa: E731
        ratio = lambda burst: f"{600 / burst:.2f} / {500 / (burst / 2):.2f}"  # noqa: E731
        first = f"| {both(flops / 0.01)} | {ratio(flops / 0.01)} | {both(flops / 0.02)} | {ratio(flops / 0.02)} |"
        self.assertIn(f"| d 128, 1000000, causal, 1 kv heads | forward, first step | 600 / 500 {first}\n", text)
        self.assertIn("| backward, finished, any order | 600 / 500 | no such mode |  | ", text)
        self.assertIn("| d 64, 1000, window:9,0, 1 kv heads | forward, first step | 600 / 500 | not supported |  | 0 / 0 |", text)

    def test_v_of_another_width(self):
        peers = mock.Mock(programs=["fa4"], about={"torch": "2.11", "cudnn": 9, "flash_attn": "4"},
                          ask=lambda case: {name: {"burst": 0.01, "sustained": 0.01} for name in ("forward", "backward")})
        report = lambda command: {"steps": {name: {"burst": {"tflops": 1}, "sustained": {"tflops": 1}} for name in ("forward_first", "backward_finished_any_order")}}  # noqa: E731
        with mock.patch.object(local_attention, "Peers", lambda log: peers):
            _, text, _ = self.start(local_attention, "--cases", "192/128:100000:causal", "--heads", 1, "--steps", "forward_first", "backward_finished_any_order", report=report)
        self.assertIn("--head-dim 192 --v-head-dim 128 ", " ".join(self.commands[0][0]))
        pairs = 100000 * 100001 // 2
        for label, columns in (("forward, first step", 2 * (192 + 128)), ("backward, finished, any order", 6 * 192 + 4 * 128)):
            self.assertIn(f"| d 192/128, 100000, causal | {label} | 1 / 1 |  |  | {columns * pairs * 1e-10:.0f} / ", text)

    def test_selections_beside_flex_attention(self):
        report = lambda command: None if option(command, "--kernel") == "mma" else {  # noqa: E731
            "git_hash": "abc", "sparsity": {"density": 0.125, "pairs": 77, "selection_seconds": 0.25}, "forward": {"seconds": 1.25}, "backward": {"seconds": 2.0}}
        flex = {"forward": 1.5, "backward": 5.0, "errors": {"out": 1e-3, "dq": 2e-3, "dk": 4e-3, "dv": 3e-3}, "pairs": 77}
        for pairs, status in ((77, 1), (78, 1)):
            asked = []
            peers = mock.Mock(programs=["cudnn"], about={"torch": "2.11", "cudnn": 9, "flash_attn": None, "gpu": "a GPU"},
                              ask=lambda case: asked.append(case) or flex | {"pairs": pairs})
            self.commands.clear()
            with mock.patch.object(local_attention, "Peers", lambda log: peers):
                found, text, _ = self.start(local_attention, "--cases", "128:1024:causal", "--heads", 4, "--kv-heads", 2, "--sparsity", "moba:block=128,top=3", report=report)
            self.assertEqual((found, [option(command, "--kernel") for command, _ in self.commands]), (status, ["hopper", "mma"]), "mma has failed")
            self.assertEqual([case["dump"] for case in asked], [option(self.commands[0][0], "--dump")])
            self.assertIn("| moba:block=128,top=3 | mma |  |  | failed |", text)
            head = "| d 128, 1024, 4 / 2 heads | moba:block=128,top=3 | hopper | 12.5 % |"
            if pairs == 77:
                self.assertIn(f"{head} forward | 1000.00 | 1500.00 | 1.50 | 250.00 | 1.0e-03 |\n{head} backward | 2000.00 | 5000.00 | 2.50 |  | 4.0e-03 |", text)
            else:
                self.assertIn(f"{head} forward | 1000.00 | 78 pairs, not 77 |  |", text)
        self.refused(local_attention, ((["--sparsity", "moba:block=128,top=3", "--cases", case], "causal --cases", {}) for case in ("128:1024:full", "192/128:1024:causal")))

    @unittest.skipIf(h5py is None, "no h5py")
    def test_dumps_become_block_masks_and_results_are_compared(self):
        tokens, whole_tiles = 512, 0
        for pattern in ("moba:block=128,top=2", "moba:block=256,top=1", "infllm-v2:block=64,top=3,window=64", "xattention:block=64,stride=16,threshold=0.5"):
            dump, report = self.folder / "dump.h5", self.folder / "report.json"
            subprocess.run(list(map(str, [PROGRAMS / "annulus-bench", "attention", "--ranks", 1, "--tokens", tokens, "--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--sparsity",
                                          pattern, "--layout", "contiguous", "--schedule", "ring", "--cluster", "none", "--repetitions", 1, "--dump", dump, "--json", report])),
                           check=True, capture_output=True)
            torch = NumpyTorch()
            measure = lambda: flex_peer.measure(torch, {"dump": dump, "repetitions": 2, "device": "cpu"})  # noqa: E731
            with torch.in_place_of_pytorch():
                found = measure()
                with h5py.File(dump, "r+") as file:
                    self.assertTrue((torch.mask.allowed == file["allowed"][0].astype(bool)).all(), pattern)
                    file["dk"][...] = 1.1 * file["dk"][...]
                self.assertIn("the results differ: out", measure()["error"])
            self.assertLess(max(found["errors"].values()), 1e-5)
            self.assertGreater(min(found["forward"], found["backward"]), 0)
            self.assertEqual(found["pairs"], json.loads(report.read_text())["sparsity"]["pairs"])
            self.assertLess(found["pairs"], 4 * tokens * (tokens + 1) // 2, "some pairs are left out")
            whole_tiles += torch.mask.whole
        self.assertGreater(whole_tiles, 0)

    def test_peers_answer_until_they_end(self):
        script = self.folder / "peers.py"
        script.write_text("import json, sys\nprint(json.dumps({'flash_attn': None}), flush=True)\nfor line in sys.stdin:\n"
                          "    case = json.loads(line)\n    print(json.dumps({'forward': 2 * case['tokens']}), flush=True)\n    if case['tokens'] == 3:\n        sys.exit('enough')\n")
        with mock.patch.object(local_peers, "__file__", str(script)), contextlib.redirect_stderr(io.StringIO()) as err:
            peers = local_attention.Peers(self.folder / "peers.log")
            self.assertEqual((peers.programs, peers.ask({"tokens": 2}), peers.ask({"tokens": 3}), peers.ask({"tokens": 2})), (["cudnn"], {"forward": 4}, {"forward": 6}, None))
            peers.end()
        self.assertIn("peers.log ends with:\n  enough", err.getvalue())

    def test_bounds_of_time_and_refusals(self):
        status, text, _ = self.start(local_attention, "--cases", "128:1000:causal", "--without-pytorch", "--budget", 0, report=lambda command: self.fail("nothing runs"))
        self.assertIn("not measured: 128:1000:causal", text)
        options = lambda seconds: mock.Mock(seconds_per_case=seconds, repetitions=9, pause=0.5, sustained=0.2)  # noqa: E731
        self.assertEqual([local_attention.repetitions_in(options(seconds), 10) for seconds in (None, 100, 35, 1)], [9, 9, 5, 3])
        self.refused(local_attention, (([], "shows no NVIDIA GPU", {"gpus": 0}), (["--cases", "128:causal"], "HEAD_DIM:TOKENS:MASK", {}),
                                       (["--kv-heads", 3], "--kv-heads 3", {})))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
