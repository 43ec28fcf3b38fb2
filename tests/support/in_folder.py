"""What tests of programs share: a folder for a class of tests, and programs that are run in it."""

import json
import os
import subprocess
import tempfile
import unittest


def program(*command):
    """Runs a program. Bytes that are no text in what it prints would end the test."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


def small_run(**sections):
    """The configuration of a small model on the CPU; `sections`: further keys of each, or other values."""
    keys = {"run": {"device": "cpu"}, "model": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 64}}
    for name, more in sections.items():
        keys[name] = keys.get(name, {}) | more
    return "".join(f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in of.items()) for name, of in keys.items())


class InFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="annulus-test-")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def file(cls, *parts):
        return os.path.join(cls.temporary.name, *parts)

    @classmethod
    def write(cls, name, text):
        with open(cls.file(name), "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def read(cls, *parts):
        with open(cls.file(*parts), encoding="utf-8") as file:
            return file.read()

    @classmethod
    def succeeds(cls, *command):
        """Returns what the program prints."""
        result = program(*command)
        if result.returncode != 0:
            raise AssertionError(f"{command}: {result.stdout}{result.stderr}")
        return result.stdout
