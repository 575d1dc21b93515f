"""A part of an experiment's rows, by a hash of each row's key: which part a row falls to does not hang on the others."""

import argparse
import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """Part ``number``, counted from 1, of ``of`` parts.

    Attributes
    ----------
    number, of : int
    """

    number: int = 1
    of: int = 1

    def __str__(self):
        return f"{self.number}/{self.of}"

    def has(self, key):
        """Whether the rows of a key, a tuple, fall to this part."""
        digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1

    def part(self, items, key):
        """Those of some items, in their order, whose ``key(item)`` falls to this part."""
        return [item for item in items if self.has(key(item))]

    def split(self, count):
        """The parts of this part, ``count`` of them."""
        return [Shard(self.number + self.of * i, self.of * count) for i in range(count)]


WHOLE = Shard()


def shard(text):
    """The part that ``2/3`` names, for a command line."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a part and their number, as 1/2")
    return Shard(number, of)


def add_to(parser):
    """Add ``--shard`` to a command line's parser."""
    parser.add_argument(
        "--shard",
        metavar="I/N",
        type=shard,
        default=WHOLE,
        help="only the rows that fall to part I of N, by a hash of their keys (default 1/1)",
    )
