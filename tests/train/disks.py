"""What a user of three ranks meets beside the bits of checkpoints: progress in a terminal, a second run, the end of an allocation.

  python3 tests/train/disks.py --train build/cpu/bin/annulus-train --tokens build/cpu/bin/annulus-tokens
    --slow-disk build/cpu/bin/libslow_disk.so

Needs no package of Python.
"""
import argparse
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # nothing is left in the sources
import kills  # noqa: E402


class Disks(kills.Test):
    def finished(self, name, settings, rate=0, status=0):
        """What a run says that ends with this status."""
        log = self.folder / "log"
        begin = log.stat().st_size if log.exists() else 0
        found = self.start(name, settings, rate).wait(600)
        said = log.read_bytes()[begin:].decode(errors="replace")
        assert found == status, f"{name} ended with {found}, not {status}"
        return said

    def in_terminal(self, name, settings, rate):
        """The same where mpirun's standard error is a terminal; that is given back alone."""
        ours, theirs = pty.openpty()
        program = subprocess.Popen(self.command(name, settings), stdout=subprocess.DEVNULL, stderr=theirs, env=self.environment(rate))
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:  # the last of the others has closed it
            pass
        os.close(ours)
        assert program.wait(60) == 0, f"{name} has failed: {shown.decode(errors='replace')}"
        return shown.decode(errors="replace")

    def progress(self):
        shown = self.in_terminal("shown", {"train.steps": 1, "checkpoint.every": 0}, rate=3e5)
        assert re.search(r"\r\x1b\[Ksaving optimizer step 1: \d\.\d\d of \d\.\d\d MB, \d\.\d\d MB/s, \d+ s left", shown), repr(shown)
        shown = self.in_terminal("shown", {"train.steps": 2, "checkpoint.every": 0}, rate=4e5)
        assert re.search(r"\r\x1b\[Kloading step-00000001: \d\.\d\d of \d\.\d\d MB, \d\.\d\d MB/s, \d+ s left", shown), repr(shown)
        said = self.finished("quiet", {"train.steps": 1, "checkpoint.every": 0}, rate=3e5)
        assert "GB/s, " not in said.replace("GB/s; training", ""), f"a progress line in a file: {said}"

    def twice(self):
        first = self.start("twice", {"checkpoint.every": 0})
        while not (self.folder / "twice/metrics.jsonl").exists():
            assert first.poll() is None
        said = self.finished("twice", {"checkpoint.every": 0}, status=1)
        assert f"run.folder = '{self.folder}/twice' is in use by another run" in said, said
        assert first.poll() is None, "the first one has ended, too"
        os.kill(first.pid, signal.SIGUSR1)  # saves and ends
        assert first.wait(60) == 0

    def limit(self):
        """A signal in an optimizer step that takes longer than there is time, and then the end of all processes."""
        for tokens, sequences in ((4000, 1), (8000, 1), (16000, 1), (16000, 4), (16000, 16)):  # until a step takes that long on this machine
            name = f"limit {tokens} {sequences}"
            settings = {"data.sequence_length": tokens, "train.micro_batches": sequences, "checkpoint.every": 0, "parallel.zero": 3}
            launcher = self.start(name, {**settings, "run.stop_within": 1})
            metrics, found = (self.folder / name / file for file in ("metrics.jsonl", "checkpoints/step-00000002/manifest.json"))
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
                assert launcher.poll() is None
                time.sleep(0.01)
            os.kill(launcher.pid, signal.SIGUSR1)
            while launcher.poll() is None and not found.exists():
                time.sleep(0.01)
            if not found.exists():
                continue
            for process in (*self.ranks(launcher), launcher.pid):
                os.kill(process, signal.SIGKILL)
            launcher.wait()
            said = self.finished(name, {**settings, "train.steps": 3})
            assert "resumed after optimizer step 2" in said, said
            self.finished("no limit", {**settings, "train.steps": 3})
            assert kills.losses(self.folder / name) == kills.losses(self.folder / "no limit"), "other losses than those of the run left alone"
            return
        raise AssertionError("no state was saved in the middle of a step")

    def run(self):
        for case in (self.progress, self.twice, self.limit):
            case()
            print(f"{case.__name__}: as documented", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--slow-disk", required=True, help="the library of tests/train/slow_disk.cpp")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none -n")
    parser.set_defaults(ranks=3, seed=1)
    kills.run_test(parser, Disks)


if __name__ == "__main__":
    main()
