"""annulus-eval make and retrieval: samples of three tokenizers and of benchmarks' files, a model that has learned its answers.

usage: retrieval_test.py PROGRAM-FOLDER MPIRUN
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from programs import MPIRUN, PROGRAMS, Evaluation, of, program, small_run

PACK_TOKENIZER_JSON = os.path.join(os.path.dirname(__file__), "..", "..", "apps", "tokens", "pack_tokenizer_json.py")

CONFIGURATION = small_run(model={"hidden": 64, "head_dim": 32}, data={"sequence_length": 256}, train={"steps": 50, "micro_batches": 3, "lr": 1e-2, "warmup_steps": 5},
                          checkpoint={"every": 50})


class Retrieval(Evaluation):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write("run.toml", CONFIGURATION)
        cls.make("learned", "--lengths", "256", "--depths", "0,0.5,1", "--samples", "1", "--digits", "3")
        cls.succeeds(of("train"), cls.file("run.toml"), "--set", f"run.folder={cls.file('run')}", f"data.shards={cls.file('learned')}")

    @classmethod
    def make(cls, name, *options):
        return cls.succeeds(of("eval"), "make", "--out", cls.file(name), *options)

    def retrieval(self, samples, *options, ranks=1):
        launcher = [*MPIRUN, str(ranks)] if ranks > 1 else []
        output = self.succeeds(*launcher, of("eval"), "retrieval", self.file("run"), "--samples", self.file(samples), "--set", "run.device=cpu",
                               "--json", self.file("out.json"), *options)
        return output, self.read_json("out.json")["evaluations"]

    def samples_in(self, name):
        with open(self.file(name, "samples.jsonl"), encoding="utf-8") as file:
            head, *samples = map(json.loads, file)
        self.succeeds(of("tokens"), "verify", self.file(name))
        return head, samples

    def test_a_model_answers_what_it_has_learned(self):
        self.make("others", "--lengths", "256", "--depths", "0,0.5,1", "--samples", "1", "--digits", "3", "--seed", "3")
        for samples, score in (("learned", 1), ("others", 0)):
            for ranks in (1, 3) if score else (1,):
                output, (one,) = self.retrieval(samples, ranks=ranks)
                self.assertEqual([(c["kind"], c["tokens"], c["depth"], c["samples"], c["score"]) for c in one["cells"]],
                                 [("needle", 256, depth, 1, score) for depth in (0, 0.5, 1)])
                self.assertEqual((one["ranks"], one["step"], one["sparsity"]), (ranks, 50, ""))
                self.assertIn(f"{3 * score}/3", output)

    def test_writes_json_csv_and_a_page(self):
        self.make("two-lengths", "--lengths", "320,600", "--samples", "2", "--kinds", "needle,values", "--digits", "2", "--values", "2")
        _, all = self.retrieval("two-lengths", "--sparsity", "dense", "--sparsity", "vertical-slash:verticals=6,slashes=1,window=20",
                                "--csv", self.file("out.csv"), "--html", self.file("out.html"))
        self.assertEqual([e["sparsity"] for e in all], ["", "vertical-slash:verticals=6,slashes=1,window=20"])
        cells = all[0]["cells"]
        self.assertEqual([(c["kind"], c["tokens"], c["depth"]) for c in cells],
                         [(k, n, d) for n in (320, 600) for k, d in [("needle", d) for d in (0, 0.25, 0.5, 0.75, 1)] + [("values", None)]])
        self.assertEqual(len(all[0]["samples"]), 24)
        rows = self.read_csv("out.csv")
        self.assertEqual(len(rows), 24)
        self.assertEqual(float(rows[0]["loss"]), cells[0]["loss"])
        page = xml.etree.ElementTree.parse(self.file("out.html")).getroot()
        titles = [e.text for e in page.iter() if e.tag.endswith("title")]
        self.assertEqual(sum("depth 75 %, tokens 600" in (t or "") for t in titles), 2)

    def test_the_same_seed_makes_the_same_shards(self):
        options = ("--lengths", "400", "--samples", "2", "--kinds", "needle,common-words", "--depths", "0.5")
        for name in ("first", "same"):
            self.make(name, *options)
        shards = [pathlib.Path(self.file(name, "length-0000400.h5")).read_bytes() for name in ("first", "same")]
        self.assertEqual(*shards)

    def test_text_of_the_user_stands_around(self):
        self.write("text.txt", "Call me Ishmael. " * 30)
        self.make("of-text", "--lengths", "1k", "--samples", "1", "--depths", "0.5", "--text", self.file("text.txt"))
        stored = pathlib.Path(self.file("of-text", "length-0001024.h5")).read_bytes().replace(b"\0", b"")  # ids of 16 bits
        self.assertIn(b"Call me Ishmael. Call me Ishmael.", stored)
        self.assertIn(b"The special magic number for", stored)

    @unittest.skipUnless(shutil.which("spm_train"), "spm_train (package sentencepiece) is not installed")
    def test_sentencepiece(self):
        self.write("words.txt", "The special magic number for a word is 0 1 2 3 4 5 6 7 8 9. Question: Answer?\n" * 50)
        subprocess.run(["spm_train", f"--input={self.file('words.txt')}", f"--model_prefix={self.file('words')}", "--vocab_size=60",
                        "--hard_vocab_limit=false"], check=True, capture_output=True)
        self.make("words", "--lengths", "500", "--tokenizer", "sentencepiece", "--model", self.file("words.model"), "--kinds", "needle,queries")
        head, samples = self.samples_in("words")
        self.assertEqual(len(samples), 60)
        # The shards carry the tokenizer on.
        self.make("again", "--lengths", "500", "--shards", self.file("words"), "--kinds", "needle,queries")
        self.assertEqual(self.samples_in("again")[0]["shards"], head["shards"])
        self.refused([(("retrieval", self.file("run"), "--samples", self.file("words")), "tokenizer")])

    @unittest.skipUnless(program(sys.executable, "-c", "import tokenizers").returncode == 0, "the package tokenizers is not installed")
    def test_tokenizer_json(self):
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<end>", "<begin>"])
        tokenizer.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 257)])
        tokenizer.save(self.file("tokenizer.json"))
        environment = dict(os.environ, PATH=PROGRAMS + os.pathsep + os.environ["PATH"])
        made = subprocess.run([sys.executable, PACK_TOKENIZER_JSON, self.file("tokenizer.json"), "<end>", self.file("json"), "--make",
                               "--lengths", "700", "--samples", "3", "--kinds", "variables"], env=environment, capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(len(self.samples_in("json")[1]), 3)

    def test_files_of_benchmarks(self):
        os.makedirs(self.file("ruler/niah_single_1"))
        record = {"index": 0, "input": "The number is 12. What is it? It is", "outputs": ["12"], "length": 9}
        long = dict(record, input=record["input"] * 20)
        self.write("ruler/niah_single_1/validation.jsonl", "".join(json.dumps(r) + "\n" for r in (record, record, long)))
        made = program(of("eval"), "make", "--out", self.file("of-ruler"), "--lengths", "64,128", "--from", "ruler", self.file("ruler"))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("1 of 3", made.stderr)
        _, (one,) = self.retrieval("of-ruler")
        self.assertEqual([(c["kind"], c["tokens"], c["depth"], c["samples"]) for c in one["cells"]], [("niah_single_1", 64, None, 2)])
        os.makedirs(self.file("infinite"))
        self.write("infinite/kv_retrieval.jsonl", json.dumps({"id": 0, "context": "{\"a\": \"b\"}", "input": "Key: \"a\"", "answer": ["b"], "options": []}))
        self.make("of-infinite", "--lengths", "64", "--from", "infinitebench", self.file("infinite"))
        self.assertEqual([s["kind"] for s in self.samples_in("of-infinite")[1]], ["kv_retrieval"])
        os.makedirs(self.file("pg19/test"))
        for name in ("17", "4"):
            self.write(f"pg19/test/{name}.txt", f"book {name} " * 40)
        self.assertIn("2 books", self.make("books", "--from", "pg19", self.file("pg19")))
        self.succeeds(of("eval"), "perplexity", self.file("run"), "--shards", self.file("books"), "--set", "run.device=cpu")

    def test_what_is_wrong_is_named(self):
        self.make("unmasked", "--lengths", "512", "--all-tokens-count", "--samples", "1")
        out, samples = ("make", "--out", self.file("nothing")), ("retrieval", self.file("run"), "--samples")
        self.refused([(out, "--lengths"), ((*out, "--lengths", "512", "--kinds", "qa"), "qa", "free text"),
                      ((*out, "--lengths", "512", "--depths", "0.5,50"), "--depths 50"), ((*out, "--lengths", "100"), "needle", "100", "--lengths"), ((*out, "--lengths", "512", "--seed", "-1"), "--seed"),
                      ((*out, "--lengths", "512", self.file("run.toml")), "--from"), ((*out, "--lengths", "512", "--from", "ruler"), "ruler", "files"),
                      (("make", "--out", self.file("learned"), "--lengths", "512"), "learned"), ((*samples, self.file("run")), "samples.jsonl"),
                      ((*samples, self.file("learned"), "--html", self.file("no/where.html")), "where.html"),
                      ((*samples, self.file("unmasked")), "--all-tokens-count")])
        self.assertFalse([name for name in os.listdir(self.file(".")) if "tmp-" in name or name == "nothing"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
