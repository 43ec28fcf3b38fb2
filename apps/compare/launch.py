"""How the scripts of this folder start programs on the ranks of one machine, which may stand for several."""

import pathlib
import subprocess
import sys


def on_ranks(mpirun, ranks, nodes):
    """The command in front of a program. With more than one node NCCL sees that many machines of consecutive ranks, between
    which it takes loopback sockets; the program itself must be told (--ranks-per-node)."""
    command = [*mpirun, "-n", ranks]
    if nodes > 1:  # each rank says on which of the nodes it is
        rank = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}"
        command += ["bash", "-c", f'NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=node$(({rank} / {ranks // nodes})) exec "$0" "$@"']
    return command


def run(command, log, limit):
    """True when it ended well; what it said is in the file `log`."""
    print(f"# {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    with open(log, "w") as file:
        try:
            status = subprocess.run(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {limit:.0f} s"
    if status != 0:
        last = pathlib.Path(log).read_text(errors="replace").splitlines()[-15:]
        print(f"FAILED ({status}); {log} ends with:", *last, sep="\n  ", file=sys.stderr, flush=True)
    return status == 0
