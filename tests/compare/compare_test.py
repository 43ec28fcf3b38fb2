"""The scripts of apps/compare: what they start, their tables and their exit statuses. Training runs for real, on the host's cores;
what needs GPUs is replaced by what it would report. No number in here was measured by the test.

usage: compare_test.py PROGRAM-FOLDER MPIRUN [MPIRUN FLAG...]
"""

import argparse
import contextlib
import csv
import io
import itertools
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock
from xml.etree import ElementTree

sys.dont_write_bytecode = True  # nothing is left in the sources
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "apps" / "compare"
sys.path.insert(0, str(SCRIPTS))

import attention  # noqa: E402
import auto  # noqa: E402
import documents  # noqa: E402
import extension  # noqa: E402
import fixed_order  # noqa: E402
import flex_peer  # noqa: E402
import gpu_rates  # noqa: E402
import launch  # noqa: E402
import local_attention  # noqa: E402
import local_peers  # noqa: E402
import matrix  # noqa: E402
import prediction  # noqa: E402
import quality  # noqa: E402
import same_bits  # noqa: E402
import saving  # noqa: E402
import sparse_training  # noqa: E402
import training  # noqa: E402

try:
    import h5py
    import numpy
except ImportError:
    h5py = None

PROGRAMS, MPIRUN = pathlib.Path(sys.argv[1]), sys.argv[2:]


def option(command, name):
    return str(command[command.index(name) + 1])


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="annulus-test-")
        self.addCleanup(folder.cleanup)
        self.folder, self.commands = pathlib.Path(folder.name), []
        (self.folder / "cluster.toml").touch()

    def start(self, script, *arguments, gpus=4, visible="0,1,2,3", report=None, **patches):
        """A script's exit status, its table and its errors. `report` stands in for the programs that write JSON: it gets the command."""
        def measured(command, stem, seconds, well=(0,)):
            self.commands.append((list(map(str, command)), os.environ["CUDA_VISIBLE_DEVICES"]))
            found = report(command)
            return found, found is not None

        argv = [script.__name__, "--bench" if hasattr(script, "PASSES") or script in (local_attention, documents) else "--train", sys.executable,
                "--out", self.folder / "out", "--mpirun", "env", *arguments]
        if report:
            patches["measured"] = measured
        with mock.patch.object(sys, "argv", list(map(str, argv))), mock.patch.multiple(launch, **patches) if patches else contextlib.nullcontext(), \
                mock.patch.object(launch.subprocess, "run", self.nvidia_smi(gpus)), \
                mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible), mock.patch("importlib.util.find_spec"), \
                contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                status = script.main()
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    @staticmethod
    def nvidia_smi(gpus):
        listed = "".join(f"{number}\n" for number in range(gpus))
        return lambda command, **_: subprocess.CompletedProcess(command, 0, listed if "--query-gpu=index" in command else "64512\n63488\n")

    def refused(self, script, cases, **common):
        for arguments, text, environment in cases:
            status, _, errors = self.start(script, *arguments, report=lambda command: self.fail("nothing runs"), **common | environment)
            self.assertEqual(status, 2, arguments)
            self.assertIn(text, errors)


