"""A sweep whose measurement is a stub, as a process: ``python -m tests.support.stub_experiment`` takes a sweep's options.

``STUB`` says what happens on a GPU by the name in ``CUDA_VISIBLE_DEVICES``: ``1:dies`` ends the process there with its
second group of rows, by SIGKILL; ``1:waits`` measures until it is interrupted, ``1:stays`` until it is killed, and
``1:asks`` goes on when it is told to.
"""

import os
import signal
import sys
import time

from experiments import sweep
from experiments.measuring import cards, command, contestants, device_memory, records, sources

GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "")
FATES = dict(part.split(":") for part in os.environ.get("STUB", "").split(",") if part)
NOW = {"gpu": "stub", "driver": "1", "versions": "{}", "source_sha256": "now"}
NOW |= {"method_sha256": "now", "gpu_uuid": f"GPU-{GPU}"}
measured = []


def measure(problem, wanted, variants, tick):
    """A row for each variant, whose time follows from the geometry."""
    measured.append(wanted)
    fate = FATES.get(GPU)
    if fate == "dies" and len(measured) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if fate in ("waits", "stays", "asks") and len(measured) == 2:
        if fate == "stays":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(f"waiting on {GPU}", file=sys.stderr, flush=True)
        if fate == "asks":
            sys.stdin.readline()
        else:
            time.sleep(600)
    for variant in variants:
        tick(variant)
    g = problem.geometry
    cells = NOW | {"ms_p50": g.flop / 1e6, "timestamp": records.now()}
    return [cells | variant.cells | {"kernel_sources": sources.NO_KERNELS} for variant in variants]


def groups(parser, options):
    """A sweep's groups with the stub."""
    found = sweep.groups(parser, options)
    for group in found:
        group.measure = measure
    return found


def main(arguments):
    cards.busy_neighbours = lambda: 1
    command.refuse_without_gpu = lambda name: None
    device_memory.release = lambda: None
    contestants.absent = list
    records.of_machine = lambda: NOW
    command.provenance.gpu_name = lambda: "stub"
    return command.main("sweep", sweep.make_parser(), groups, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
