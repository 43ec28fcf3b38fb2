"""kill -9 at random moments of saving and training: nothing that was saved is lost, no half checkpoint counts, and the
run ends with the bits of one that nothing happened to.

  python3 tests/train/kills.py --train build/cpu/bin/annulus-train --tokens build/cpu/bin/annulus-tokens [--rounds 200]
    [--slow-disk build/cpu/bin/libslow_disk.so]

Every round starts the same command, with another number of steps between checkpoints and another parallel.zero, and kills
any one rank, any two, the launcher, or all of them, after a random time. With --slow-disk half of the rounds write checkpoints so slowly
that they are killed while parts are written. Needs no package of Python.
"""
import argparse
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
        rate = self.random.choice((0, 5e5, 3e6)) if self.options.slow_disk else 0
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

    def run(self):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none -n")
    parser.add_argument("--slow-disk", help="the library of tests/train/slow_disk.cpp")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    run_test(parser, Test)


def run_test(parser, test):
    """Makes test(options, folder), and runs it."""
    options = parser.parse_args()
    for name in ("train", "tokens", "slow_disk"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    with tempfile.TemporaryDirectory(prefix="annulus-kills-") as folder:
        try:
            test(options, pathlib.Path(folder)).run()
        except AssertionError as error:
            log = pathlib.Path(folder) / "log"
            if log.exists():
                sys.stderr.write(log.read_text(errors="replace")[-4000:])
            sys.exit(f"{sys.argv[0]}: {error}")


if __name__ == "__main__":
    main()