class Attention(InFolder):
    """4 ranks, or 8 in turns; passes of the times given, of which a quarter is exposed."""

    times = [[0.5]]

    def report(self, command):
        tokens = int(option(command, "--tokens"))
        if "--schedule" not in command:
            passes = {name: {"seconds_each": [seconds], "exposed_communication_seconds": 0.1} for name, seconds in (("forward", 0.25), ("backward", 1.0))}
            cases = [{"tokens": tokens, "rotation": "allgather", "backend": "cudnn"} | passes,
                     {"tokens": tokens, "rotation": "alltoall", "backend": "cudnn", "error": "out of memory"}]
            return {"version": "2.11", "gpu": "a GPU", "cudnn": 9, "nccl": "2.28", "cases": cases}
        each = self.times[min(len([1 for ours, _ in self.commands if "--schedule" in ours]), len(self.times)) - 1]
        if each is None:
            return None
        passes = {name: {"seconds_each": seconds, "exposed_communication": {"seconds": 0.25 * seconds[0]}}
                  for name, seconds in (("forward", each), ("backward", [1.5]))}
        return {"git_hash": "abc", "cases": [{"config": {"schedule": "ring", "layout": "zigzag", "tokens": tokens}} | passes],
                "unsupported": [{"schedule": "double-ring", "layout": "zigzag", "tokens": tokens, "reason": "not on 1 rank"}]}

    def compare(self, *arguments, **more):
        status, text, errors = self.start(attention, "--tokens", 1024, *arguments, report=self.report, **more)
        with open(self.folder / "out.csv", newline="") as file:
            return status, text, list(csv.DictReader(file))

    def test_one_table_of_all_gpus_and_two_nodes(self):
        status, text, rows = self.compare()
        self.assertEqual(status, 0)
        ours = [command for command, _ in self.commands if "--schedule" in command]
        self.assertEqual([option(command, "--ranks-per-node") for command in ours], ["4", "2"])
        self.assertIn("NCCL_HOSTID=node$((${OMPI_COMM_WORLD_RANK", ours[1][5])
        cases = [("PyTorch", "allgather, cudnn"), ("PyTorch", "alltoall, cudnn"), ("Annulus", "ring, zigzag"), ("Annulus", "double-ring, zigzag")]
        self.assertEqual([(r["nodes"], r["program"], r["case"]) for r in rows], [(nodes, *case) for nodes in "12" for case in cases])
        pairs = 32 * 1024 * 1025 / 2
        self.assertAlmostEqual(float(rows[2]["forward_tflops"]), 4 * 128 * pairs / 0.5 / 4 * 1e-12)
        self.assertAlmostEqual(float(rows[2]["backward_tflops"]), 10 * 128 * pairs / 1.5 / 4 * 1e-12)
        self.assertEqual([rows[i]["error"] for i in (0, 1, 3)], ["", "out of memory", "not on 1 rank"])
        self.assertIn("| 2 × 2 | 1024 | Annulus, ring, zigzag | 500.00 (500.00 to 500.00) | 0 | 125.00 | 1500.00 (1500.00 to 1500.00) | 0 | 375.00 |\n", text)
        self.assertEqual({line.count("|") for line in text.splitlines()[2:]}, {10}, "every row has all columns")
        self.assertEqual((self.folder / "out.md").read_text(), text)

    def test_more_ranks_than_gpus_take_turns_on_emulated_nodes(self):
        status, text, rows = self.compare("--ranks", 8)
        self.assertEqual((status, {(r["nodes"], r["ranks"], r["gpus"]) for r in rows}), (0, {("2", "8", "4")}))
        self.assertAlmostEqual(float(rows[2]["forward_tflops"]), 4 * 128 * 32 * 1024 * 1025 / 2 / 0.5 / 4 * 1e-12, msg="a GPU, not a rank")
        self.assertTrue(text.startswith("8 ranks in turns on 4 × a GPU, "))

    def test_rounds_alternate_and_give_ranges(self):
        self.times = [[0.2, 0.3], [0.6, 0.4], [0.1, 0.9]]
        status, text, rows = self.compare("--nodes", 2, "--rounds", 3)
        self.assertEqual((status, ["--schedule" in command for command, _ in self.commands]), (0, [False, True] * 3))
        self.assertEqual([rows[2][f"forward_{name}"] for name in ("ms", "ms_min", "ms_max", "exposed_ms")], ["350.0", "100.0", "900.0", "50.0"])
        self.assertIn("3 rounds in turns", text)

    def test_a_round_that_fails_is_told_beside_those_that_did_not(self):
        self.times = [[0.5], None]
        status, text, rows = self.compare("--without-pytorch", "--nodes", 1, "--rounds", 2)
        self.assertEqual(status, 1)
        self.assertEqual([(r["rounds"], r["error"]) for r in rows], [("1", ""), ("0", "not on 1 rank"), ("0", "failed")])

    def test_fewer_gpus_than_there_are(self):
        for arguments, seen, more in ((["--gpus", 2], "0,1", {}), (["--ranks", 1], "0", {}), (["--gpus", 1, "--ranks", 2], "3", {"visible": "3,2"}),
                                      ([], "0", {"gpus": 1}), ([], "0,1,2", {"gpus": 3, "visible": "0,1,2"})):
            self.commands = []
            self.assertEqual(self.compare("--without-pytorch", *arguments, **more)[0], 0)
            self.assertLessEqual({visible for _, visible in self.commands}, {seen, more.get("visible", "0,1,2,3")})

    def test_what_cannot_be_run_is_refused(self):
        self.refused(attention, (([], "shows no NVIDIA GPU", {"gpus": 0}), ([], "shows no NVIDIA GPU", {"visible": ""}),
                                 (["--gpus", 8], "--gpus 8, but programs see 4", {}), (["--ranks", -1], "--ranks -1", {}), (["--rounds", 0], "--rounds 0", {}),
                                 (["--ranks", 8, "--nodes", 2, 1], "--nodes 1 has 8 ranks a node for 4 GPUs", {}), (["--nodes", 3], "--nodes 3", {}),
                                 (["--bench", "none"], "none is no program", {}), (["--mpirun", "no-mpirun -q"], "no-mpirun", {})))
        status, _, errors = self.start(attention, "--budget", 4, report=lambda command: self.fail("nothing runs"))
        self.assertEqual((status, errors.count("NOT RUN")), (1, 4))


class Documents(InFolder):
    """Each layout takes 10 ms on 4 ranks, but for the one balanced, and 32 ms on one."""

    def compare(self, balanced, *arguments):
        def report(command):
            seconds = lambda layout: {"seconds": 0.032 if option(command, "-n") == "1" else balanced if layout == "balanced" else 0.01, "tflops_per_rank": 501.2}  # noqa: E731
            layouts = command[command.index("--layout") + 1:command.index("--json")]
            cases = [{"config": {"schedule": "ring", "layout": layout}, "forward": seconds(layout), "backward": seconds(layout)} for layout in layouts]
            return {"cases": cases} if len(cases) > 1 else cases[0]
        return self.start(documents, "--schedule", "ring", "--tokens", 4096, *arguments, report=report)

    def test_mixes_fill_the_sequence(self):
        for mix in documents.MIXES:
            lengths = documents.lengths_of(mix, 5000)
            self.assertEqual((sum(lengths), min(lengths) > 0), (5000, True), mix)
            self.assertEqual(lengths, documents.lengths_of(mix, 5000), "drawn from a fixed seed")
        self.assertEqual(max(documents.lengths_of("a half", 5000)), 2500)
        lengths = [length for drawing in range(100) for length in documents.lengths_of("magi", 262144, drawing)]
        self.assertEqual(max(lengths), 65536, "no document has more than a quarter")
        self.assertAlmostEqual(sum(length <= 350 for length in lengths) / len(lengths), 0.4675, delta=0.02)

    def test_balanced_beside_the_fastest_fixed_layout(self):
        status, text, _ = self.compare(0.0095, "--mix", "tiny", "one")
        self.assertEqual(status, 0)
        self.assertIn("| one | 1 | 4096 | 4 | 8.0 + 8.0 | 10.0 + 10.0 (ring, contiguous) | 9.5 + 9.5 (ring, balanced) | 0.950 | 0.842 | 501 / 501 |\n", text)
        self.assertEqual([option(command, "-n") for command, _ in self.commands], ["1", "4"] * 2)
        self.assertEqual(option(self.commands[-1][0], "--mask"), "causal+documents:0")

    def test_numbers_of_ranks_in_one_run(self):
        status, text, _ = self.compare(0.0095, "--mix", "tiny", "one", "--ranks", 1, 2, 0)
        self.assertEqual(status, 0)
        self.assertEqual([option(command, "-n") for command, _ in self.commands], ["1", "1", "2", "4"] * 2)
        self.assertIn("| one | 1 | 4096 | 2 | 16.0 + 16.0 |", text)

    def test_predicts_on_nodes(self):
        def report(command):
            self.assertEqual(pathlib.Path(option(command, "--documents")).read_text(), "4096\n")
            return {"time": (2.5 if option(command, "--pass") == "backward" else 1) * (0.008 if option(command, "--ranks") == "1" else 0.001)}
        status, text, _ = self.start(documents, "--predict", 2, "--ranks", 4, "--mix", "one", "--tokens", 4096, "--schedule", "hybrid:2x2", "--layout", "balanced", "zigzag", report=report)
        self.assertEqual(status, 0)
        self.assertIn("| one | 1 | 4096 | 4 | 2.0 + 5.0 | 1.0 + 2.5 (hybrid:2x2, zigzag) | 1.0 + 2.5 (hybrid:2x2, balanced) | 1.000 | 2.000 | 34 / 34 |\n", text)
        self.assertEqual([option(command, "--ranks-per-node") for command, _ in self.commands], ["1", "1"] + ["2"] * 4)
        self.refused(documents, [(["--predict", 2], "give --ranks", {})])

    def test_texts_have_the_tokens_of_the_documents(self):
        status, _, _ = self.start(documents, "--texts", self.folder / "texts.jsonl", "--sequences", 2, "--mix", "log-normal", "--tokens", 3000, report=lambda command: self.fail("nothing runs"))
        with open(self.folder / "texts.jsonl", encoding="utf-8") as file:
            tokens = [len(json.loads(line)["text"]) + 1 for line in file]
        self.assertEqual((status, sum(tokens), min(tokens) > 1), (0, 6000, True))
        self.assertIn(3000, list(itertools.accumulate(tokens)), "sequences begin with documents")

    def test_slower_than_a_fixed_layout_is_an_error(self):
        self.assertEqual(self.compare(0.0104, "--mix", "one")[0], 3)
        self.assertEqual(self.compare(0.0104, "--mix", "one", "--within", 1.05)[0], 0)


