"""What tests of programs share: a folder for a class of tests, and programs that are run in it."""

import os
import subprocess
import tempfile
import unittest


def program(*command):
    """Runs a program. Bytes that are no text in what it prints would end the test."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


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
