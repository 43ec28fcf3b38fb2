"""Checkpoints on disks that are slow, full or damaged, as a user of three ranks meets them, and what a terminal shows meanwhile.

  python3 tests/train/disks.py --train build/cpu/bin/annulus-train --tokens build/cpu/bin/annulus-tokens
    --slow-disk build/cpu/bin/libslow_disk.so

Needs no package of Python; the full disk is left out where the process may not mount one.
"""
import argparse
import os
import pathlib
import pty
import re
import shutil
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

    def slow(self):
        every = {"train.steps": 5, "checkpoint.every": 1, "checkpoint.keep": 9, "parallel.zero": 3}
        said = self.finished("slow", every, rate=1e6)
        assert re.search(r"the disk does not keep up: the checkpoint of optimizer step \d waited for that of step \d", said), said
        self.finished("fast", every)
        for a, b in zip(self.checkpoints("slow"), self.checkpoints("fast"), strict=True):
            assert kills.read(a)[1] == kills.read(b)[1], f"{a} has other bits than {b}"
        assert len(self.checkpoints("slow")) == 5

    def progress(self):
        shown = self.in_terminal("shown", {"train.steps": 1, "checkpoint.every": 0}, rate=3e5)
        assert re.search(r"\r\x1b\[Ksaving optimizer step 1: \d\.\d\d of \d\.\d\d MB, \d\.\d\d MB/s, \d+ s left", shown), repr(shown)
        shown = self.in_terminal("shown", {"train.steps": 2, "checkpoint.every": 0}, rate=4e5)
        assert re.search(r"\r\x1b\[Kloading step-00000001: \d\.\d\d of \d\.\d\d MB, \d\.\d\d MB/s, \d+ s left", shown), repr(shown)
        said = self.finished("quiet", {"train.steps": 1, "checkpoint.every": 0}, rate=3e5)
        assert "GB/s, " not in said.replace("GB/s; training", ""), f"a progress line in a file: {said}"

    def full(self):
        disk = self.folder / "disk"
        disk.mkdir()
        one = sum(file.stat().st_size for file in self.checkpoints("fast")[0].iterdir())
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * one + one // 2}", "tmpfs", str(disk)], stderr=subprocess.DEVNULL).returncode:
            print("the full disk is left out: this process may not mount one")
            return
        try:
            settings = {"run.folder": disk / "run", "train.steps": 5, "checkpoint.every": 1, "checkpoint.keep": 9, "parallel.zero": 3}
            said = self.finished("full", settings, status=2)
            assert re.search(r"the checkpoint of optimizer step [345] was not saved, training goes on: cannot write '.*/part-0000\d-of-00003.safetensors'"
                             r".*No space left on device.*\(found on rank \d\)", said), said
            kept = sorted(path.name for path in (disk / "run/checkpoints").iterdir())
            assert kept == ["step-00000001", "step-00000002"], f"whole ones stay, nothing else: {kept}"
            subprocess.run(["mount", "-o", f"remount,size={9 * one}", str(disk)], check=True)
            said = self.finished("full", settings)
            assert "resumed after optimizer step 2" in said, said
            assert kills.losses(disk / "run") == kills.losses(self.folder / "fast"), "other losses than on a disk with room"
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def damaged(self):
        """Newest first: a part is missing, one is damaged, one is shorter; read by fewer ranks with another sharding."""
        run = self.folder / "damaged"
        shutil.copytree(self.folder / "fast", run)
        paths = self.checkpoints("damaged")
        parts = [path / f"part-0000{part}-of-00003.safetensors" for path, part in zip(paths[::-1], (1, 2, 0))]
        parts[0].unlink()
        data = bytearray(parts[1].read_bytes())
        data[-1] ^= 1
        parts[1].write_bytes(data)
        os.truncate(parts[2], parts[2].stat().st_size - 4)
        ranks, self.options.ranks = self.options.ranks, 2
        said = self.finished("damaged", {"train.steps": 6, "checkpoint.every": 0, "checkpoint.keep": 9, "parallel.zero": 1})
        self.options.ranks = ranks
        for part in parts:
            assert re.search(f"passing over a damaged checkpoint: .*{re.escape(str(part))}", said), f"{part} is not named: {said}"
        assert "resumed after optimizer step 2" in said, said

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
        for case in (self.slow, self.progress, self.full, self.damaged, self.twice, self.limit):
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
