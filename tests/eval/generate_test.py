"""annulus-eval generate with small models that have learned to repeat a pattern.

usage: generate_test.py PROGRAM-FOLDER MPIRUN
"""

import json
import shutil
import subprocess
import sys
import unittest

from programs import MPIRUN, InFolder, of, program, small_run

CONFIGURATION = small_run(model={"layers": 2}, data={"sequence_length": 64}, train={"steps": 60, "lr": 1e-2, "warmup_steps": 5}, checkpoint={"every": 30})


class Generate(InFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write("run.toml", CONFIGURATION)
        cls.write("letters.txt", "abc\t" * 2000)
        cls.succeeds(of("tokens"), "pack", "--out", cls.file("letters"), cls.file("letters.txt"))
        cls.train("pattern", "letters")
        cls.succeeds(of("weights"), "export", cls.file("pattern/checkpoints/step-00000060"), cls.file("exported"))

    @classmethod
    def train(cls, run, shards, *options):
        cls.succeeds(of("train"), cls.file("run.toml"), "--set", f"run.folder={cls.file(run)}", "--set", f"data.shards={cls.file(shards)}", *options)

    def generate(self, model, *options):
        return self.succeeds(of("eval"), "generate", self.file(model), *options)

    def refused(self, *command):
        result = program(of("eval"), "generate", *command)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def test_greedy_continues_the_pattern(self):
        expected = "c\tabc\tabc\n"
        self.assertEqual(self.generate("pattern", "--prompt", "abc\tab", "--tokens", 9), expected)
        for model in ("pattern/checkpoints", "pattern/checkpoints/step-00000060"):
            self.assertEqual(self.generate(model, "--prompt", "abc\tab", "--tokens", 9), expected)
        self.write("prompt", "abc\tab")
        self.assertEqual(self.generate("pattern", "--prompt-file", self.file("prompt"), "--tokens", 9), expected)
        self.assertEqual(self.generate("pattern", "--prompt", "abc\tab", "--tokens", 9, "--dtype", "bf16"), expected)

    def test_ranks_share_the_passes(self):
        self.assertEqual(self.succeeds(*MPIRUN, "3", of("eval"), "generate", self.file("pattern"), "--prompt", "abc\tab", "--tokens", 9),
                         "c\tabc\tabc\n")

    def test_the_same_from_its_export(self):
        options = ("--prompt", "abc\tab", "--tokens", 9)
        self.assertEqual(self.generate("exported", *options, "--shards", self.file("letters")), self.generate("pattern", *options))

    def test_ids_in_place_of_text(self):
        self.assertEqual(self.generate("exported", "--ids", "97,98,99", "--tokens", 4), "9,97,98,99\n")

    def test_more_than_the_positions_of_the_model_are_a_warning(self):
        result = program(of("eval"), "generate", self.file("pattern"), "--prompt", "abc\t" * 16, "--tokens", 3)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("64 tokens of the model", result.stderr)

    def test_seeds_tell_samples_apart(self):
        options = ("--prompt", "abc\t", "--tokens", 40, "--temperature", 2)
        first = self.generate("pattern", *options)
        self.assertEqual(self.generate("pattern", *options, "--seed", 1), first)
        self.assertNotEqual(self.generate("pattern", *options, "--seed", 2), first)
        self.assertEqual(self.generate("pattern", *options, "--top-p", 0.01), self.generate("pattern", "--prompt", "abc\t", "--tokens", 40))

    def test_bytes_that_are_no_text_are_shown_as_numbers(self):
        text = self.generate("pattern", "--prompt", "abc\t", "--tokens", 200, "--temperature", 50)
        self.assertRegex(text, r"\\x[0-9a-f]{2}")

    def test_ends_with_the_document(self):
        with open(self.file("short.jsonl"), "w", encoding="utf-8") as file:
            file.write((json.dumps({"text": "xyz"}) + "\n") * 1000)
        self.succeeds(of("tokens"), "pack", "--out", self.file("short"), self.file("short.jsonl"))
        self.train("ending", "short", "--set", "attention.mask=documents")
        result = program(of("eval"), "generate", self.file("ending"), "--prompt", "x", "--tokens", 20)
        self.assertEqual((result.returncode, result.stdout), (0, "yz\n"), result.stderr)
        self.assertIn("2 tokens", result.stderr)

    @unittest.skipUnless(shutil.which("spm_train"), "spm_train (package sentencepiece) is not installed")
    def test_sentencepiece(self):
        self.write("words.txt", "red green blue\n" * 500)
        subprocess.run(["spm_train", f"--input={self.file('words.txt')}", f"--model_prefix={self.file('words')}", "--vocab_size=40",
                        "--hard_vocab_limit=false"], check=True, capture_output=True)
        self.write("line.txt", "red green blue " * 2000)
        self.succeeds(of("tokens"), "pack", "--out", self.file("words"), "--tokenizer", "sentencepiece", "--model", self.file("words.model"),
                      self.file("line.txt"))
        self.train("words-run", "words")
        text = self.generate("words-run", "--prompt", "red green", "--tokens", 12)
        self.assertTrue(" blue red green blue red".startswith(text.rstrip("\n")[:24]) and text.startswith(" blue red"), text)
        self.succeeds(of("weights"), "export", self.file("words-run/checkpoints/step-00000060"), self.file("words-exported"))
        shutil.copy(self.file("words.model"), self.file("words-exported/tokenizer.model"))
        self.assertEqual(self.generate("words-exported", "--prompt", "red green", "--tokens", 12), text)
        self.assertIn("257", self.refused(self.file("words-run"), "--prompt", "red", "--shards", self.file("letters")))

    def test_what_is_wrong_is_named(self):
        model = self.file("pattern")
        for command, said in (
                ((model,), ("--prompt", "--ids")),
                ((model, "--prompt", "a", "--ids", "1"), ("--prompt", "--ids")),
                ((model, "--prompt", ""), ("--prompt", "empty")),
                ((model, "--prompt-file", self.file("nowhere")), ("nowhere",)),
                ((model, "--ids", "97,257"), ("257", "0 to 256")),
                ((model, "--ids", "-1"), ("-1",)),
                ((model, "--prompt", "a", "--tokens", 0), ("--tokens",)),
                ((model, "--prompt", "a", "--temperature", -1), ("--temperature",)),
                ((model, "--prompt", "a", "--seed", -1), ("--seed", "negative")),
                ((model, "--prompt", "a", "--top-p", 0), ("--top-p",)),
                ((model, "--prompt", "a", "--device", "gpu", "--dtype", "f16"), ("--dtype",)),
                ((self.file("exported"), "--prompt", "a"), ("exported", "--shards", "--ids")),
                ((self.file("letters"), "--prompt", "a"), ("letters",)),
                ((self.file("nowhere"), "--prompt", "a"), ("nowhere",))):
            text = self.refused(*command)
            for word in said:
                self.assertIn(word, text, command)

    def test_a_tokenizer_json_is_not_read(self):
        folder = self.file("with-json")
        shutil.copytree(self.file("exported"), folder)
        self.write("with-json/tokenizer.json", "{}")
        text = self.refused(folder, "--prompt", "a")
        for word in ("with-json", "tokenizer.json", "--ids"):
            self.assertIn(word, text)

    def test_shards_of_the_run_that_are_gone(self):
        shutil.copytree(self.file("letters"), self.file("moved"))
        self.train("short-run", "moved", "--set", "train.steps=1", "--set", "train.warmup_steps=0")
        shutil.rmtree(self.file("moved"))
        text = self.refused(self.file("short-run"), "--prompt", "a")
        for word in ("moved", "--shards", "--ids"):
            self.assertIn(word, text)
        self.generate("short-run", "--prompt", "a", "--tokens", 2, "--shards", self.file("letters"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
