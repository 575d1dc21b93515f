"""What a recorded result was measured on: GPU, driver, versions, and the source it is a result of."""

import datetime
import hashlib
import io
import platform
import re
import tokenize
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
_METHOD = (
    *("measuring/measure", "measuring/gpu_time", "measuring/ceilings", "measuring/device_memory"),
    *("measuring/problem", "measuring/contestants", "measuring/opponents"),
    *(
        "measuring/networks",
        "measuring/quick",
        "stages",
        "memory",
        "table1",
        "training/torch_network",
    ),
)
_PACKAGES = (
    "numba",
    "numba-cuda",
    "cuda-core",
    "numpy",
    "scipy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "torch",
)


@cache
def source_sha256():
    """sha256 over ``numbacaps/**/*.py`` in path order: path, NUL, bytes, NUL for each file.

    As they were when first asked for: that is what a process has imported, whatever is edited since.
    """
    return _sha256((ROOT / "numbacaps").rglob("*.py"))


@cache
def method_sha256():
    """The same over what measures and checks: the oracle, the opponents, the clock, the experiments."""
    experiments = (ROOT / "experiments" / f"{name}.py" for name in _METHOD)
    return _sha256([*experiments, *(ROOT / "reference").glob("*.py")])


def sources_name(paths):
    """A short name for the code of some files of Python, which changes when that of one of them does.

    Comments and blank lines are no code: who mends a comment makes no result older.
    """
    return _sha256(paths, _code_of)[:16]


def is_current(record):
    """Whether a record, such as that of the gpu tier, is of the package as it is now."""
    return record.get("source_sha256") == source_sha256()


def _sha256(paths, contents=Path.read_bytes):
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + contents(path) + b"\0")
    return digest.hexdigest()


def _code_of(path):
    return _code(path.read_text("utf-8"))


@cache
def _code(text):
    """The lines of a text without comments, as bytes."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


def measured(results=RESULTS):
    """Names of the folders that hold CSVs, in their order."""
    return sorted({path.parent.name for path in Path(results).glob("*/*.csv")})


def gpu_name():
    """Name of the current GPU, fit for a folder's name."""
    from numbacaps.device.target import cuda

    name = cuda.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else name
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def driver():
    """Version of the NVIDIA driver, and the CUDA version it offers."""
    from cuda.bindings import driver as cuda_driver

    _, number = cuda_driver.cuDriverGetVersion()
    cuda_version = f"CUDA {number // 1000}.{number % 1000 // 10}"
    try:
        module = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return cuda_version
    return re.search(r"\d+\.\d+(\.\d+)?", module).group() + ", " + cuda_version


def versions():
    """Versions of Python and of the packages that matter, by name; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def of_record():
    """What a record begins with: the machine, the day and the sources, as they are now."""
    return {
        "gpu": gpu_name(),
        "driver": driver(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "source_sha256": source_sha256(),
    }


def written_whole(path):
    """:func:`numbacaps.files.written_whole`; the package, which imports numba, is imported when something is written."""
    from numbacaps import files

    return files.written_whole(path)


def write_text(path, text):
    """Write a file whole or not at all, as UTF-8 (:func:`numbacaps.files.written_whole`)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(text.encode())
