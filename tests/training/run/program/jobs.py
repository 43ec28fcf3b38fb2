"""What happens to jobs of three ranks or more, each a process.

  python3 tests/training/run/program/jobs.py kills --train build/cpu/bin/annulus-train --tokens build/cpu/bin/annulus-tokens
    --slow-disk build/cpu/tests/training/run/libslow_disk.so [--rounds 200]

kills: kill -9 at random moments of saving and training: nothing that was saved is lost, no half checkpoint counts, and
the run ends with the bits of one that nothing happened to. Every round starts the same command, with another number of
steps between checkpoints and another parallel.zero, and kills any one rank, any two, the launcher, or all of them, after a
random time. Half of the rounds write checkpoints so slowly that they are killed while parts are written.

disks: what a user meets beside the bits of checkpoints: progress in a terminal, a second run, the end of an allocation.

Needs no package of Python.
"""
import argparse
import contextlib
import json
import os
import pathlib
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUFFERS = ("parameters", "first_moment", "second_moment")


def read(folder):
    """Manifest and tensors of a checkpoint, every block of which is what its checksum says."""
    head, rest = (folder / "manifest.json").read_bytes().split(b"\n", 1)
    manifest = json.loads(head + rest)
    assert zlib.crc32(rest) == manifest["crc32"], f"{folder}: the manifest is damaged"
    block, tensors = 4 * manifest["block"], {}
    for part in manifest["parts"]:
        data = (folder / part["file"]).read_bytes()
        assert len(data) == part["bytes"], f"{folder}/{part['file']} has another size"
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        for piece in part["pieces"]:
            name = manifest["tensors"][piece["tensor"]]["name"]
            for buffer in BUFFERS:
                first, last = (begin + at for at in header[f"{buffer}/{name}"]["data_offsets"])
                values = data[first:last]
                found = [zlib.crc32(values[i : i + block]) for i in range(0, len(values), block)]
                assert found == piece["crc32"][buffer], f"{folder}/{part['file']}: {buffer}/{name} is damaged"
                tensors.setdefault((buffer, name), []).append((piece["first"], values))
    whole = {key: b"".join(values for _, values in sorted(pieces)) for key, pieces in tensors.items()}
    return manifest, whole


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return {record["step"]: record["loss"] for record in records}


