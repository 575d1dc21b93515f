"""What the experiments whose CSV is a :class:`experiments.measuring.listing.Listing` have in common: options, the loop."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.measuring import command, provenance, records
from experiments.measuring.listing import Listing, of_machine
from experiments.measuring.refusal import Parser, Refusal


@dataclass(frozen=True)
class Listed:
    """An experiment with a short CSV, ``experiments/results/<gpu>/NAME.csv``.

    Attributes
    ----------
    name : str
        Of the CSV.
    keys, values : tuple of str
        As of :class:`experiments.measuring.listing.Listing`.
    module : str
        ``experiments.MODULE`` is the command; by default the name.
    beside : tuple of str
        Those keys whose rows are compared with each other: they fall to one shard, and so to one card.
    """

    name: str
    keys: tuple
    values: tuple
    module: str = ""
    beside: tuple = ()

    def parser(self, summary, choices):
        """The command line's parser.

        Parameters
        ----------
        summary : str
        choices : dict of str to (tuple of str, str)
            By an option's name what it takes, all by default, and what that is.

        Returns
        -------
        argparse.ArgumentParser
            More options may be added.
        """
        made = Parser(
            prog=f"python -m experiments.{self.module or self.name}",
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="exit status: 0 done, 2 bad input or no GPU, 130 after Ctrl-C, with every finished row in the file",
        )
        for name, (takes, words) in choices.items():
            made.add_argument(
                f"--{name}",
                metavar="A,B",
                type=lambda text, takes=takes: command.choice(text, takes),
                default=takes,
                help=f"{words}, of {', '.join(takes)} (default: all)",
            )
        made.add_argument("--fresh", action="store_true", help="measure again what was measured")
        made.add_argument(
            "--results",
            metavar="DIR",
            type=Path,
            default=provenance.RESULTS,
            help=f"folder of the results (default experiments/results); the CSV is DIR/<gpu>/{self.name}.csv",
        )
        command.add_sharing(made)
        return made

    def listing(self, folder, machine=None, fresh=False):
        """The CSV in a GPU's folder."""
        return Listing(Path(folder) / f"{self.name}.csv", self.keys, self.values, machine, fresh)

    def merge(self, table, part):
        """Take the rows of another such CSV, by their paths."""
        self.listing(table.parent).merge(self.listing(part.parent))

    def is_current(self, folder):
        """Whether a GPU's folder holds rows, and all of the package as it is now."""
        return self.listing(folder).is_current

    def main(self, parser, arguments, jobs, table):
        """From the command line to the CSV.

        Parameters
        ----------
        parser : argparse.ArgumentParser
        arguments : list of str or None
        jobs : callable
            ``jobs(options)``: a list of (keys, work). Rows that are measured together have their keys, tuples, in
            one list; ``work()`` measures them. A shard is chosen by the first key without :attr:`beside`. Where the
            options cannot be met it raises :class:`Refusal` or ImportError.
        table : callable
            ``table(rows)``: the lines that are printed of the rows that were asked for.

        Returns
        -------
        int
            0; 130 after Ctrl-C; of the GPUs' processes as :func:`experiments.measuring.launcher.launch`. Bad input exits
            with 2.
        """
        options = parser.parse_args(arguments)
        if options.gpus:
            module = self.module and f"experiments.{self.module}"
            return command.launched(self.name, parser, arguments, options, self.merge, module)
        command.refuse_without_gpu(self.module or self.name)
        folder = options.results / provenance.gpu_name()
        try:
            every = jobs(options)
            found = self.listing(folder, of_machine(), options.fresh)
            found.write()  # whether it can be, before anything is measured
            self._measure(found, options.shard.part(every, key=lambda job: self._shared(job[0][0])))
        except (ImportError, Refusal, records.ForeignFile) as refusal:
            parser.error(str(refusal))
        except KeyboardInterrupt:
            path = folder / f"{self.name}.csv"
            print(f"\ninterrupted; {path} holds every finished row", file=sys.stderr)
            return 130
        chosen = {tuple(map(str, key)) for keys, _ in every for key in keys}
        print(
            "\n".join(table([one for one in found.rows if records.key(one, self.keys) in chosen]))
        )
        print(f"{len(found.rows)} rows in {found.path}")
        return 0

    def _shared(self, key):
        """What a key has in common with those that are compared with it."""
        return tuple(cell for name, cell in zip(self.keys, key) if name not in self.beside)

    def _measure(self, found, jobs):
        """Measure those jobs of which the CSV lacks a row."""
        lacking = [(keys, work) for keys, work in jobs if not all(map(found.has, keys))]
        with tqdm(total=sum(len(keys) for keys, _ in lacking), unit="row") as bar:
            for keys, work in lacking:
                bar.set_description(" ".join(filter(None, map(str, keys[0]))))
                found.add(work())
                bar.update(len(keys))