class Prediction(InFolder):
    ratios = (1.1, 1.2)

    def report(self, command):
        of = lambda ratio: {"seconds": 0.1 * ratio, "predicted": {"seconds": 0.1, "measured_over_predicted": ratio}}  # noqa: E731
        return {"git_hash": "abc", "config": {"schedule": "ring", "layout": "zigzag", "tokens": 64}, "topology": {}, "forward": of(self.ratios[0]), "backward": of(self.ratios[1])}

    def test_predicts_from_what_was_measured_before(self):
        common = ["--tokens", 64, "--ranks", 4, "--nodes", 1, 2]
        status, text, _ = self.start(prediction, *common, "--within", 0.3, "--mean", 0.2, report=self.report)
        self.assertEqual((status, ["links" in command for command, _ in self.commands]), (0, [True, False] * 2))
        self.assertEqual(option(self.commands[2][0], "--output"), option(self.commands[3][0], "--cluster"))
        self.assertIn("| 2 × 2 | 64 | ring, zigzag | 110.00 | 100.00 | 1.100 | 120.00 | 100.00 | 1.200 |\n", text)
        self.assertEqual(self.commands[0][0][self.commands[0][0].index("--rows") + 1:self.commands[0][0].index("--output")], ["16"])
        self.assertEqual(self.start(prediction, *common, report=lambda command: None)[0], 1)
        self.refused(prediction, ((["--ranks", 1], "--ranks 1", {}),
                                  (["--ranks", 4, "--nodes", 3], "--nodes 3", {}), (["--ranks", 128, "--tokens", 64], "--ranks 128", {})))

    def test_the_worst_error_and_the_mean_are_judged(self):
        for self.ratios, status, text in (((1.09, 0.995), 0, "0.995 to 1.090; 2 of 2 are within 10%, and the mean error is 4.8% (goal: 5%)"), ((1.11, 1.0), 3, "1 of 2 are within 10%"),
                                          ((0.93, 0.93), 3, "2 of 2 are within 10%, and the mean error is 7.0%")):
            found, said, _ = self.start(prediction, "--tokens", 64, "--ranks", 4, report=self.report)
            self.assertEqual((found, text in said), (status, True), said)

    def test_blocks_are_as_large_as_shards_up_to_what_links_measures(self):
        self.start(prediction, "--tokens", 262144, 1048576, "--ranks", 4, report=self.report)
        command = self.commands[0][0]
        self.assertEqual(command[command.index("--rows") + 1:command.index("--output")], ["32768", "65536"])


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
        self.assertIn("--kv-heads 1 --head-dim 128 --batch 1 --mask causal --dtype bf16", " ".join(self.commands[0][0]))
        flops = 2 * 4 * 128 * 1000000 * 1000001 // 2 * 1e-12
        both = lambda burst, digits=0: f"{burst:.{digits}f} / {burst / 2:.{digits}f}"  # noqa: E731
        ratio = lambda burst: f"{600 / burst:.2f} / {500 / (burst / 2):.2f}"  # noqa: E731
        first = f"| {both(flops / 0.01)} | {ratio(flops / 0.01)} | {both(flops / 0.02)} | {ratio(flops / 0.02)} |"
        self.assertIn(f"| d 128, 1000000, causal, 1 kv heads | forward, first step | 600 / 500 {first}\n", text)
        self.assertIn("| backward, finished, any order | 600 / 500 | no such mode |  | ", text)
        self.assertIn("| d 64, 1000, window:9,0, 1 kv heads | forward, first step | 600 / 500 | not supported |  | 0 / 0 |", text)

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
        self.refused(local_attention, ((["--sparsity", "moba:block=128,top=3", "--cases", "128:1024:full"], "causal --cases", {}),))

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


