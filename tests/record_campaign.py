"""The campaign: hours of drawn cases on this machine's GPU, gone on with until there are enough.

``python -m tests.record_campaign`` (``make campaign``) writes ``experiments/results/<gpu>/gpu_campaign.json`` every
few seconds. Ctrl-C, SIGTERM or worse loses no more than that; the next call goes on from there, and begins anew where
the sources, the campaign or the seed are others. Whatever a case finds is written with its number, and
``--only PART:NUMBER`` repeats it. On the simulator (NUMBACAPS_TARGET=sim) all of it runs in miniature.

parts:
"""

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from experiments.ahead import count, pretend, side_by_side
from experiments.measuring import cards, command, launcher, provenance, records, shard
from experiments.measuring.refusal import Parser
from experiments.measuring.shard import WHOLE, Shard
from numbacaps.device.target import FELL_BACK, SIMULATED, cuda
from tests.support.campaign import PARTS
from tests.support.ended import terminated_as_by_ctrl_c

FILE = "gpu_campaign.json"
_BY_DEFAULT = tuple(name for name in PARTS if name != "sanitizer")
_WRITTEN_EVERY = 2.0  # seconds
_AHEAD = 340  # pieces of cases that are compiled side by side before the cases are checked
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
    share : experiments.measuring.shard.Shard
        Of the cases.

    Raises
    ------
    experiments.measuring.records.ForeignFile
        The file is of another share.
    """

    def __init__(self, path, seed, fresh=False, share=WHOLE):
        self._path, self._written = path, time.monotonic()
        self.content = _machine() | {"campaign": provenance.sources_name(_OWN), "seed": seed}
        self.content |= {"seconds": 0, "parts": {}}
        before = records.read_record(path) if path.exists() and not fresh else {}
        same = "gpu", "source_sha256", "campaign", "seed"
        if before and all(before.get(key) == self.content[key] for key in same):
            self.content = before
        has = self.content.setdefault("shard", str(share))
        if has != str(share):
            raise records.ForeignFile(
                f"{path} holds shard {has}, not {share}; --fresh begins anew, --results takes another folder"
            )

    def part(self, name, first=0, most=math.inf):
        """What was found in a part so far: in its cases from ``first`` to before ``most``. Of other cases it is left out."""
        parts = self.content["parts"]
        nothing = {"checked": 0, "next": first, "seconds": 0.0, "failed": [], "of_each_kind": {}}
        found = parts.get(name)
        if found is None or found.get("first", 0) != first or found["next"] > most:
            parts[name] = {"first": first} | nothing
        return parts[name]

    def write(self):
        """Write the file, whole or not at all."""
        parts = self.content["parts"].values()
        self.content["seconds"] = round(sum(part["seconds"] for part in parts))
        records.write_text(self._path, json.dumps(self.content, indent=2) + "\n")
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
        That compile side by side; a share's cases are compiled when they are checked.
    share : experiments.measuring.shard.Shard
        Of the amount.
    """

    name: str
    record: Record
    amount: float
    processes: int
    share: Shard = WHOLE
    _compiled: int = field(default=0, init=False)

    def __post_init__(self):
        self.part = PARTS[self.name]
        self._first, self._last = self.part.numbers(self.amount, self.share)
        # Cases behind a share's last one are another share's.
        is_bounded = self.share != WHOLE and not self.part.timed
        most = self._last if is_bounded else math.inf
        self.found = self.record.part(self.name, self._first, most)
        self.found["wanted"] = self.amount / self.share.of
        self._seed = self.record.content["seed"]
        self._compiled = self.found["next"]

    @property
    def is_done(self):
        """Whether there are enough."""
        if self.part.timed:
            return self.found["seconds"] >= 60 * self.found["wanted"]
        return self.found["next"] >= self._last

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
        return round(60 * self.found["wanted"]) if self.part.timed else self._last - self._first

    @property
    def _reached(self):
        return round(self.found["seconds"] if self.part.timed else self.found["next"] - self._first)

    def _compile(self):
        """Compile the next cases side by side, where a GPU is to check them."""
        first = self.found["next"]
        ahead = self.part.compile is not None and self.share == WHOLE and not SIMULATED
        if not ahead or first < self._compiled:
            return
        pieces = self.part.pieces
        self._compiled = min(first + max(1, _AHEAD // pieces), int(self.amount))
        device = cuda.get_current_device()
        about = self.name, self._seed, first * pieces, device.compute_capability
        numbers = range(first, self._compiled)
        names = [f"{self.name}:{number}" for number in numbers for _ in range(pieces)]
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
        self.found["seconds"] = round(self.found["seconds"] + time.monotonic() - begun, 6)
        if why is not None:
            self.found["failed"].append({"number": number, "why": why})
            tqdm.write(f"{self.name}:{number}: {why}", file=sys.stderr)
            self.record.write()
        return sound


def _is_a_refusal(error):
    """Whether an error leaves the GPU as it was: Python's own, not the driver's."""
    return isinstance(error, (TypeError, ValueError, ImportError, MemoryError, OSError))


_work = []  # of a process that compiles: (part, seed, first piece)


def _begin(name, seed, first, capability, multiprocessors):
    """Make a process ready to compile the pieces of cases from a number on."""
    pretend(tuple(capability), multiprocessors)
    _work[:] = [(PARTS[name], seed, first)]


def _compile_one(at):
    part, seed, first = _work[0]
    part.compile(seed, first + at)


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
    made.add_argument(
        "--side-by-side",
        metavar="N",
        type=count,
        help="N processes share the cases, over all GPUs in turn; what must be alone takes the last GPU, or comes last",
    )
    shard.add_to(made)
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
    if FELL_BACK or not (SIMULATED or cuda.is_available()):
        parser.error("no GPU was found; NUMBACAPS_TARGET=sim runs it in miniature")
    if options.side_by_side and options.shard != WHOLE:
        parser.error(
            "--shard and --side-by-side were both given; processes side by side take their own shards"
        )
    if options.only:
        return repeat(*options.only, options.seed)
    path = options.results / ("simulator" if SIMULATED else provenance.gpu_name()) / FILE
    run = _run_side_by_side if options.side_by_side else _run
    try:
        with records.alone(path), terminated_as_by_ctrl_c():
            return run(Record(path, options.seed, options.fresh, options.shard), path, options)
    except records.ForeignFile as foreign:
        parser.error(str(foreign))


def _run(record, path, options):
    """Run the chosen parts; the exit status."""
    runs = [
        Run(name, record, getattr(options, name), options.processes, options.shard)
        for name in options.parts
    ]
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
    return _tell(record, path, options)


def _tell(record, path, options):
    """Write the record and say what it holds; the exit status."""
    record.write()
    for name, part in record.content["parts"].items():
        print(f"{name}: {part['checked']} {PARTS[name].unit}s, {len(part['failed'])} failed")
        for failed in part["failed"]:
            again = f"--seed {options.seed} --only {name}:{failed['number']}"
            print(f"  python -m tests.record_campaign {again}: {failed['why'][:200]}")
    print(path)
    return 0 if not any(part["failed"] for part in record.content["parts"].values()) else 1


# ---- processes side by side


def _run_side_by_side(record, path, options):
    """Run the chosen parts in several processes; the exit status.

    Each process has a record of its own, in ``shards/campaign``, with which the next call goes on. Their sums are the
    record's parts.
    """
    gpus, folder = _gpus(), options.results / "shards" / "campaign"
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    alone = [name for name in options.parts if PARTS[name].alone]
    apart = alone and len(gpus) > 1  # on a GPU of their own, beside the others
    shares = _shares(options, gpus[:-1] if apart else gpus)
    last = [(gpus[-1], ",".join(alone), WHOLE)] if alone else []
    statuses, interrupted = [], False
    for together in filter(None, ([*shares, *last],) if apart else (shares, last)):
        commands = [_command(options, parts, share, folder) for _, parts, share in together]
        named = [f"{parts} {share}" for _, parts, share in together]
        workers, interrupted = launcher.run(
            "campaign", [gpu for gpu, *_ in together], named, commands
        )
        statuses += [worker.process.returncode for worker in workers]
        for words in filter(None, (_died(worker) for worker in workers)):
            print(words, file=sys.stderr)
        if interrupted:
            break
    folders = [_folder(folder, parts, share) for _, parts, share in [*shares, *last]]
    for name in options.parts:
        record.content["parts"][name] = _added_up(name, folders, record.content, options)
    status = _tell(record, path, options)
    if interrupted:
        return 130
    return status if set(statuses) <= {0, 1} else 1


def _gpus():
    return ["0"] if SIMULATED else cards.visible()


def _shares(options, gpus):
    """(GPU, parts, share) of each process but the one that must be alone."""
    shared = ",".join(name for name in options.parts if PARTS[name].shared)
    whole = [name for name in options.parts if not (PARTS[name].shared or PARTS[name].alone)]
    found = [(name, WHOLE) for name in whole]
    found += [(shared, part) for part in WHOLE.split(options.side_by_side) if shared]
    return [(gpu, *process) for gpu, process in zip(itertools.cycle(gpus), found)]


def _folder(folder, parts, share):
    return folder / f"{parts.replace(',', '-')}-{share.number}-of-{share.of}"


def _command(options, parts, share, folder):
    """What a process runs."""
    amounts = [
        word for name in parts.split(",") for word in (f"--{name}", str(getattr(options, name)))
    ]
    where = _folder(folder, parts, share).resolve()
    return [
        *("tests.record_campaign", "--parts", parts, *amounts, "--seed", str(options.seed)),
        *("--shard", str(share), "--results", str(where)),
    ]


def _died(worker):
    """How a process ended that neither found anything wrong nor was done."""
    return worker.epitaph() if worker.process.returncode not in (0, 1) else None


def _added_up(name, folders, content, options):
    """What the processes of some folders have found in a part, of the same sources, campaign and seed."""
    same = "gpu", "source_sha256", "campaign", "seed"
    total = {"checked": 0, "next": 0, "seconds": 0.0, "failed": [], "of_each_kind": {}}
    total |= {"wanted": getattr(options, name), "processes": 0}
    for path in sorted(path for folder in folders for path in folder.glob(f"*/{FILE}")):
        own = json.loads(path.read_text())
        if name not in own["parts"] or any(own[key] != content[key] for key in same):
            continue
        part = own["parts"][name]
        total["processes"] += 1
        total["checked"] += part["checked"]
        total["seconds"] = round(total["seconds"] + part["seconds"], 2)
        total["failed"] += part["failed"]
        for kind, times in part["of_each_kind"].items():
            total["of_each_kind"][kind] = total["of_each_kind"].get(kind, 0) + times
    total["failed"].sort(key=lambda failed: failed["number"])
    total["next"] = total["checked"]
    return total


if __name__ == "__main__":
    sys.exit(main())
