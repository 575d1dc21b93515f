"""Check thousands of drawn convolutions by ``"fused"`` on this machine's GPU, in one process.

``python -m tests.record_drawn`` draws them, compiles what they take in processes side by side (hours on few
cores; ``NUMBA_CACHE_DIR`` names where it is kept), compares one after the other with float64 and writes
``experiments/results/<gpu>/gpu_drawn.json``. Exit status 1 if one failed, with the simplest that does; 2 if there is
no GPU; 130 after Ctrl-C: what was compiled is kept.
"""

import argparse
import datetime
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))  # where pytest finds the tests' modules

import drawn

from experiments import provenance
from experiments.ahead import pretend, side_by_side
from numbacaps.target import SIMULATED, cuda

_convolutions = []  # of a process that compiles


def _begin(examples, capability, multiprocessors):
    """Make one of the processes ready to compile, on a GPU of that kind which it does not touch."""
    pretend(capability, multiprocessors)
    drawn.each(examples, _convolutions.append)


def _compile(number):
    """Compile what a convolution runs, by its number."""
    _, _, compute = _convolutions[number].ready()
    compute()


def _record(convolutions, failure, seconds):
    """Write what was checked; the file's text."""
    kinds = Counter(f"{one.wanted} {one.dtype} {one.precision}" for one in convolutions)
    record = {
        "gpu": provenance.gpu_name(),
        "driver": provenance.driver(),
        "versions": provenance.versions(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "convolutions": len(set(convolutions)),
        "failure": failure,
        "seconds": round(seconds),
        "of_each_kind": dict(sorted(kinds.items())),
        "source_sha256": provenance.source_sha256(),
    }
    text = json.dumps(record, indent=2)
    provenance.write_text(provenance.RESULTS / record["gpu"] / "gpu_drawn.json", text + "\n")
    return text


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.record_drawn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--examples", type=int, default=2000, help="to draw (default 2000)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="that compile (default: one a core)"
    )
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value < 1:
            parser.error(f"--{name} got {value}; it takes 1 or more")
    if SIMULATED or not cuda.is_available():
        print("drawn: no GPU was found; this takes an NVIDIA GPU and its driver", file=sys.stderr)
        return 2
    start, device, convolutions, failure = time.monotonic(), cuda.get_current_device(), [], None
    drawn.each(options.examples, convolutions.append)
    gpu = options.examples, device.compute_capability, device.MULTIPROCESSOR_COUNT
    try:
        # One that fails here fails below, too, where hypothesis finds a simpler one.
        side_by_side(list(map(str, convolutions)), _compile, _begin, gpu, options.processes)
        with tqdm(total=len(convolutions), unit="convolution") as bar:

            def check(convolution):
                convolution.check()
                bar.update()

            drawn.each(options.examples, check)
    except KeyboardInterrupt:
        return 130
    except Exception as found:  # whatever it was, it is what the record says
        failure = "\n".join([repr(found), *getattr(found, "__notes__", ())])
    print(_record(convolutions, failure, time.monotonic() - start))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
