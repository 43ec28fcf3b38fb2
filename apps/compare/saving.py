#!/usr/bin/env python3
"""What saving a checkpoint costs a run while it trains, and whether a run that was killed goes on with the same bits.

usage: saving.py --train build/cuda/bin/annulus-train --shards SHARDS [--config data/llama-7b.toml] [--gpus 2] [--tokens 65536]
                 [--every 12] [--case 'NAME: KEY=VALUE …' …] [--out saving]

For each case: a run makes --every optimizer steps and saves while it goes on. --after steps behind the end of that save all its
processes are killed (SIGKILL). The same command then goes on from the checkpoint, and its first --compare steps are held against those that
the first run made before it was killed: loss and gradient norm must be the same bits. Then the checkpoint is removed.
Without --case: `copy` (a rank's share is written from a copy in the host's memory) and `offloaded optimizer` (from the host's memory itself).

The disk of --runs must have room for one checkpoint, 12 bytes a parameter; this is asked before the save begins. Choose --every larger than the
steps that a save lasts: else the next one waits for it, which the table shows.

Writes <out>.md and <out>.json after every case; the table goes to stdout, too. Its columns:
  update                    from the end of one optimizer step to the end of the next, median of those between the first and the save, and the range
  that saves                the first behind which a save was started, with what it takes longer than the median before
  while it writes           median of the others until the parts are written, and the largest, with what the median takes longer
  waited                    seconds for which training waited, as the program logs it
  checkpoint, written       as the program logs it: from the start of the save to its end
  host                      the peak of arrays in the host's memory of one rank, pinned ones included (resident: of its process)
  resumed                   seconds from the command to the end of the first optimizer step, minus one update
  same bits                 of how many steps loss and gradient norm were compared, and what came out
The exit status is 1 when a run failed or other bits came out.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

import launch
import training

CASES = ["copy:", "offloaded optimizer: memory.offload_optimizer=true"]
HEADINGS = ("case", "tokens", "update, s", "that saves", "while it writes", "waited, s", "checkpoint", "written", "host, GiB (resident)",
            "resumed, s", "same bits")
SAVED = re.compile(r"saved (.+) \(([\d.]+ \w+) in ([\d.]+) s, ([\d.]+ \w+)/s; training waited ([\d.]+) s\)")
GIGABYTES = {"bytes": 1e-9, "kB": 1e-6, "MB": 1e-3, "GB": 1}
BYTES_OF_A_PARAMETER = 12  # fp32 master weight and AdamW's moments


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     parents=[training.common_parser()])
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--case", nargs="+", default=CASES, metavar="'NAME: KEY=VALUE …'", help="keys of the configuration")
    parser.add_argument("--every", type=int, default=12, help="optimizer steps before the save")
    parser.add_argument("--after", type=int, default=2, help="optimizer steps behind the end of the save, before the kill")
    parser.add_argument("--compare", type=int, default=2, help="optimizer steps of the run that goes on")
    parser.set_defaults(out=pathlib.Path("saving"))
    options = parser.parse_args()
    options.case = training.split_cases(parser, options.case)
    if options.every < 3 or options.after < 1 or not 1 <= options.compare < options.every:
        parser.error("give --every 3 or more, --after 1 or more, and --compare from 1 to below --every")
    training.check(parser, options)
    return options


def gigabytes(text):
    """Of "14.8 GB" and "7.40 MB"."""
    number, unit = text.split()
    return float(number) * GIGABYTES[unit]


class Job:
    """A run of annulus-train that is watched from its start to its kill."""

    def __init__(self, command, folder, log):
        print(f"# {shlex.join(map(str, command))}", file=sys.stderr, flush=True)
        self.metrics, self.log = folder / "metrics.jsonl", log
        self.records, self.ends, self.started, self.read = [], [], time.monotonic(), 0
        with open(log, "w") as file:
            self.launcher = subprocess.Popen(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def look(self):
        """Takes in new records of optimizer steps, and when they were seen; whether the program still runs."""
        alive = self.launcher.poll() is None
        if self.metrics.exists():
            with open(self.metrics, "rb") as file:
                file.seek(self.read)
                for line in file:
                    if line.endswith(b"\n"):
                        self.read += len(line)
                        self.records.append(json.loads(line))
                        self.ends.append(time.monotonic())
        return alive

    def text(self):
        return self.log.read_text(errors="replace")

    def step(self):
        return self.records[-1]["step"] if self.records else 0

    def until(self, enough, limit):
        """Whether `enough()` came before the program's end and the time limit."""
        end = time.monotonic() + limit
        while self.look() and time.monotonic() < end:
            if enough():
                return True
            time.sleep(0.01)
        return enough()

    def kill(self):
        """All processes of the launcher's session: the launcher and the ranks, which have groups of their own."""
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.getsid(int(entry)) == self.launcher.pid:
                    os.kill(int(entry), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.launcher.wait()

    def updates(self):
        """Seconds from the end of the step before to that of each step but the first, by step."""
        steps = [record["step"] for record in self.records]
        return {step: b - a for step, a, b in zip(steps[1:], self.ends, self.ends[1:])}


def room(job, folder):
    """What is missing on the disk, once the run has said how large the model is; None before."""
    parameters = re.search(r"LLaMA of ([\d.]+) M parameters", job.text())
    if parameters is None:
        return None
    needed = BYTES_OF_A_PARAMETER * float(parameters[1]) * 1e6 * 1.01
    free = shutil.disk_usage(folder).free
    return f"{needed * 1e-9:.1f} GB are needed in {folder}, {free * 1e-9:.1f} GB are free" if free < needed else ""


def first_run(options, command, folder):
    """A row of what the save cost, the records, and an error."""
    used = training.used_memory()
    job = Job(command, folder, folder.with_suffix(".log"))
    saved_at = []

    def enough():
        if job.step() < options.every or not SAVED.search(job.text()):
            return False
        saved_at[:] = saved_at or [job.step()]
        return job.step() >= saved_at[0] + options.after

    try:
        if not job.until(lambda: room(job, folder.parent) is not None, options.time.limit()):
            return {}, [], "failed"
        if problem := room(job, folder.parent):
            return {}, [], problem
        if not job.until(enough, options.time.limit()):
            return {}, [], "failed"
    finally:
        job.kill()
        training.wait_for_memory(used)
    path, size, seconds, rate, waited = SAVED.search(job.text()).groups()
    updates = job.updates()
    before = [updates[step] for step in range(2, options.every + 1)]
    writing = [updates[step] for step in range(options.every + 2, saved_at[0] + 1)]
    memory = job.records[-1]["peak_memory_bytes"]
    return {"before": before, "saving": updates[options.every + 1], "writing": writing, "gigabytes": gigabytes(size),
            "seconds": float(seconds), "rate": gigabytes(rate), "waited": float(waited), "host": memory["total"], "resident": memory["resident"],
            "overtaken": "does not keep up" in job.text(), "checkpoint": path}, job.records, ""


def second_run(options, command, folder, expected):
    """A row of the run that goes on."""
    used = training.used_memory()
    (folder / "metrics.jsonl").rename(folder / "metrics-killed.jsonl")
    job = Job(command, folder, folder.with_name(folder.name + "-resumed.log"))
    try:
        came = job.until(lambda: job.step() >= options.every + options.compare, options.time.limit())
    finally:
        job.kill()
        training.wait_for_memory(used)
    if not came:
        training.report_failure(job.log)
        return {"same": None}
    bits = lambda records: {r["step"]: (r["loss"], r["grad_norm"]) for r in records if  # noqa: E731
                            options.every < r["step"] <= options.every + options.compare}
    return {"same": bits(job.records) == bits(expected), "resumed": job.ends[0] - job.started, "bits": [bits(expected), bits(job.records)]}


def measure(options, case, folder):
    name, keys = case
    row = {"case": name, "settings": keys, "tokens": options.tokens}
    settings = [f"data.sequence_length={options.tokens}", f"checkpoint.every={options.every}", "checkpoint.keep=1", *options.set, *keys]
    command = training.train_command(options, folder, settings)
    cost, records, error = first_run(options, command, folder)
    if error:
        if error == "failed":
            training.report_failure(folder.with_suffix(".log"))
        return row | {"error": error}, False
    row |= cost | second_run(options, command, folder, records)
    shutil.rmtree(folder / "checkpoints")
    return row, row["same"] is True


def cells(options, row):
    if "before" not in row:
        return [row["case"], row["tokens"], row["error"]] + [""] * (len(HEADINGS) - 3)
    before = statistics.median(row["before"])
    more = lambda seconds: f"{100 * (seconds / before - 1):+.1f} %"  # noqa: E731
    writing = row["writing"]
    during = f"{statistics.median(writing):.2f}, at most {max(writing):.2f} ({more(statistics.median(writing))})" if writing else "ended in it"
    same = {True: f"{options.compare} steps: yes", False: f"{options.compare} steps: no", None: "failed"}[row["same"]]
    return [row["case"], row["tokens"], f"{before:.2f} ({min(row['before']):.2f} to {max(row['before']):.2f})",
            f"{row['saving']:.2f} ({more(row['saving'])})", during, f"{row['waited']:.2f}" + (", next save waited" if row["overtaken"] else ""),
            f"{row['gigabytes']:.3g} GB", f"{row['seconds']:.1f} s, {row['rate']:.3g} GB/s",
            f"{row['host'] / training.GIB:.1f} ({row['resident'] / training.GIB:.1f})",
            f"{row['resumed'] - before:.1f}" if "resumed" in row else "", same]


def markdown(options, rows, _):
    return training.markdown_table(HEADINGS, [cells(options, row) for row in rows])


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, case in enumerate(options.case, 1):
        if options.time.spent():
            results.add([{"case": case[0], "tokens": options.tokens, "error": "not run: the budget was spent"}], {}, False)
            continue
        row, good = measure(options, case, options.runs / f"{number}")
        results.add([row], {}, good)
    print(results.text, end="")
    return 0 if results.good else 1


if __name__ == "__main__":
    sys.exit(main())
