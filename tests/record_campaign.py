"""The campaign: hours of drawn cases on this machine's GPU, gone on with until there are enough.

``python -m tests.record_campaign`` (``make campaign``) writes ``experiments/results/<gpu>/gpu_campaign.json`` every
few seconds. Ctrl-C, SIGTERM or worse loses no more than that; the next call goes on from there, and begins anew where
the sources, the campaign or the seed are others. Whatever a case finds is written with its number, and
``--only PART:NUMBER`` repeats it. On the simulator (NUMBACAPS_TARGET=sim) all of it runs in miniature.

parts:
"""

import argparse
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from experiments.ahead import count, pretend, side_by_side
from experiments.measuring import command, provenance, records
from experiments.measuring.refusal import Parser
from numbacaps.device.target import SIMULATED, cuda
from tests.support.campaign import PARTS

FILE = "gpu_campaign.json"
_BY_DEFAULT = tuple(name for name in PARTS if name != "sanitizer")
_WRITTEN_EVERY = 2.0  # seconds
_AHEAD = 340  # cases that are compiled side by side before they are checked
_SUPPORT = Path(__file__).parent / "support"
_OWN = (
    Path(__file__),
    *sorted((_SUPPORT / "campaign").glob("*.py")),
    *(_SUPPORT / f"{name}.py" for name in ("cases", "drawn", "nn_networks")),
)


class Record:
    """What was found, as its file has it.

    Parameters
    ----------
    path : Path
    seed : int
    fresh : bool
        Whether to leave out what the file has of the same sources, campaign and seed.
    """

    def __init__(self, path, seed, fresh=False):
        self._path, self._written = path, time.monotonic()
        self.content = _machine() | {"campaign": provenance.sources_name(_OWN), "seed": seed}
        self.content |= {"seconds": 0, "parts": {}}
        before = json.loads(path.read_text()) if path.exists() and not fresh else {}
        same = "gpu", "source_sha256", "campaign", "seed"
        if before and all(before.get(key) == self.content[key] for key in same):
            self.content = before

    def part(self, name):
        """What was found in a part so far."""
        parts = self.content["parts"]
        nothing = {"checked": 0, "next": 0, "seconds": 0.0, "failed": [], "of_each_kind": {}}
        parts[name] = parts.get(name, nothing)
        return parts[name]

    def write(self):
        """Write the file, whole or not at all."""
        parts = self.content["parts"].values()
        self.content["seconds"] = round(sum(part["seconds"] for part in parts))
        provenance.write_text(self._path, json.dumps(self.content, indent=2) + "\n")
        self._written = time.monotonic()

    def write_sometimes(self):
        """Write it, unless that was done just now."""
        if time.monotonic() - self._written > _WRITTEN_EVERY:
            self.write()


def _machine():
    """What a record begins with; on the simulator, too."""
    if SIMULATED:
        source = {"source_sha256": provenance.source_sha256()}
        return {"gpu": "simulator", "versions": provenance.versions(), **source}
    return provenance.of_record()


@dataclass
class Run:
    """Part of the campaign: its cases, from where the record is until there are enough.

    Attributes
    ----------
    name : str
    record : Record
    amount : float
        Of cases or minutes.
    processes : int
        That compile side by side.
    """

    name: str
    record: Record
    amount: float
    processes: int
    _compiled: int = field(default=0, init=False)

    def __post_init__(self):
        self.part, self.found = PARTS[self.name], self.record.part(self.name)
        self.found["wanted"] = self.amount
        self._seed = self.record.content["seed"]
        self._compiled = self.found["next"]

    @property
    def is_done(self):
        """Whether there are enough."""
        if self.part.timed:
            return self.found["seconds"] >= 60 * self.amount
        return self.found["next"] >= self.amount

    def check_all(self):
        """Check what is left; whether to go on with the other parts: not behind an error that is no wrong result."""
        sound = True
        unit = "s" if self.part.timed else self.part.unit
        with tqdm(total=self._total, unit=unit, desc=self.name) as bar:
            while sound and not self.is_done:
                self._compile()
                bar.n = self._reached
                bar.set_postfix_str(
                    f"number {self.found['next']}, {len(self.found['failed'])} failed"
                )
                sound = self._check()
                self.record.write_sometimes()
            bar.n = self._reached
            bar.refresh()
        return sound

    @property
    def _total(self):
        return round(60 * self.amount) if self.part.timed else int(self.amount)

    @property
    def _reached(self):
        return round(self.found["seconds"]) if self.part.timed else self.found["next"]

    def _compile(self):
        """Compile the next cases side by side, where a GPU is to check them."""
        first = self.found["next"]
        if SIMULATED or self.part.compile is None or first < self._compiled:
            return
        self._compiled = min(first + _AHEAD, int(self.amount))
        device = cuda.get_current_device()
        about = self.name, self._seed, first, device.compute_capability
        names = [f"{self.name}:{number}" for number in range(first, self._compiled)]
        arguments = (*about, device.MULTIPROCESSOR_COUNT)
        side_by_side(names, _compile_one, _begin, arguments, self.processes)  # it says which fails

    def _check(self):
        """Check the next case."""
        number, begun, sound, why = self.found["next"], time.monotonic(), True, None
        try:
            for kind in self.part.check(self._seed, number):
                kinds = self.found["of_each_kind"]
                kinds[kind] = kinds.get(kind, 0) + 1
        except AssertionError as wrong:
            why = str(wrong)
        except Exception as error:  # whichever library's
            why, sound = repr(error), _is_a_refusal(error)
        self.found["next"] = number + 1
        self.found["checked"] += 1
        self.found["seconds"] = round(self.found["seconds"] + time.monotonic() - begun, 2)
        if why is not None:
            self.found["failed"].append({"number": number, "why": why})
            tqdm.write(f"{self.name}:{number}: {why}", file=sys.stderr)
            self.record.write()
        return sound


