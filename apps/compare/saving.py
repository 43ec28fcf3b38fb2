#!/usr/bin/env python3
"""What saving a checkpoint costs a run while it trains, and whether a run that was killed goes on with the same bits.

usage: saving.py --train build/cuda/bin/annulus-train --shards SHARDS [--config data/llama-7b.toml] [--gpus 2] [--tokens 65536]
                 [--every 12] [--case 'NAME: KEY=VALUE …' …] [--out saving]

For each case: a run makes --every optimizer steps and saves while it goes on. Two steps behind the end of that save all its
processes are killed (SIGKILL). The same command then goes on from the checkpoint, and its first --compare steps are held against those that
the first run made before it was killed: loss and gradient norm must be the same bits. Then the checkpoint is removed.
Without --case: `copy` (a rank's share is written from a copy in the host's memory) and `offloaded optimizer` (from the host's memory itself).

The disk of --runs must have room for one checkpoint, 12 bytes a parameter; this is asked before the save begins. Choose --every larger than the
steps that a save lasts: else the next one waits for it, which the table shows.

The columns of the table:
  update                    from the end of one optimizer step to the end of the next, median of those between the first and the save, and the range
  that saves                the first behind which a save was started, with what it takes longer than the median before
  while it writes           median of the others until the parts are written, and the largest, with what the median takes longer
  waited                    seconds for which training waited, as the program logs it
  checkpoint, written       as the program logs it: from the start of the save to its end
  host                      the peak of arrays in the host's memory of one rank, pinned ones included (resident: of its process)
  resumed                   seconds from the command to the end of the first optimizer step, minus one update
  same bits                 of how many steps loss and gradient norm were compared, and what came out
The exit status is 1 when other bits came out, too.
"""

import re
import shutil
import statistics
import sys
import time

import launch
import training

CASES = ["copy:", "offloaded optimizer: memory.offload_optimizer=true"]
HEADINGS = ("case", "tokens", "update, s", "that saves", "while it writes", "waited, s", "checkpoint", "written", "host, GiB (resident)",
            "resumed, s", "same bits")
SAVED = re.compile(r"saved (.+) \(([\d.]+ \w+) in ([\d.]+ s, [\d.]+ \w+/s); training waited ([\d.]+) s\)")
AFTER = 2  # optimizer steps behind the end of the save, before the kill
BYTES_OF_A_PARAMETER = 12  # fp32 master weight and AdamW's moments


def parse():
    parser = training.parser(__doc__, "saving", CASES)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--every", type=int, default=12, help="optimizer steps before the save")
    parser.add_argument("--compare", type=int, default=2, help="optimizer steps of the run that goes on")
    options = parser.parse_args()
    if options.every < 3 or not 1 <= options.compare < options.every:
        parser.error("give --every 3 or more, and --compare from 1 to below --every")
    training.check(parser, options)
    return options


class Job(launch.Program):
    """A run of annulus-train that is watched from its start to its kill."""

    def __init__(self, command, folder, log):
        self.metrics, self.records, self.ends, self.started = folder / "metrics.jsonl", [], [], time.monotonic()
        super().__init__(command, log)

    def step(self):
        """The last optimizer step; when the ends of new ones were seen is kept."""
        self.records = training.records(self.metrics)
        self.ends += [time.monotonic()] * (len(self.records) - len(self.ends))
        return self.records[-1]["step"] if self.records else 0

    def text(self):
        return self.log.read_text(errors="replace")

    def finish(self, enough, options):
        """Whether `enough()` came; all processes are killed then."""
        try:
            came = self.until(enough, launch.limit(options))
        finally:
            self.end(at_once=True)
        if not came:
            self.report_failure()
        return came

    def updates(self):
        """Seconds from the end of the step before to that of each step but the first, by step."""
        return {record["step"]: b - a for record, a, b in zip(self.records[1:], self.ends, self.ends[1:])}


