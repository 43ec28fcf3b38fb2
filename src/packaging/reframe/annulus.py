"""ReFrame checks of Annulus: build, attention, links, and a training run that is resumed.

reframe -C src/packaging/reframe/site.py -c src/packaging/reframe/annulus.py -r -S preset=cpu

-S preset=PRESET: the preset that is built and run. -S bin=FOLDER: programs that are installed; nothing is built then.
-S ranks=N: MPI ranks. GPUs take one rank each.
"""

import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import fixture, performance_function, run_after, run_before, sanity_function, variable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class Build(rfm.RunOnlyRegressionTest):
    """The programs of a preset, built in the clone: what is there already takes seconds."""

    preset = variable(str, value="cpu")
    local = True
    executable = os.path.join(ROOT, "annulus")
    time_limit = "2h"

    @run_before("run")
    def name_preset(self):
        self.executable_opts = ["build", self.preset]

    @sanity_function
    def is_built(self):
        programs = [os.path.join(ROOT, "build", self.preset, "bin", name) for name in ("annulus-train", "annulus-bench", "annulus-tokens")]
        return sn.all([sn.assert_eq(self.job.exitcode, 0), *[sn.path_isfile(program) for program in programs]])


@rfm.simple_test
class BuildCheck(rfm.RunOnlyRegressionTest):
    """The build, and that its programs start."""

    descr = "the programs are built and start"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    build = fixture(Build, scope="session")
    local = True

    @run_before("run")
    def name_program(self):
        self.executable = os.path.join(ROOT, "build", self.build.preset, "bin", "annulus-plan")
        self.executable_opts = ["--version"]

    @sanity_function
    def says_version(self):
        return sn.assert_found(r"annulus-plan \d+\.\d+", self.stdout)


class AnnulusCheck(rfm.RunOnlyRegressionTest):
    """A program of Annulus on MPI ranks."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    preset = variable(str, value="cpu")
    bin = variable(str, value="")
    ranks = variable(int, value=2)
    program = variable(str)
    time_limit = "10m"

    @run_after("init")
    def wait_for_build(self):
        if not self.bin:
            self.depends_on("BuildCheck")
            self.bin = os.path.join(ROOT, "build", self.preset, "bin")
        self.num_tasks = self.ranks
        self.executable = os.path.join(self.bin, self.program)

    @run_before("run")
    def share_cores(self):
        # With a batch system its allocation decides.
        if self.current_partition.scheduler.registered_name == "local":
            self.env_vars["OMP_NUM_THREADS"] = max(1, (os.cpu_count() or 1) // self.ranks)
            self.env_vars["OMP_PROC_BIND"] = "false"


@rfm.simple_test
class AttentionCheck(AnnulusCheck):
    """Attention over the ranks is that of one device, whatever the schedule."""

    descr = "attention over the ranks, compared with double precision"
    program = "annulus-bench"
    executable_opts = ["attention", "--schedule", "ring", "burst", "topology-burst", "--tokens", "1000", "--heads", "4", "--kv-heads", "2",
                       "--head-dim", "64", "--dtype", "f32", "--check", "--repetitions", "2", "--json", "attention.json"]

    @sanity_function
    def is_exact(self):
        return sn.assert_eq(self.job.exitcode, 0)


@rfm.simple_test
class LinksCheck(AnnulusCheck):
    """Links and kernels are measured, and planned with."""

    descr = "links and kernels, as a cluster file that annulus-plan reads"
    program = "annulus-bench"
    executable_opts = ["links", "--seconds", "0.05", "--max-bytes", "4M", "--rows", "256", "1024", "--head-dim", "64", "--dtype", "f32",
                       "--width", "512", "--output", "cluster.toml"]

    @run_before("run")
    def plan_with_it(self):
        plan = os.path.join(self.bin, "annulus-plan")
        self.postrun_cmds = [f"{plan} --cluster cluster.toml --ranks {self.ranks} --tokens 4096 --heads 4 --schedule auto --json plan.json"]

    @sanity_function
    def has_files(self):
        return sn.all([sn.assert_eq(self.job.exitcode, 0), sn.path_isfile("cluster.toml"), sn.path_isfile("plan.json")])


@rfm.simple_test
class TrainingCheck(AnnulusCheck):
    """A run of ten optimizer steps that ends after six goes on from its checkpoint, and its loss has fallen."""

    descr = "a training run that is resumed"
    program = "annulus-train"

    @run_before("run")
    def train_twice(self):
        tokens = os.path.join(self.bin, "annulus-tokens")
        self.prerun_cmds = [f"{tokens} pack --out shards --extensions .md {os.path.join(ROOT, 'docs')}"]
        common = [os.path.join(ROOT, "data", "demo.toml"), "--set", "data.shards=shards", "--set", "run.folder=run", "--set", "train.lr=4e-3",
                  "--set", "train.warmup_steps=2", "--set", "train.log_every=1", "--set", "checkpoint.every=3"]
        self.executable_opts = [*common, "--set", "train.steps=6"]
        launch = " ".join([*self.job.launcher.command(self.job), *self.job.launcher.options])
        self.postrun_cmds = [" ".join([launch, self.executable, *common, "--set", "train.steps=10", "--summary"])]

    @sanity_function
    def resumes(self):
        losses = sn.extractall(r'"loss": ?([0-9.]+)', "run/metrics.jsonl", 1, float)
        steps = sn.extractall(r'"step": ?(\d+)', "run/metrics.jsonl", 1, int)
        return sn.all([sn.assert_eq(self.job.exitcode, 0), sn.assert_eq(list(steps), list(range(1, 11))),
                       sn.assert_lt(losses[-1], losses[0])])

    @performance_function("tokens/s")
    def speed(self):
        return sn.avg(sn.extractall(r'"tokens_per_second": ?([0-9.e+]+)', "run/metrics.jsonl", 1, float))