def _is_a_refusal(error):
    """Whether an error leaves the GPU as it was: Python's own, not the driver's."""
    return isinstance(error, (TypeError, ValueError, ImportError, MemoryError, OSError))


_work = []  # of a process that compiles: (part, seed, first number)


def _begin(name, seed, first, capability, multiprocessors):
    """Make a process ready to compile the cases from a number on."""
    pretend(tuple(capability), multiprocessors)
    _work[:] = [(PARTS[name], seed, first)]


def _compile_one(at):
    part, seed, first = _work[0]
    part.compile(seed, first + at)


@contextmanager
def _terminated_as_by_ctrl_c():
    """SIGTERM raises KeyboardInterrupt, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def repeat(name, number, seed):
    """Check a case alone; 1 if it fails."""
    try:
        kinds = PARTS[name].check(seed, number)
    except AssertionError as wrong:
        print(f"{name}:{number}: {wrong}", file=sys.stderr)
        return 1
    print(f"{name}:{number}: sound ({', '.join(dict.fromkeys(kinds))})")
    return 0


def _case(text):
    """(part, number) of ``networks:17``."""
    name, _, number = text.partition(":")
    if name not in PARTS or not number.isdecimal():
        raise argparse.ArgumentTypeError(
            f"got {text!r}; it takes a part and a number, as networks:17"
        )
    return name, int(number)


def _amount(text):
    """Cases or minutes of a part."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e9:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a number of 0 or more")
    return amount


def _seed(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes an integer of 0 or more")
    return int(text)


def make_parser():
    """The command line's parser."""
    made = Parser(
        prog="python -m tests.record_campaign",
        description=__doc__
        + "\n".join(f"  {name:13}{part.summary}" for name, part in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done and nothing found, 1 something was found, 2 bad input, 130 interrupted",
    )
    made.add_argument(
        "--parts",
        metavar="A,B",
        type=lambda text: command.choice(text, tuple(PARTS)),
        default=_BY_DEFAULT,
        help=f"default {','.join(_BY_DEFAULT)}",
    )
    for name, part in PARTS.items():
        unit = "minutes" if part.timed else f"{part.unit}s"
        text = f"{unit} of that part (default {part.default:g})"
        made.add_argument(f"--{name}", metavar="N", type=_amount, default=part.default, help=text)
    made.add_argument("--seed", metavar="S", type=_seed, default=0, help="of all cases (default 0)")
    made.add_argument(
        "--only", metavar="PART:N", type=_case, help="repeat that case and write nothing"
    )
    made.add_argument("--fresh", action="store_true", help="begin anew")
    processes = {"metavar": "N", "type": count, "default": os.cpu_count()}
    made.add_argument("--processes", help="that compile (default: one a core)", **processes)
    made.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=provenance.ROOT / "build" / "campaign" if SIMULATED else provenance.RESULTS,
        help="folder of the results (default experiments/results; on the simulator build/campaign)",
    )
    return made


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not SIMULATED and not cuda.is_available():
        parser.error("no GPU was found; NUMBACAPS_TARGET=sim runs it in miniature")
    if options.only:
        return repeat(*options.only, options.seed)
    path = options.results / ("simulator" if SIMULATED else provenance.gpu_name()) / FILE
    try:
        with records.alone(path), _terminated_as_by_ctrl_c():
            return _run(Record(path, options.seed, options.fresh), path, options)
    except records.ForeignFile as foreign:
        parser.error(str(foreign))


def _run(record, path, options):
    """Run the chosen parts; the exit status."""
    runs = [Run(name, record, getattr(options, name), options.processes) for name in options.parts]
    try:
        for run in runs:
            if not run.check_all():
                break
    except KeyboardInterrupt:
        record.write()
        print(
            f"interrupted; {path} holds what was found, and the next call goes on", file=sys.stderr
        )
        return 130
    record.write()
    for name, part in record.content["parts"].items():
        print(f"{name}: {part['checked']} {PARTS[name].unit}s, {len(part['failed'])} failed")
        for failed in part["failed"]:
            again = f"--seed {options.seed} --only {name}:{failed['number']}"
            print(f"  python -m tests.record_campaign {again}: {failed['why'][:200]}")
    print(path)
    return 0 if not any(part["failed"] for part in record.content["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
