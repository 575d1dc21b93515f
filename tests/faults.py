"""Seed faults into a copy of the repository, one at a time, and see that the tests catch each.

``python -m tests.faults`` prints a row a fault: what it is, where, and the first test that failed. Exit status 1 if
one was not caught, 130 after Ctrl-C. ``--only WORD`` takes those whose name has the word. The list is data: a fault
whose text is not in its file exactly once is an error, so that none goes stale.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.seeded import FAULTS

_ROOT = Path(__file__).parents[1]
_COPIED = "numbacaps", "reference", "experiments", "tests", "setup.cfg", "pyproject.toml"
_FAILED = 1  # pytest's exit status where a test failed; 2 and above: nothing was run


def seed(fault, root):
    """Write a fault into the file of a copy.

    Raises
    ------
    ValueError
        The text is not there, or more than once.
    """
    path = Path(root) / fault.path
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise ValueError(f"{fault.path} holds {fault.right!r} {text.count(fault.right)} times")
    path.write_text(text.replace(fault.right, fault.wrong))


def caught_by(fault, root):
    """The first test that fails in a copy with the fault; None if all pass.

    Raises
    ------
    RuntimeError
        No test was run.
    """
    path = Path(root) / fault.path
    right = path.read_text()
    seed(fault, root)
    words = fault.tests.split()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [*command, "--tier", fault.tier, *words],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(right)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if run.returncode not in (0, _FAILED) or (run.returncode == _FAILED) != bool(failed):
        raise RuntimeError(f"{fault.what}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed[0] if failed else None


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="WORD", default="", help="faults whose name has it")
    word = parser.parse_args(arguments).only
    wanted = [fault for fault in FAULTS if word in fault.what]
    if not wanted:
        parser.error(f"--only got {word!r}, which no fault's name has")
    missed = 0
    try:
        with tempfile.TemporaryDirectory() as root:
            for name in _COPIED:
                source, target = _ROOT / name, Path(root) / name
                if source.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "figures", ".*")
                    shutil.copytree(source, target, ignore=ignored)
                else:
                    shutil.copy(source, target)
            print("| fault | in | caught by |\n| --- | --- | --- |", flush=True)
            for fault in wanted:
                found = caught_by(fault, root)
                missed += found is None
                test = f"`{found.removeprefix('tests/')}`" if found else "**nothing**"
                print(f"| {fault.what} | `{fault.path}` | {test} |", flush=True)
    except KeyboardInterrupt:
        return 130
    print(f"\n{len(wanted) - missed} of {len(wanted)} faults were caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