class Test:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.random = random.Random(options.seed)
        self.in_saves = 0  # rounds that were killed while something was being saved
        subprocess.run([options.tokens, "pack", str(ROOT / "data/fixture/text"), "--out", str(folder / "shards")],
                       check=True, stdout=subprocess.DEVNULL)
        (folder / "run.toml").write_text(
            "[model]\nlayers = 2\nhidden = 96\nheads = 2\nkv_heads = 1\nhead_dim = 16\nffn = 256\n"
            f"[data]\nsequence_length = 64\nshards = ['{folder}/shards']\n"
            "[train]\nsteps = 100000\nschedule_steps = 100000\nwarmup_steps = 2\nepsilon = 0.001\n")

    def command(self, name, settings):
        command = shlex.split(self.options.mpirun) + [str(self.options.ranks), self.options.train, str(self.folder / "run.toml")]
        for key, value in {"run.folder": self.folder / name, **settings}.items():
            command += ["--set", f"{key}={value}"]
        return command

    def environment(self, rate):
        """Of a run whose ranks read and write checkpoints at `rate` bytes a second each; 0: as fast as they can."""
        if rate == 0:
            return None
        return {**os.environ, "LD_PRELOAD": self.options.slow_disk, "SLOW_DISK_PATH": "/checkpoints/", "SLOW_DISK_RATE": str(rate)}

    def start(self, name, settings, rate=0):
        log = open(self.folder / "log", "ab")
        return subprocess.Popen(self.command(name, settings), stdout=log, stderr=log, start_new_session=True, env=self.environment(rate))

    def ranks(self, launcher):
        """Processes of the launcher's session that run the program."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.getsid(int(entry)) == launcher.pid:
                    arguments = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                    if arguments[0] == self.options.train.encode():
                        found.append(int(entry))
            except (ProcessLookupError, FileNotFoundError):
                pass
        return found

    def checkpoints(self, name):
        return sorted(path for path in (self.folder / name / "checkpoints").glob("step-*") if ".tmp-" not in path.name)

    def round(self, number, newest):
        """Starts, kills, and looks at what is left; the newest step that was saved."""
        settings = {"checkpoint.every": self.random.choice((1, 2, 3)), "parallel.zero": self.random.choice((0, 1, 3)),
                    "checkpoint.keep": self.random.choice((1, 2, 3))}
        rate = self.random.choice((0, 5e5, 3e6))
        launcher = self.start("run", settings, rate)
        deadline = time.monotonic() + 60
        started = (self.folder / "run/metrics.jsonl")
        before = started.stat().st_mtime if started.exists() else 0
        # The others end while the run starts and reads its checkpoint.
        if self.random.random() < 0.7:
            while time.monotonic() < deadline and not (started.exists() and started.stat().st_mtime > before):
                assert launcher.poll() is None, f"the run has ended by itself: see {self.folder}/log"
                time.sleep(0.002)
        time.sleep(self.random.uniform(0, 1.5 if rate else 0.5))
        ranks = self.ranks(launcher)
        victims = self.random.choice(([launcher.pid, *ranks], [launcher.pid], self.random.sample(ranks, min(2, len(ranks))),
                                      *3 * [self.random.sample(ranks, min(1, len(ranks)))])) or [launcher.pid]
        if list((self.folder / "run/checkpoints").glob("step-*.tmp-*")):
            self.in_saves += 1
        for victim in victims:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 60
        while self.ranks(launcher):
            assert time.monotonic() < deadline, "ranks go on after one of them was killed"
            time.sleep(0.01)
        try:
            launcher.wait(5)
        except subprocess.TimeoutExpired:  # Open MPI misses the end of a rank that was killed while it started
            launcher.kill()
            launcher.wait()
        steps = []
        for path in self.checkpoints("run"):
            if (path / "manifest.json").exists():
                manifest, _ = read(path)
                steps.append(manifest["step"])
        reached = max(steps, default=0)
        assert reached >= newest, f"round {number}: the checkpoint of step {newest} is gone, the newest is of {reached}"
        return reached

    def kills(self):
        newest = 0
        for number in range(self.options.rounds):
            newest = self.round(number, newest)
            print(f"round {number + 1} of {self.options.rounds}: saved up to step {newest}", flush=True)
        end = max(losses(self.folder / "run"), default=0) + 3
        for name in ("run", "whole"):
            settings = {"train.steps": end, "checkpoint.every": 0, "parallel.zero": 3 if name == "run" else 0}
            assert self.start(name, settings).wait(3600) == 0, f"{name} has failed: see {self.folder}/log"
        assert losses(self.folder / "run") == losses(self.folder / "whole"), "other losses than those of the run left alone"
        a, b = (read(self.checkpoints(name)[-1]) for name in ("run", "whole"))
        assert a[0]["step"] == b[0]["step"] == end and a[1] == b[1], "other bits than those of the run left alone"
        leftovers = [path.name for path in (self.folder / "run/checkpoints").iterdir() if ".tmp-" in path.name]
        assert not leftovers, f"left over: {leftovers}"
        print(f"{self.options.rounds} kills, {self.in_saves} of them while a checkpoint was written, {end} optimizer steps on "
              f"{self.options.ranks} ranks: the same bits")

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
            metrics = self.folder / name / "metrics.jsonl"
            found, whole = (self.folder / name / f"checkpoints/step-0000000{step}/manifest.json" for step in (2, 3))
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
                assert launcher.poll() is None
                time.sleep(0.01)
            os.kill(launcher.pid, signal.SIGUSR1)
            while launcher.poll() is None and not found.exists():
                time.sleep(0.01)
            if not found.exists():
                continue
            for process in (*self.ranks(launcher), launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            launcher.wait()
            if whole.exists():  # the step ended before its processes did
                continue
            said = self.finished(name, {**settings, "train.steps": 3})
            assert "resumed after optimizer step 2" in said, said
            self.finished("no limit", {**settings, "train.steps": 3})
            assert losses(self.folder / name) == losses(self.folder / "no limit"), "other losses than those of the run left alone"
            return
        raise AssertionError("no state was saved in the middle of a step")

    def disks(self):
        for case in (self.progress, self.twice, self.limit):
            case()
            print(f"{case.__name__}: as documented", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "disks"))
    parser.add_argument("--train", required=True, type=os.path.abspath)
    parser.add_argument("--tokens", required=True, type=os.path.abspath)
    parser.add_argument("--slow-disk", required=True, type=os.path.abspath, help="the library of tests/training/run/program/slow_disk.cpp")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none -n")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="annulus-jobs-") as folder:
        try:
            getattr(Test(options, pathlib.Path(folder)), options.what)()
        except AssertionError as error:
            log = pathlib.Path(folder) / "log"
            if log.exists():
                sys.stderr.write(log.read_text(errors="replace")[-4000:])
            sys.exit(f"{sys.argv[0]}: {error}")


if __name__ == "__main__":
    main()
