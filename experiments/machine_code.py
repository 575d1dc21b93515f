"""Kernels as machine code alone, to be carried to the GPU's machine: the option ``--bare`` of what compiles ahead.

A kernel's file also holds the text that it was made of, which is most of its bytes; loading the kernel does not take it.
"""

import os
import pickle
from hashlib import sha256
from pathlib import Path

_HASHED = sha256().digest_size  # a file begins with it (numbacaps/device/kernel_files.py)


def add_option(parser):
    """The option ``--bare``."""
    parser.add_argument(
        "--bare",
        metavar="DIR",
        type=Path,
        help="copy the kernels of NUMBA_CACHE_DIR there, as machine code alone: a fifteenth of the bytes",
    )


def check(parser, target):
    """End with an error where ``--bare`` cannot be done; before anything is compiled."""
    source = os.environ.get("NUMBA_CACHE_DIR")
    if target is None:
        return
    if not source:
        parser.error("--bare copies what NUMBA_CACHE_DIR names, which is not set")
    if target.exists() and not target.is_dir():
        parser.error(f"--bare got {str(target)!r}, which is no folder; it takes a folder")
    if target.resolve() == Path(source).resolve():
        parser.error(
            f"--bare got {str(target)!r}, which is NUMBA_CACHE_DIR; it takes another folder"
        )


def copy(target):
    """Copy the kernels of ``NUMBA_CACHE_DIR``; a GPU is pretended (:func:`experiments.ahead.pretend`).

    Forms, of which kernels are made, and files that are damaged are left out.

    Parameters
    ----------
    target : path
        ``NUMBA_CACHE_DIR`` of the other machine.

    Returns
    -------
    int
        How many.
    """
    from numba.cuda.serialize import dumps

    source, target = (Path(of) / "numbacaps" for of in (os.environ["NUMBA_CACHE_DIR"], target))
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(source.glob("*.nbc")):
        content = path.read_bytes()
        hashed, packed = content[:_HASHED], content[_HASHED:]
        if sha256(packed).digest() != hashed:
            continue
        key, kernel = pickle.loads(packed)
        library = kernel["codelibrary"]
        if not library._cubin_cache:
            continue
        library._llvm_strs, library._ptx_cache = [], {}
        packed = dumps((key, kernel))
        temporary = target / f"{path.stem}.{os.getpid()}.tmp"
        temporary.write_bytes(sha256(packed).digest() + packed)
        temporary.replace(target / path.name)
        count += 1
    return count