def lack_of_room(job, folder):
    """What is missing on the disk, once the run has said how large the model is."""
    parameters = re.search(r"LLaMA of ([\d.]+) M parameters", job.text())
    needed = BYTES_OF_A_PARAMETER * float(parameters[1]) * 1e6 * 1.01 if parameters else 0
    free = shutil.disk_usage(folder).free
    return f"{needed * 1e-9:.1f} GB are needed in {folder}, {free * 1e-9:.1f} GB are free" if free < needed else ""


def first_run(options, command, folder):
    """A row of what the save cost, or of an error."""
    job, saved_at = Job(command, folder, folder.with_suffix(".log")), []

    def enough():
        if job.step() < options.every or not SAVED.search(job.text()):
            return bool(lack_of_room(job, folder.parent))
        saved_at[:] = saved_at or [job.step()]
        return job.step() >= saved_at[0] + AFTER

    if not job.finish(enough, options) or not saved_at:
        return {"error": lack_of_room(job, folder.parent) or "failed"}
    _, size, written, waited = SAVED.search(job.text()).groups()
    updates, memory = job.updates(), job.records[-1]["peak_memory_bytes"]
    return {"before": [updates[step] for step in range(2, options.every + 1)], "saving": updates[options.every + 1],
            "writing": [updates[step] for step in range(options.every + 2, saved_at[0] + 1)], "size": size, "written": written, "waited": waited,
            "host": memory["total"], "resident": memory["resident"], "overtaken": "does not keep up" in job.text()}


def second_run(options, command, folder):
    """A row of the run that goes on. A step of a small model is shorter than the look at its records, so that the run may have saved again
    before its kill: steps are compared from the one behind the checkpoint that was read."""
    killed = (folder / "metrics.jsonl").rename(folder / "metrics-killed.jsonl")
    job = Job(command, folder, folder.with_name(folder.name + "-resumed.log"))
    if not job.finish(lambda: job.step() and len(job.records) >= options.compare, options):
        return {"same": None}
    resumed = {r["step"]: (r["loss"], r["grad_norm"]) for r in job.records[:options.compare]}
    before = {r["step"]: (r["loss"], r["grad_norm"]) for r in training.records(killed) if r["step"] in resumed}
    if len(before) < len(resumed):
        print(f"steps {min(resumed)} to {max(resumed)} follow a later save, behind which the run was killed at once: give a larger --every", file=sys.stderr)
    return {"same": before == resumed, "resumed": job.ends[0] - job.started, "bits": [before, resumed]}


def measure(options, tokens, name, keys, folder):
    """A row of a case, and whether all went well."""
    settings = [f"data.sequence_length={tokens}", f"checkpoint.every={options.every}", "checkpoint.keep=1", *options.set, *keys]
    command = training.train_command(options, folder, settings)
    row = first_run(options, command, folder)
    if "error" not in row:
        row |= second_run(options, command, folder)
        shutil.rmtree(folder / "checkpoints")
    return {"case": name, "settings": keys, "tokens": tokens} | row, row.get("same") is True


def cells(options, row):
    if "before" not in row:
        return [row["case"], row["tokens"], row["error"]]
    before, writing = statistics.median(row["before"]), row["writing"]
    more = lambda seconds: f"{100 * (seconds / before - 1):+.1f} %" if before else "steps too short to compare"  # noqa: E731
    during = f"{statistics.median(writing):.2f}, at most {max(writing):.2f} ({more(statistics.median(writing))})" if writing else "ended in it"
    same = {True: f"{options.compare} steps: yes", False: f"{options.compare} steps: no", None: "failed"}[row["same"]]
    return [row["case"], row["tokens"], launch.with_range(row["before"]),
            f"{row['saving']:.2f} ({more(row['saving'])})", during, row["waited"] + (", next save waited" if row["overtaken"] else ""),
            row["size"], row["written"], f"{row['host'] / launch.GIB:.1f} ({row['resident'] / launch.GIB:.1f})",
            f"{row['resumed'] - before:.1f}" if "resumed" in row else "", same]


def markdown(options, rows, _):
    return launch.origin(rows) + launch.table(HEADINGS, [cells(options, row) for row in rows])


def main():
    options = parse()
    results = launch.Results(options, markdown)
    training.run_all(options, results, [(measure, options.tokens, name, keys, {}) for name, keys in options.case])
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
