"""ReFrame's description of a machine without a batch system, for annulus.py. Copy it for a site: `scheduler`, `launcher` and `access` are
the site's ('slurm', 'srun', ['-p PARTITION']), and the rest may stay."""

import os
import shutil
import subprocess

from reframe.core.backends import register_launcher
from reframe.core.launchers import JobLauncher


@register_launcher("mpirun-here", local=False)
class MpirunHere(JobLauncher):
    """mpirun on this machine. Open MPI's refuses root and more ranks than cores unless told otherwise; others know none of its flags."""

    def command(self, job):
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
        flags = ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in said else []
        if flags and os.getuid() == 0:
            flags.append("--allow-run-as-root")
        return [shutil.which("mpirun"), *flags, "-n", str(job.num_tasks)]


site_configuration = {
    "systems": [
        {
            "name": "machine",
            "descr": "this machine, without a batch system",
            "hostnames": [".*"],
            "partitions": [{"name": "local", "scheduler": "local", "launcher": "mpirun-here", "environs": ["default"], "max_jobs": 1}],
        }
    ],
    "environments": [{"name": "default"}],
}