class OnTheHost(InFolder):
    """Trains for real, on two ranks of the host where nothing else is said."""

    keys = ["model.layers=1", "model.vocabulary=257"]

    def train(self, script, *arguments):
        subprocess.run([PROGRAMS / "annulus-tokens", "pack", "--out", self.folder / "shards", ROOT / "data/fixture/text"], check=True, capture_output=True)
        command = [sys.executable, script.__file__, "--train", PROGRAMS / "annulus-train", "--shards", self.folder / "shards", "--device", "cpu", "--gpus", 2,
                   "--model", ROOT / "data/demo.toml", "--mpirun", shlex.join(MPIRUN), "--out", self.folder / "out", "--set", *self.keys, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def rows(self):
        return json.loads((self.folder / "out.json").read_text())["rows"]


class Training(OnTheHost):
    def test_cases_run_and_one_that_fails_leaves_the_others(self):
        result = self.train(training, "--tokens", 64, "--steps", 3, "--case", "wrong: memory.recompute=nothing", "groups: parallel.context=1 memory.recompute=full")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("'nothing' is unknown", result.stderr)
        self.assertIn("| 64 | Annulus | wrong | failed |", result.stdout)
        _, row = self.rows()
        self.assertEqual((len(row["losses"]), row["tokens_per_step"], row["attention"]), (3, 128, 2), "two groups read a sequence each")
        self.assertRegex(result.stdout, rf"\| 2\.00 \| {row['slowest']:.3f} \|", "slowest rank")
        self.assertEqual(self.train(training, "--tokens", 64).returncode, 2, "records of earlier runs are not taken for new ones")

    def test_steps_are_compared_with_what_a_cluster_file_allows(self):
        cluster = self.folder / "measured.toml"
        command = ["--tokens", 64, "--steps", 2, "--case", "full: memory.recompute=full", "--cluster", cluster]

        def bench(options, ranks, what, stem, **words):
            self.assertEqual((options.program.name, what, ranks[-2:]), ("annulus-bench", "links", ["-n", 2]))
            self.assertEqual([words[name] for name in ("heads", "kv_heads", "head_dim", "ranks_per_node", "rows", "output")], [4, 2, 32, 2, [16, 32], cluster])
            cluster.write_text((ROOT / "data/clusters/h200.toml").read_text())
            return {}, True
        argv = [training.__file__, "--train", PROGRAMS / "annulus-train", "--shards", "none", "--device", "cpu", "--gpus", 2, "--model", ROOT / "data/demo.toml",
                "--mpirun", shlex.join(MPIRUN), "--out", self.folder / "rates", *command]
        with mock.patch.object(sys, "argv", list(map(str, argv))), mock.patch.object(launch, "bench", bench):
            options = training.parse()
            training.measure_rates(options)
        expected = training.predicted(options, 64, ["memory.recompute=full", "model.layers=1", "model.vocabulary=257"])["predicted_seconds"]
        result = self.train(training, *command)
        self.assertEqual(result.returncode, 0, result.stderr)
        (row,) = self.rows()
        self.assertEqual(row["predicted_seconds"], expected)
        self.assertIn(f"| {100 * expected / row['seconds'][1]:.1f} % |", result.stdout)
        result = self.train(training, *command, "--tokens", 64, 128, "--continue", "missing")
        self.assertEqual((result.returncode, [each["tokens"] for each in self.rows()]), (0, [64, 128]), result.stderr)
        self.assertEqual(self.rows()[0], row, "it is not measured again")

    def test_a_killed_run_goes_on_and_is_compared(self):
        result = self.train(saving, "--tokens", 64, "--every", 40, "--case", "copy:")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        (row,) = self.rows()
        self.assertEqual(len(row["bits"][0]), 2, "steps that both runs made")
        self.assertEqual(int(min(row["bits"][0])) % 40, 1, "from the one behind a checkpoint")
        self.assertRegex(result.stdout, r"\| copy \| 64 \| .* MB \| .* MB/s \| .* \| 2 steps: yes \|")
        self.assertFalse(list(self.folder.glob("out-runs/*/checkpoints")), "room for the next")
        self.assertIn("2 steps: no", saving.cells(mock.Mock(compare=2), row | {"same": False}))

    def test_pytorch_beside_it_and_ranks_in_turns(self):
        def run(command, log, seconds, enough):
            if "--out" not in command:
                return False, 0
            pathlib.Path(option(command, "--out")).write_text(json.dumps({"seconds": [9.0, 2.0, 2.0], "losses": [10.0] * 3, "arrays": 72 * 2**30, "flops": 989.4e12}))
            return True, 63 * 2**30
        status, text, _ = self.start(training, "--shards", "text", "--tokens", 1024, "--gpus", 2, "--case", "none:", "--pytorch", "full", run=run)
        self.assertEqual((status, text.splitlines()[3]), (1, "| 1024 | PyTorch | full | 256 | 2.00 (2.00 to 2.00) | 25.0 % |  | 72.0 | 63.0 |  |  |  |"))
        command = " ".join(map(str, training.train_command(mock.Mock(ranks=4, nodes=2, device="gpu", mpirun=["mpirun"]), self.folder, [])))
        self.assertRegex(command, r"NCCL_HOSTID=node.*parallel.ranks_per_node=2 --set parallel.transport=nccl")
        refusals = ((["--case", "full"], "--case 'full'"), (["--gpus", 5], "--gpus 5"), (["--steps", 0], "--steps 0"), (["--nodes", 3], "--nodes 3"),
                    (["--ranks", 4, "--gpus", 2], "--nodes 2 or more"), (["--config", "none.toml"], "none.toml"),
                    (["--pytorch", "full", "--nodes", 2], "--pytorch runs on one node"))
        self.refused(training, [(["--shards", "text", *arguments], text, {}) for arguments, text in refusals])

    def test_auto_is_compared_with_the_fastest_variant_of_each_policy_that_fits(self):
        def policy(name, seconds, fits, rows=0):
            memory = dict.fromkeys(auto.KEYS, 0) | {"recompute": [name], "chunk_rows": rows, "offload_optimizer": False}
            return {"memory": memory, "outline": name, "seconds": seconds, "fits": fits, "predicted_peak_bytes": {"device": {"total": 50 * 2**30}}}
        policies = [policy("none", 1.0, False), policy("selective", 1.25, True), policy("selective", 1.25, True, 4096), policy("full", 2.0, True)]
        plan = lambda command: {"configured": policies[1 if option(command, "--gpu-memory") == "80GiB" else 0], "policies": policies}  # noqa: E731
        took = {"selective": 1.25, "full": 2.0}

        def annulus(options, tokens, name, keys, folder):
            return {"tokens": tokens, "case": name, "seconds": [9.0, took[name.removeprefix("auto: ")]], "arrays": 60 * 2**30}, True
        for full, status, inside in ((2.0, 0, 1), (1.0, 3, 0)):
            took["full"] = full
            with mock.patch.object(training, "annulus", annulus):
                result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--runs", self.folder / f"{full}", report=plan)
            self.assertEqual(result, status)
            self.assertIn(f"| llama-7b | 4096 | 80GiB | auto: selective | 1.250 | 1.250 | 1.000 | 50.00 | 60.00 | {1.25 / min(took.values()):.3f} |\n", text)
            self.assertIn(f"within 5% of it in {inside} of 1 settings. One session: noise is not known.", text)
        took |= {"selective": 1.5, "full": 1.47}  # the last session measured full alone at 1.0 and is joined by one more
        with mock.patch.object(training, "annulus", annulus):
            result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--continue", "all", report=plan)
        self.assertIn("| auto: selective | 1.250 | 1.375 (1.250 to 1.500) | 1.100 | 50.00 | 60.00 | 1.113 |\n", text)
        self.assertIn("| full | 2.000 | 1.235 (1.000 to 1.470) | 0.617 | 50.00 | 60.00 | 1.000 |\n", text)
        self.assertEqual((result, "differ by up to 47.0%." in text, text.count("| auto: ")), (3, True, 1))
        with mock.patch.object(training, "annulus", lambda *_: self.fail("all is measured")):
            self.assertEqual(self.start(auto, "--shards", "text", "--settings", "4096:80GiB", "--cluster", "c.toml", "--continue", "missing", report=plan)[:2], (result, text))
        self.assertIn("memory.chunk_rows=4096", auto.settings_of(policies[2]["memory"]))
        result, text, _ = self.start(auto, "--shards", "text", "--settings", "4096:1GiB", "--cluster", "c.toml", "--runs", self.folder / "none", report=plan)
        self.assertEqual((result, "| 4096 | 1GiB | auto | nothing fits |" in text), (1, True))
        self.refused(auto, ((["--shards", "text", "--cluster", "c.toml", "--settings", "4096"], "--settings 4096", {}),
                            (["--shards", "text", "--cluster", "c.toml", "--settings", "4096:1GiB", "--file", "a.toml"], "not allowed with", {})))

    def test_the_eight_settings_are_planned_on_one_two_and_four_gpus(self):
        outlines = set()
        for ranks in (1, 2, 4):
            options = argparse.Namespace(file=SCRIPTS / "auto.toml", ranks=ranks, set=[], device="gpu", nodes=1, host_memory=f"{120 * ranks}GiB", end=float("inf"), time_limit=60,
                                         cluster=ROOT / "data/clusters/h200.toml", program=PROGRAMS / "annulus-train", candidates=4)
            settings = auto.settings_in(options)
            self.assertEqual(len({setting["setting"] for setting in settings}), 8)
            for number, setting in enumerate(settings):
                with contextlib.redirect_stderr(io.StringIO()) as err:
                    report = auto.plan(options, setting, self.folder / f"plan-{ranks}-{number}")
                self.assertTrue(report and report["configured"]["fits"], err.getvalue())
                self.assertTrue(2 <= len(auto.candidates(options, report)) <= 5)
                self.assertLess(report["configured"]["seconds"], 5)
                outlines.add(report["configured"]["outline"])
        for kind in ("none", "selective but for", "sequence-selective", "layers offloaded", "optimizer offloaded"):
            self.assertTrue([outline for outline in outlines if kind in outline], (kind, outlines))

    def test_settings_of_a_file_run_on_the_host(self):
        (self.folder / "settings.toml").write_text(f"[[setting]]\nname = 'demo'\nmodel = '{ROOT / 'data/demo.toml'}'\nlayers = 1\ntokens = 64\nmemory = '2GiB'\n")
        arguments = ["--file", self.folder / "settings.toml", "--cluster", ROOT / "data/clusters/h200.toml", "--candidates", 1, "--steps", 2, "--within", 99]
        result = self.train(auto, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(row["setting"], row["tokens"], row["auto"], len(row["losses"])) for row in self.rows()], [("demo", 128, True, 2), ("demo", 128, False, 2)])
        self.assertIn("parallel.zero=3 ", result.stderr)


