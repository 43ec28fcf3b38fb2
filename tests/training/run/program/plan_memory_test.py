"""annulus-train --plan-memory from outside: what it writes agrees with itself, and what it refuses.

usage: plan_memory_test.py TRAIN DATA (the folder of configurations)
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

TRAIN, DATA = sys.argv[1:3]


def plan(config, *options, with_page=True):
    with tempfile.TemporaryDirectory(prefix="annulus-test-") as folder:
        file, page = os.path.join(folder, "plan.json"), os.path.join(folder, "plan.html")
        command = [TRAIN, os.path.join(DATA, config), "--plan-memory", "--json", file, *(["--html", page] if with_page else []), *map(str, options)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        written = os.path.exists(file)
        with open(file if written else os.devnull) as text, open(page if written and with_page else os.devnull) as html:
            return result, json.load(text) if written else None, html.read()


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "rope_theta": 500000.0,
         "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}


def sets(**keys):
    return [part for key, value in keys.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


class PlanMemory(unittest.TestCase):
    def served(self, *options, status=0):
        result, report, page = plan("llama-7b.toml", *options)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertIn("predicted, not measured", result.stdout)
        return result.stdout, report, page

    def test_the_report_agrees_with_itself(self):
        text, report, page = self.served("--ranks", 8, "--gpu-memory", "139GiB", "--host-memory", "1TiB")
        configured = report["configured"]
        peak = configured["predicted_peak_bytes"]["device"]
        moments = {moment["moment"]: moment["device"] for moment in report["moments"]}
        self.assertEqual(max(sum(device.values()) for device in moments.values()), peak["total"])
        self.assertEqual(sum(moments[peak["moment"]].values()), peak["total"])
        self.assertIn(f"{peak['total'] / 2**30:.2f} GiB", text)
        for policy in [configured, *report["policies"]]:
            self.assertAlmostEqual(sum(policy["predicted_seconds"].values()), policy["seconds"], 9)
            self.assertTrue(policy["fits"])
        seconds = [policy["seconds"] for policy in report["policies"]]
        self.assertEqual(seconds, sorted(seconds))
        self.assertIn(configured["outline"], {policy["outline"] for policy in report["policies"]})
        self.assertEqual(report["tokens"], 131072)
        self.assertIn("<svg", page)
        self.assertNotIn("http://", page.replace("http://www.w3.org", ""), "needs nothing else")

    def test_auto_is_the_fastest_that_fits(self):
        for memory in ("24GiB", "32GiB"):
            _, report, _ = self.served("--ranks", 8, "--gpu-memory", memory, "--host-memory", "1TiB",
                                       *sets(memory__recompute="auto"))
            fitting = [policy for policy in report["policies"] if policy["fits"]]
            self.assertLess(len(fitting), len(report["policies"]))
            self.assertLessEqual(report["configured"]["seconds"], 1.001 * fitting[0]["seconds"])
            self.assertTrue(report["configured"]["fits"])
            # Beside arrays there is room for libraries and for what stays free.
            total = report["configured"]["predicted_peak_bytes"]["device"]["total"]
            self.assertGreater(report["gpu_spare_bytes"], 0)
            self.assertLessEqual(report["gpu_spare_bytes"], 0.03 * report["gpu_memory"])
            self.assertLessEqual(total + report["gpu_libraries_bytes"] + report["gpu_spare_bytes"], report["gpu_memory"])

    def test_what_does_not_fit_says_what_is_missing(self):
        text, report, _ = self.served("--ranks", 2, "--gpu-memory", "24GiB", status=3)
        self.assertIn("lacks", text)
        configured = report["configured"]
        self.assertFalse(configured["fits"])
        self.assertEqual(configured["missing_bytes"], configured["predicted_peak_bytes"]["device"]["total"] +
                         report["gpu_libraries_bytes"] - report["gpu_memory"])

    def test_more_ranks_hold_less_each_and_their_libraries_more(self):
        reports = [self.served("--ranks", ranks)[1] for ranks in (2, 4, 8)]
        totals = [report["configured"]["predicted_peak_bytes"]["device"]["total"] for report in reports]
        self.assertGreater(totals[0], 1.5 * totals[1])
        self.assertGreater(totals[1], 1.5 * totals[2])
        libraries = [report["gpu_libraries_bytes"] for report in reports]
        self.assertLess(libraries[0], libraries[1])
        self.assertLess(libraries[1], libraries[2])

    def test_nodes_of_different_sizes(self):
        """The host of the largest node holds most, and the order of the nodes changes nothing."""
        keys = sets(attention__schedule="burst", attention__layout="zigzag", memory__recompute="selective", memory__offload_optimizer="true", parallel__zero=3)
        with tempfile.TemporaryDirectory(prefix="annulus-test-") as folder:
            def planned(sizes, *options, status=0):
                cluster = os.path.join(folder, "cluster.toml")
                with open(cluster, "w") as file:
                    file.write(f"[cluster]\nnodes = {len(sizes)}\nranks_per_node = {sizes}\n[inter_node]\nnics_per_node = 1\n")
                result, report, _ = plan("llama-7b.toml", "--cluster", cluster, *keys, *options, with_page=False)
                self.assertEqual(result.returncode, status, result.stdout + result.stderr)
                return result.stdout + result.stderr, report

            host = planned([4, 4])[1]["configured"]["predicted_peak_bytes"]["total"]
            room = ["--host-memory", 5 * host]
            self.assertEqual(planned([4, 4], *room)[1]["configured"]["missing_host_bytes"], 0)
            (text, small_first), (_, large_first) = (planned(sizes, *room, status=3) for sizes in ([2, 6], [6, 2]))
            self.assertIn("on 2 nodes of 2, 6 ranks", text)
            self.assertEqual((small_first["ranks"], small_first["ranks_per_node"]), (8, 6))
            self.assertEqual(small_first["configured"]["missing_host_bytes"], host)
            for of in (lambda report: report["configured"]["missing_host_bytes"], lambda report: report["gpu_libraries_bytes"],
                       lambda report: report["configured"]["predicted_seconds"]["exposed_sharding"]):
                self.assertEqual(of(small_first), of(large_first))
            def exposed(sizes, sums):
                return planned(sizes, *sets(parallel__sums=sums))[1]["configured"]["predicted_seconds"]["exposed_sharding"]

            # Shards go to each rank of the other node on their own, six over one NIC.
            self.assertLess(exposed([8], "native"), exposed([4, 4], "native"))
            self.assertLess(exposed([4, 4], "native"), exposed([2, 6], "native"))
            # Nodes of 2, 4, 8, … ranks add up before they send, in rank order, too.
            self.assertEqual(exposed([4, 4], "native"), exposed([4, 4], "rank-order"))
            self.assertLess(exposed([3, 3], "native"), exposed([3, 3], "rank-order"))
            self.assertIn("same number of ranks on every node", planned([2, 6], *sets(attention__schedule="topology-burst"), status=1)[0])
            self.assertIn("say --ranks-per-node", planned([2, 6], "--ranks", 4, status=1)[0])

    def test_auto_knows_what_travels_for_the_shards(self):
        def predicted(schedule, **keys):
            result, report, _ = plan("llama-3.1-8b.toml", "--ranks", 16, "--ranks-per-node", 8, "--gpu-memory", "80GiB", "--cluster", os.path.join(DATA, "clusters/h100.toml"),
                                     *sets(data__sequence_length=131072, attention__schedule=schedule, **keys), with_page=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            return report["schedule"], report["configured"]["seconds"]

        taken, seconds = predicted("auto")
        ring, hierarchical = (predicted(schedule)[1] for schedule in ("ring", "hierarchical"))
        self.assertLess(hierarchical, 0.98 * ring)
        self.assertLessEqual(seconds, 1.001 * hierarchical)
        # Without shards nothing travels beside attention, and the simplest of the fastest is taken.
        self.assertNotEqual(taken, "ring")
        self.assertEqual(predicted("auto", parallel__zero=1)[0], "ring")

    def test_without_overlap_transfers_are_exposed(self):
        with_overlap, without = (self.served("--ranks", 8, *sets(attention__overlap=overlap))[1]["configured"]
                                 for overlap in ("true", "false"))
        for part, seconds in with_overlap["predicted_seconds"].items():
            if part == "exposed_communication":
                self.assertGreater(without["predicted_seconds"][part], 3 * seconds)
            else:
                self.assertAlmostEqual(without["predicted_seconds"][part], seconds, 12, part)
        self.assertEqual(with_overlap["predicted_peak_bytes"], without["predicted_peak_bytes"])

    def test_muon_takes_products_and_the_memory_of_matrices_and_no_offload(self):
        def planned(**keys):
            report = self.served("--ranks", 8, "--gpu-memory", "139GiB", "--host-memory", "1TiB", *sets(parallel__zero=3, **keys))[1]
            optimizer = next(moment["device"] for moment in report["moments"] if moment["moment"] == "optimizer")
            return report, report["configured"]["predicted_seconds"], optimizer["workspace"]

        _, adamw, without = planned()
        report, muon, workspace = planned(train__optimizer="muon")
        hidden, ffn, layers = 4096, 11008, 32
        self.assertEqual(workspace - without, 8 * hidden * ffn + 4 * hidden**2)  # fp32 and bf16
        flops = layers * (4 * 30 * hidden**3 + 3 * 5 * (4 * hidden**2 * ffn + 2 * hidden**3))
        self.assertAlmostEqual(muon["optimizer"] - adamw["optimizer"], flops / 8 / 600e12, 6)
        self.assertGreater(muon["exposed_sharding"], adamw["exposed_sharding"])
        self.assertFalse(any("optimizer offloaded" in policy["outline"] for policy in report["policies"]))

    def test_flops_of_sparse_layers_are_those_of_the_pairs_that_they_select(self):
        tokens, block, top = 131072, 2048, 7

        def flops(sparsity, **keys):
            text, report, _ = self.served("--ranks", 8, *sets(model__layers=2, attention__sparsity=sparsity, **keys))
            self.assertEqual(bool(sparsity), "selected pairs are taken at the rates of dense attention" in text)
            return report["flops"]

        dense, sparse = flops(""), flops(f"moba:block={block},top={top}")
        selected = sum(block * (block + 1) // 2 + min(i, top - 1) * block**2 for i in range(tokens // block))
        left_out = tokens * (tokens + 1) // 2 - selected
        layers, heads = 2, 32
        self.assertAlmostEqual(dense - sparse, 12 * 128 * layers * heads * left_out, delta=1e-9 * dense)
        half = flops(f"moba:block={block},top={top}", sparsity__dense_layers="['0']")
        self.assertAlmostEqual(half, (dense + sparse) / 2, delta=1e-9 * dense)

    def test_rates_are_named_and_those_of_a_cpu_measured(self):
        _, report, page = self.served("--ranks", 8, "--gpu-memory", "139GiB")
        self.assertIn("H100's class", report["rates"])
        self.assertIn("times by rates of the default cluster", page)
        result, report, _ = plan("demo.toml", "--ranks", 2, *sets(model__vocabulary=257, attention__mask="causal", run__device="cpu"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("times by rates of " + report["rates"], result.stdout)
        self.assertRegex(report["rates"], "measured in|build for GPUs")
        if measured := re.search(r"measured in ([\d.]+) s", report["rates"]):
            self.assertLess(float(measured[1]), 3)  # also beside other tests
        # No core does 10¹² operations a second; an H100 was said to make millions of tokens of this.
        self.assertGreater(report["configured"]["seconds"], report["flops"] / (2 * 1e12))
        # Units fit: of a small model nothing is 0.00 of them.
        self.assertNotRegex(result.stdout, r"\b0\.00 [KMGT]iB")
        # Durations are those that people read, also of a step that takes days.
        long, _, _ = plan("llama-7b.toml", "--ranks", 2, *sets(run__device="cpu", data__sequence_length="1M"))
        self.assertEqual(long.returncode, 0, long.stderr)
        self.assertRegex(long.stdout, r"an optimizer step takes [\d.]+ d\n")
        self.assertNotRegex(long.stdout, r"\de\+\d")
        _, report, _ = self.served("--ranks", 8, "--cluster", os.path.join(DATA, "clusters", "h200.toml"))
        self.assertTrue(report["rates"].endswith("h200.toml"), report["rates"])

    def test_thousands_of_layers_take_no_minutes(self):
        result, report, _ = plan("demo.toml", "--ranks", 2, *sets(model__vocabulary=257, attention__mask="causal", model__layers=10000,
                                                                   run__device="gpu"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(report["configured"]["predicted_peak_bytes"]["device"]["total"], 0)

    def test_masks_that_show_later_positions_are_planned_without_recompute_by_position(self):
        for recompute in ("selective", "auto"):
            _, report, _ = self.served(*sets(attention__mask="full", attention__see_targets="true", memory__recompute=recompute, data__sequence_length=65536,
                                             memory__store_fraction=0.5))
            kinds = {policy["memory"]["recompute"][0] for policy in report["policies"]}
            self.assertEqual(kinds, {"none", "selective", "full"})

    def test_a_model_without_weights_is_planned_as_its_configuration(self):
        """config.json of LLaMA 7B, alone and in a folder, beside llama-7b.toml with the same keys."""
        keys = dict(data__sequence_length=131072, attention__schedule="burst", attention__layout="striped", memory__recompute="selective",
                    memory__store_fraction=0.5, memory__chunk_rows=4096)
        options = ["--ranks", 8, "--gpu-memory", "139GiB", "--host-memory", "1TiB", *sets(**keys)]
        _, expected, _ = self.served(*options, *sets(checkpoint__every=0))
        with tempfile.TemporaryDirectory(prefix="annulus-test-") as folder:
            for name in ("config.json", "of-7b.json"):
                with open(os.path.join(folder, name), "w") as file:
                    json.dump(LLAMA, file)
            for config in (folder, os.path.join(folder, "config.json"), os.path.join(folder, "of-7b.json")):
                result, report, _ = plan(config, *options)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(report["configured"], expected["configured"])
                self.assertEqual(report["policies"], expected["policies"])
            # Without options: sequences as long as the model's positions, and auto.
            result, report, _ = plan(folder, "--gpu-memory", "79.6GiB", *sets(model__layers=2))
            self.assertIn("is a model alone, planned with data.sequence_length = 4096, run.device = 'gpu', train.dtype = 'bf16'", result.stdout)
            self.assertEqual((report["tokens"], report["configured"]["memory"]["recompute"]), (4096, ["none"]))
            self.assertEqual(plan(folder, "--ranks", 1)[0].returncode, 0, "with nobody to share shards with")

    def test_models_that_are_none_are_refused(self):
        with tempfile.TemporaryDirectory(prefix="annulus-test-") as folder:
            path = lambda name: os.path.join(folder, name)  # noqa: E731
            os.mkdir(path("empty"))
            for name, text in (("cut.json", '{"model_type": '), ("bert.json", json.dumps(LLAMA | {"model_type": "bert", "architectures": ["BertModel"]})),
                               ("lacks.json", json.dumps({key: value for key, value in LLAMA.items() if key != "hidden_size"})), ("good.json", json.dumps(LLAMA))):
                with open(path(name), "w") as file:
                    file.write(text)
            for config, options, message in ((path("empty"), [], "holds neither config.json"), (path("cut.json"), [], "is no JSON"),
                                             (path("bert.json"), [], "bert.json"), (path("lacks.json"), [], "hidden_size"),
                                             (path("none.json"), [], "there is no"), ("meta-llama/Llama-2-7b", [], "hf download meta-llama/Llama-2-7b"),
                                             (path("good.json"), sets(model__layers="many"), "--set model.layers=many"),
                                             (path("good.json"), sets(memory__recompute="half"), "--set memory.recompute=half")):
                with self.subTest(config=config):
                    result = subprocess.run([TRAIN, config, "--plan-memory", *options], capture_output=True, text=True, cwd=folder)
                    self.assertEqual((result.returncode, len(result.stderr.strip().splitlines())), (1, 1), result.stderr)
                    self.assertIn(message, result.stderr)
            for options in ([], ["--print-config"]):
                result = subprocess.run([TRAIN, path("good.json"), *options], capture_output=True, text=True)
                self.assertEqual(result.returncode, 1)
                self.assertIn("is a model, not a configuration: --plan-memory", result.stderr)
            result = subprocess.run([TRAIN, path("good.json"), "--print-config", "--plan-memory"], capture_output=True, text=True)
            self.assertEqual((result.returncode, f"hidden = {LLAMA['hidden_size']} " in result.stdout), (0, True), result.stderr)

    def longest(self, *options, config="llama-7b.toml", status=0):
        result, report, _ = plan(config, "--longest", *options, with_page=False)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return result, report

    def test_the_longest_sequence_of_every_policy(self):
        room = ["--ranks", 4, "--gpu-memory", "80GB", "--host-memory", "200GiB"]
        keys = dict(attention__schedule="burst", model__layers=8)
        result, report = self.longest(*room, *sets(**keys))
        limits = {one["limit"] for one in report["longest"]}
        self.assertEqual(limits, {"gpu", "host"})
        seen = {one["outline"]: one["tokens"] for one in report["longest"]}
        self.assertGreater(seen["full, chunks of 4096"], seen["selective, chunks of 4096"])
        self.assertGreater(seen["selective, chunks of 4096"], seen["none, chunks of 4096"])
        self.assertIn(f"{max(seen.values()) // 1024}k", result.stdout)
        # Each is what a plan of that policy says: it fits, and what is a 64th longer lacks what is said to be the limit.
        for limit, outline in [("gpu", "none"), ("gpu", "selective, chunks of 4096"), ("host", "none, 100 % of the layers offloaded")]:
            one = next(each for each in report["longest"] if (each["limit"], each["outline"]) == (limit, outline))
            memory = {f"memory__{key}": json.dumps(value) for key, value in one["memory"].items() if key != "store_fraction"} | {"memory__store_fraction": 0.5}
            tokens = one["tokens"]
            self.assertEqual(tokens % 1024, 0)
            for length, fits in ((tokens, True), (tokens + max(1024, tokens // 64), False)):
                result, whole, _ = plan("llama-7b.toml", *room, *sets(**keys, **memory, data__sequence_length=length))
                self.assertEqual(result.returncode, 0 if fits else 3, result.stdout + result.stderr)
                if fits:
                    self.assertEqual(whole["configured"]["predicted_peak_bytes"], one["predicted_peak_bytes"])
                    self.assertAlmostEqual(whole["configured"]["seconds"], one.get("seconds", whole["configured"]["seconds"]), 9)
                else:
                    missing = {name: whole["configured"][f"missing_{key}bytes"] for name, key in (("gpu", ""), ("host", "host_"))}
                    self.assertGreater(missing[limit], 0, outline)
        # More memory of a node: what it limited becomes longer, the rest stays.
        more = {one["outline"]: one["tokens"] for one in self.longest(*room[:-1], "2TiB", *sets(**keys))[1]["longest"]}
        for one in report["longest"]:
            (self.assertGreater if one["limit"] == "host" else self.assertEqual)(more[one["outline"]], one["tokens"], one["outline"])

    def test_the_longest_sequence_where_auto_chooses_by_policy(self):
        # all-gather has other buffers on each layout, and auto takes other layouts with these policies than with the configuration's.
        room = ["--ranks", 4, "--ranks-per-node", 2, "--gpu-memory", "40GiB", "--host-memory", "1TiB", "--cluster", os.path.join(DATA, "clusters", "h200.toml")]
        keys = dict(model__layers=4, model__vocabulary=1000, attention__schedule="all-gather", attention__layout="auto", parallel__zero=3, run__device="gpu")
        _, report = self.longest(*room, *sets(**keys, memory__recompute="none"), config="llama-1b.toml")
        layouts = set()
        for one in report["longest"]:
            if one["outline"] not in ("none", "sequence-selective 0.75", "full"):
                continue
            memory = {f"memory__{key}": json.dumps(value) for key, value in one["memory"].items()}
            result, whole, _ = plan("llama-1b.toml", *room, *sets(**keys, **memory, data__sequence_length=one["tokens"]), with_page=False)
            layouts.add(whole["layout"])
            self.assertEqual(result.returncode, 0, one["outline"])
            self.assertEqual(whole["configured"]["predicted_peak_bytes"], one["predicted_peak_bytes"], one["outline"])
        self.assertGreater(len(layouts), 1)

    def test_the_longest_sequence_that_is_counted(self):
        # More memory than any sequence needs whose pairs are counted in 64 bits.
        keys = dict(model__layers=1, model__vocabulary=1000, model__heads=64, memory__recompute="auto", memory__chunk_rows=4096, memory__offload_activations=1,
                    memory__offload_optimizer="true", attention__schedule="ring", attention__layout="zigzag")
        result, report = self.longest("--ranks", 2, "--gpu-memory", "900TB", "--host-memory", "900TB", *sets(**keys))
        self.assertEqual({one["limit"] for one in report["longest"]}, {"refused"})
        for one in report["longest"]:
            self.assertIn("more than are counted", one["refusal"])
            self.assertIn(f"{one['tokens'] // 1024}k+", result.stdout)
        self.assertIn("refused: ", result.stdout)

    def test_the_longest_sequence_of_nothing(self):
        result, report = self.longest("--ranks", 2, "--gpu-memory", "10GiB", status=3)
        self.assertIn("nothing fits", result.stdout)
        self.assertEqual({one["tokens"] for one in report["longest"]}, {0})
        for options, message in (([], "give --gpu-memory"), (sets(run__device="cpu"), "give --host-memory"),
                                 (["--gpu-memory", "80GB", *sets(model__vocabulary=0)], "model.vocabulary"),
                                 (["--gpu-memory", "80GB", "--html", "page.html"], "--html")):
            result, report = self.longest(*options, status=1)
            self.assertIn(message, result.stderr)
            self.assertIsNone(report)
        self.assertEqual(self.longest("--ranks", 2, "--host-memory", "1GiB", *sets(run__device="cpu", model__vocabulary=257, attention__mask="causal"),
                                      config="demo.toml")[0].returncode, 0)

    def test_refusals(self):
        cases = [("llama-7b.toml", ["--gpu-memory", "12potatoes"], "--gpu-memory '12potatoes'"),
                 ("llama-7b.toml", ["--gpu-memory", "1e30TiB"], "--gpu-memory '1e30TiB'"),
                 ("llama-7b.toml", ["--ranks", 1000000], "1000000 ranks: at most"),
                 ("llama-7b.toml", sets(train__micro_batches=9223372036854775807), "train.micro_batches"),
                 ("llama-7b.toml", ["--cluster", "no-such.toml"], "no-such.toml"),
                 ("demo.toml", [], "model.vocabulary")]
        for config, options, message in cases:
            with self.subTest(options=options):
                result, report, _ = plan(config, *options)
                self.assertEqual(result.returncode, 1)
                self.assertIn(message, result.stderr)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1)
                self.assertIsNone(report)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