class FixedOrder(OnTheHost):

    @staticmethod
    def row(order, seconds, losses=(1.0, 0.5), exposed=0.0):
        return {"case": "a case", "order": order, "seconds": [9.0, seconds, seconds], "exposed": [9.0, exposed, exposed], "losses": list(losses)}

    def test_the_table_has_ratio_spread_and_whether_losses_are_equal(self):
        rows = [self.row("any", 2.0), self.row("fixed", 2.1, exposed=0.25), self.row("any", 2.2), self.row("fixed", 2.1)]
        self.assertEqual(fixed_order.line(rows), ["a case", "2.100", "2.100", "1.000", "1.100", "0.00 / 0.12", "equal"])
        self.assertEqual(fixed_order.line([*rows[:3], self.row("fixed", 2.1, losses=(1.0, 0.75))])[-1], "**differ**")
        any_order = [self.row("any", 2.0, losses=(1.0, 0.25)), *rows[1:]]
        self.assertEqual(fixed_order.line(any_order)[-1], "equal", "losses in any order may be what they like")
        self.assertEqual(fixed_order.line([rows[0], {"case": "a case", "order": "fixed", "error": "not run"}])[1:3], ["not run"] * 2)

    def test_other_losses_are_an_error(self):
        arguments = ["--turns", 2, "--steps", 3, "--layers", 1, "--case", "tiny: data.sequence_length=64"]
        result = self.train(fixed_order, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\| tiny \|.*\| equal \|")
        self.assertEqual([row["order"] for row in self.rows()], ["any", "fixed"] * 2)
        losses = iter([[1.0], [1.0], [1.0], [2.0]])
        (self.folder / "shards").mkdir(exist_ok=True)
        with mock.patch.object(training, "annulus", lambda options, tokens, name, keys, folder: (self.row("", 2.0, next(losses)) | {"case": name}, True)):
            status, text, _ = self.start(fixed_order, "--shards", "text", "--runs", self.folder / "more", "--turns", 2, "--case", "tiny: data.sequence_length=64")
        self.assertEqual((status, "**differ**" in text), (1, True))

    def test_the_turns_that_are_missing_are_made(self):
        made = []

        def annulus(options, tokens, name, keys, folder):
            made.append((options.config.name, tokens, keys[-1]))
            return self.row("", 2.0) | {"case": name, "tokens": tokens, "program": "Annulus"}, True
        arguments = ["--shards", "text", "--case", "a case: config=llama-1b.toml data.sequence_length=64", "--continue", "missing"]
        with mock.patch.object(training, "annulus", annulus):
            self.assertEqual(self.start(fixed_order, *arguments, "--turns", 1)[0], 0)
            self.assertEqual(self.start(fixed_order, *arguments, "--turns", 2)[0], 0)
        self.assertEqual(made, [("llama-1b.toml", 64, fixed_order.ORDERS[order]) for order in ("any", "fixed")] * 2)
        self.assertEqual([(row["turn"], row["order"]) for row in self.rows()], [("0", "any"), ("0", "fixed"), ("1", "any"), ("1", "fixed")])

    def test_the_table_has_every_case_and_each_is_a_configuration(self):
        cases = dict(training.split_cases(None, fixed_order.CASES))
        self.assertEqual(len(cases), len(fixed_order.CASES))
        for model, tokens, layout, mask in itertools.product(("7B", "8B"), ("131072", "32768"), ("zigzag", "striped"), ("", ", documents")):
            self.assertIn(f"attention.layout={layout}", cases.pop(f"{model}, {layout}{mask}, {tokens}"))
        self.assertEqual(list(cases), ["1B, zigzag, 131072", "1B, zigzag, 8192", "7B, window 4096, 131072", "7B, vertical-slash, 131072"])
        for keys in dict(training.split_cases(None, fixed_order.CASES)).values():
            config, others = training.DATA / launch.value_of(keys, "config"), [key for key in keys if not key.startswith("config=")]
            result = subprocess.run([PROGRAMS / "annulus-train", config, "--print-config", *launch.settings(others)], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)


class SameBits(OnTheHost):
    def test_runs_give_the_same_bits_and_another_record_is_compared(self):
        self.keys = [*OnTheHost.keys, "model.hidden=32", "model.heads=2", "model.kv_heads=2", "model.head_dim=16", "model.ffn=32", "data.sequence_length=64", "train.dtype=f32"]
        arguments = ["--count", 2, "--steps", 2, "--no-planted-fault", "--case", "default:", "no overlap: attention.overlap=false"]
        first = self.train(same_bits, *arguments)
        self.assertEqual((first.returncode, "2 runs of 2 steps, 0 records of other sessions: 0 differ, 0 failed\n"), (0, first.stdout), first.stderr)
        written = json.loads((self.folder / "out.json").read_text())
        (report, _), record = written["reports"], written["rows"][0]["record"]
        self.assertEqual((report["card"], report["trained"]["steps"], len(record["losses"]), len(record["checkpoint"])), ("CPU", 2, 2, 2))
        version = subprocess.run([PROGRAMS / "annulus-train", "--version"], capture_output=True, text=True).stdout
        self.assertIn(f"({report['git_hash']})", version)
        good, bad, of_other = (self.folder / name for name in ("good.json", "bad.json", "other.json"))
        good.write_text(json.dumps(written))
        record["losses"][1] += 1e-9
        bad.write_text(json.dumps(written))
        report["trained"]["steps"] = 3
        of_other.write_text(json.dumps(written))
        for others, status, text in (([good], 0, "1 records of other sessions: 0 differ"), ([good, bad], 1, f"{bad} (CPU, git {report['git_hash']}) differs from run 0, default: losses, step 2")):
            shutil.rmtree(self.folder / "out-runs")
            found = self.train(same_bits, *arguments, "--with", *others)
            self.assertEqual(found.returncode, status, found.stderr)
            self.assertIn(text, found.stdout)
        shutil.rmtree(self.folder / "out-runs")
        self.assertIn("a record of another training", self.train(same_bits, *arguments, "--with", of_other).stderr)

    def test_a_fault_that_is_not_seen_is_a_failure(self):
        (self.folder / "text").mkdir()
        (self.folder / "text" / "tokens.h5").write_text("tokens")
        record = {"losses": [1.0], "gradient norms": [1.0], "checkpoint": ["a"]}
        for number, (planted, failing, status, text) in enumerate((
                (record | {"checkpoint": ["b"]}, [], 0, "0 differ, 0 failed; the planted fault was found"), (record, [], 1, "changed no bit"),
                (None, [], 1, "not found: sums of dQ in any order failed"), (record | {"losses": [2.0]}, [1], 1, "3 runs of 2 steps, 0 records of other sessions: 0 differ, 1 failed"))):
            started = []

            def run(options, number, keys, gpus):
                started.append((number, keys, gpus))
                return planted if number == 4 else None if number in failing else record

            with mock.patch.object(same_bits, "run", run):
                found, said, _ = self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--count", 4, "--steps", 2, "--runs", self.folder / f"runs-{number}")
            self.assertEqual((found, text in said), (status, True), said)
            by_number = {one: keys for one, keys, _ in started}
            self.assertEqual((by_number[4], by_number[1]), (["attention.deterministic=false", "attention.kernel=hopper"], ["parallel.copy_engines=false", "parallel.max_ctas=1"]))
            self.assertLessEqual({gpus for *_, gpus in started}, {"0,1", "2,3"})
            self.assertEqual((self.folder / "out.md").read_text(), said)
        # The run that failed and those that are new are made, and compared with the others.
        started.clear()
        with mock.patch.object(same_bits, "run", lambda options, number, *_: started.append(number) or record | {"losses": [3.0 if number == 5 else 1.0]}):
            found, said, _ = self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--count", 6, "--steps", 2, "--continue", "missing")
        self.assertEqual((found, sorted(started)), (1, [1, 4, 5]))
        self.assertIn("run 5, default differs from run 0, default: losses, step 1: 1.0 and 3.0\n6 runs of 2 steps, 0 records of other sessions: 1 differ, 0 failed", said)
        self.assertIn("a record of another training", self.start(same_bits, "--shards", self.folder / "text", "--gpus", 2, "--steps", 3, "--continue", "missing")[2])


class Matrix(InFolder):
    def test_trains_and_evaluates_each_by_each(self):
        (self.folder / "tiny.toml").write_text("[run]\ndevice = 'cpu'\n[model]\nlayers = 1\nhidden = 32\nheads = 2\nkv_heads = 2\nhead_dim = 16\nffn = 32\n"
                                               "[data]\nsequence_length = 128\n[train]\nsteps = 2\nwarmup_steps = 1\n")
        shards, samples, pattern = self.folder / "shards", self.folder / "samples", "vertical-slash:verticals=6,slashes=1,window=20"
        subprocess.run([PROGRAMS / "annulus-tokens", "pack", "--out", shards, ROOT / "data/fixture/text"], check=True, capture_output=True)
        subprocess.run([PROGRAMS / "annulus-eval", "make", "--out", samples, "--terse", "--lengths", "128", "--depths", "0.5", "--samples", "2", "--shards", shards],
                       check=True, capture_output=True)
        command = [sys.executable, matrix.__file__, "--train", PROGRAMS / "annulus-train", "--mpirun", shlex.join(MPIRUN), self.folder / "tiny.toml",
                   "--set", f"data.shards={shards}", "--shards", shards, "--attention", "dense", pattern, "--ranks", "1",
                   "--samples", samples, "--runs", self.folder / "runs", "--out", self.folder / "out"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(f"| {pattern} |"), 5, done.stdout)
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        self.assertEqual([[(used, one["sparsity"], len(one["samples"])) for used, one in row["retrieval"].items()] for row in rows],
                         [[("dense", "", 2), (pattern, pattern, 2)]] * 2)
        losses = [one["loss"] for row in rows for one in row["perplexity"].values()]
        self.assertEqual(len(set(losses)), 4)
        for loss in losses:
            self.assertIn(f" {loss:.4f} |", done.stdout)
        # The files of the rows are enough to go on from; one that lacks is measured again, and another command takes none of them.
        of_dense, of_pattern = (matrix.file_of(mock.Mock(runs=self.folder / "runs"), attention) for attention in ("dense", pattern))
        shutil.rmtree(of_dense.with_suffix(""))
        of_pattern.unlink()
        again = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((again.returncode, again.stdout), (0, done.stdout), again.stderr)
        self.assertEqual([line.count("run.folder=") for line in again.stderr.splitlines() if "annulus-train" in line], [1])
        other = subprocess.run([*map(str, command), "--windows", "1", "--budget", "0"], capture_output=True, text=True)
        self.assertEqual((other.returncode, "the budget is spent" in other.stderr), (1, True), other.stdout)


class Quality(unittest.TestCase):
    """Of models whose answers are made up."""

    @staticmethod
    def rows(answers):
        """Of one seed, with the same answers whatever the evaluation, of which there is one more than models."""
        evaluations = [*answers, "xattention"]
        samples = lambda of: [{"tokens": 64 + 64 * (i % 2), "depth": i % 3 / 2, "correct": one} for i, one in enumerate(of)]  # noqa: E731
        buckets = [{"from": up_to // 2, "up_to": up_to, "loss": 2.0, "targets": 9} for up_to in (64, 128, 256)]
        run = [{"step": i, "loss": 3.0 - 0.1 * i, "step_seconds": 0.5, "attention_density": 0.25, "attention_imbalance": {}} for i in range(1, 9)]
        return [{"attention": name, "follows from": {"program": "annulus-train 1"}, "run": run, "retrieval": {used: {"samples": samples(of)} for used in evaluations},
                 "perplexity": {used: {"loss": 2.0, "by_position": buckets} for used in evaluations}} for name, of in answers.items()]

    def test_intervals(self):
        self.assertEqual([[round(end, 3) for end in launch.interval(*of)] for of in ((0, 10), (98, 100), (10, 10))], [[0, 0.278], [0.93, 0.994], [0.722, 1]])

    def test_tells_a_miss_from_too_few_samples(self):
        dense, right = [True] * 600, lambda of: [True] * of + [False] * (600 - of)  # noqa: E731
        found = {of: quality.of_dense({1: self.rows({"dense": dense, "moba": right(of)})}, "moba") for of in (600, 590, 540, 0)}
        self.assertIsNone(found.pop(0))
        self.assertEqual({of: quality.verdict(ratio) for of, ratio in found.items()}, {600: "reached", 590: "not told by so few samples", 540: "missed"})
        self.assertAlmostEqual(found[590][0], 590 / 600)
        self.assertLess(found[590][1], 0.98)

    def test_pools_seeds_and_draws_what_is_there(self):
        rows = {1: self.rows({"dense": [True] * 12, "moba": [True] * 6 + [False] * 6}), 2: self.rows({"dense": [True] * 12, "moba": [False] * 12})[:1]}
        text = quality.markdown(["dense", "moba", "xattention"], rows)
        share = lambda of: f"{sum(of) / len(of):.3f} ({'–'.join(f'{end:.3f}' for end in launch.interval(sum(of), len(of)))})"  # noqa: E731
        self.assertIn(f"| dense | all | all | 0.500 | 2.0000 | {share([1] * 12)} | {share([1] * 12)} | {share([1] * 24)} |", text)
        self.assertIn(f"| moba | all | 25.0 % | 0.500 | 2.0000 | {share([1] * 3 + [0] * 3)} | {share([1] * 3 + [0] * 3)} | {share([1] * 6 + [0] * 6)} | 0.500 (", text)
        self.assertIn("98% of dense with moba: missed", text)
        self.assertIn("Missing: moba of seed 2; xattention of seed 1; xattention of seed 2.", text)
        with tempfile.TemporaryDirectory() as folder:
            quality.draw(["dense", "moba", "xattention"], rows).write(pathlib.Path(folder) / "picture.svg")
            drawn = ElementTree.parse(pathlib.Path(folder) / "picture.svg").getroot()
        words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
        self.assertEqual([words.count(word) for word in ("dense", "moba", "xattention", "samples answered, 95 % intervals")], [1, 1, 0, 2])
        with_intervals = 2 * 2 + 2 * 3  # of each attention, by two lengths and three depths
        self.assertEqual(sum(element.get("stroke-width") == "1" and element.get("stroke") in quality.COLORS for element in drawn.iter()), with_intervals)


class Extension(InFolder):
    def test_trains_twice_and_evaluates_both(self):
        text = self.folder / "text"
        text.mkdir()
        for i in range(8):
            (text / f"{i}.txt").write_text(f"{i} makes a text, long enough to be read in windows. " * 160)
        tiny = ["model.layers=1", "model.hidden=16", "model.heads=1", "model.kv_heads=1", "model.head_dim=16", "model.ffn=16"]
        command = [sys.executable, extension.__file__, "--train", PROGRAMS / "annulus-train", "--mpirun", shlex.join(MPIRUN), "--text", text, "--seeds", 3,
                   "--ranks", 1, "--scale", 0.001, "--runs", self.folder / "runs", "--out", self.folder / "out", "--set", *tiny]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((done.returncode, "Missed: seed 3, after: recall" in done.stdout), (1, True), done.stderr)
        written = json.loads((self.folder / "out.json").read_text())
        self.assertEqual([(row["seed"], row["model"]) for row in written["rows"]], [(3, "before"), (3, "after")])
        self.assertEqual((self.folder / "out.html").read_text().count("<iframe"), 2)
        self.assertNotEqual(*(row["loss"] for row in written["rows"]))
        # The runs up to the longer context are there: that one is learned with each attention.
        pattern = "moba:block=64,top=2"
        command += ["--attention", "dense", pattern, "--asked", 2]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads((self.folder / "out.json").read_text())["rows"]["3"]
        self.assertEqual([[one["sparsity"] for one in row["perplexity"].values()] for row in rows], [["", pattern]] * 2)
        self.assertEqual([len(one["samples"]) for row in rows for one in row["retrieval"].values()], [2 * 4 * len(extension.DEPTHS)] * 4)
        self.assertEqual(done.stdout.count(f"| {pattern} | all |"), 1, done.stdout)
        self.assertIn("loss by position", (self.folder / "out.svg").read_text())

    def test_seeds_side_by_side_have_gpus_of_their_own(self):
        together, seen = threading.Barrier(2, timeout=20), {}

        def rows_of_seed(options, seed, samples):
            seen[seed] = options.visible
            if seed < 3:
                together.wait()  # until the other one has started, too
            if seed == 2:
                sys.exit(1)
            return [f"{samples} of {seed}"], True

        options = mock.Mock(groups=launch.groups_of(["4", "5", "6", "7", "8"], 2), seeds=[1, 2, 3])
        with mock.patch.object(extension, "rows_of_seed", rows_of_seed):
            found = extension.rows_of_seeds(options, "samples")
        self.assertEqual(found, {1: (["samples of 1"], True), 2: ([], False), 3: (["samples of 3"], True)})
        self.assertEqual({seen[1], seen[2]}, {"4,5", "6,7"})
        self.assertTrue(launch.run(["bash", "-c", "echo $CUDA_VISIBLE_DEVICES"], self.folder / "log", 20, gpus="4,5")[0])
        self.assertEqual((self.folder / "log").read_text(), "4,5\n")
        with mock.patch.object(extension, "rows_of_seed", lambda options, seed, samples: ([options.visible], True)):
            options.groups = [None]
            self.assertEqual(extension.rows_of_seeds(options, "samples")[1], ([None], True), "one seed at a time has what this program sees")
        argv = ["", "--train", sys.executable, "--mpirun", "env", "--out", str(self.folder / "out"), "--size", "100m", "--ranks", "2", "--at-once"]
        with mock.patch.object(launch, "visible_gpus", lambda parser: list("4567")), contextlib.redirect_stderr(io.StringIO()) as said:
            with mock.patch.object(sys, "argv", [*argv, "2"]):
                self.assertEqual(extension.parse().groups, ["4,5", "6,7"])
            with mock.patch.object(sys, "argv", [*argv, "3"]):
                self.assertRaises(SystemExit, extension.parse)
        self.assertIn("--at-once 3 with 2 ranks each, but programs see 4 GPUs", said.getvalue())

    def test_tells_which_limits_are_missed(self):
        small = extension.SIZES["small"]

        def evaluations(beyond, far_answers):
            text = {"by_position": [{"from": at, "loss": 2.0 if at < 512 else beyond, "targets": at} for at in (128, 256, 512, 1024, 2048)]}
            samples = [{"tokens": length, "depth": depth, "correct": (1 - depth) * length <= 1024 or far_answers} for length in small.lengths() for depth in extension.DEPTHS]
            return text, {"samples": samples}

        short = {"seed": 1, "model": "before", **extension.figures(small, *evaluations(2.5, False))}
        long = {"seed": 1, "model": "after", **extension.figures(small, *evaluations(2.0, True))}
        self.assertEqual((short["recall, far"], short["recall"][1024], short["recall"][4096], long["recall, far"]), (0, 1, 0.4, 1))
        self.assertAlmostEqual(short["loss, far / near"], 1.25)
        self.assertEqual(extension.missed([short, long]), [])
        self.assertEqual(len(extension.missed([short | {"model": "after"}, long | {"model": "before"}])), 4)


class SparseTraining(InFolder):
    def compare(self, dense, sparse):
        for name, records in (("dense", dense), ("sparse", sparse)):
            (self.folder / name).mkdir()
            (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return subprocess.run([sys.executable, sparse_training.__file__, self.folder / "dense", self.folder / "sparse",
                               "--last", "10"], capture_output=True, text=True)

    def test_compares(self):
        dense = [{"step": s, "loss": 2 + 10 / s, "attention_density": 1, "step_seconds": 1} for s in range(1, 101)]
        sparse = [dict(r, loss=1.01 * r["loss"]) for r in dense]
        for r in sparse[20:]:
            r.update(attention_density=0.25, attention_imbalance={}, step_seconds=0.5)
            if r["step"] % 10 == 0:
                r["attention_recall"] = 0.5 if r["step"] <= 50 else 0.75
        done = self.compare(dense, sparse)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 91 to 100 |", done.stdout)
        self.assertIn("| +1.00 % | 0.250 | 0.750 | 1.00, 0.50 |", done.stdout)

    def test_refuses_other_steps(self):
        record = {"loss": 1, "attention_density": 1, "step_seconds": 1}
        done = self.compare([dict(record, step=1), dict(record, step=2)], [dict(record, step=1)])
        self.assertEqual(done.returncode, 1)
        self.assertIn("(2 and 1)", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
