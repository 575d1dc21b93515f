"""Run the gpu tier on this machine's GPU, then one case of every kernel under compute-sanitizer.

``python -m tests.record_gpu`` (``make gpu``) writes ``experiments/results/<gpu>/gpu_tests.json``;
exit status 1 if anything failed, was skipped or was not reached, 2 if there is no GPU. What passed is noted beside
that file until everything has: interrupted, by Ctrl-C or a time limit's SIGTERM, or failed at something that the
sources are not the cause of, it goes on where it was. The file then says how many tests were not reached. Seconds are
of the last call.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

from experiments.measuring import cards, provenance
from experiments.measuring.refusal import Parser
from numbacaps.device.target import SIMULATED
from tests.support.ended import terminated_as_by_ctrl_c

# Compiling takes most of the time, so processes share it (pytest-benchmark, if installed, minds).
_PYTEST = [sys.executable, "-m", "pytest", "--tier", "gpu", "-p", "no:cacheprovider"]
_SIDE_BY_SIDE = [
    "-v",
    "-p",
    "no:benchmark",
    "-n",
    str(max(2, os.cpu_count() - 2)),
    "--dist",
    "worksteal",
    "--durations",
    "20",
]
_MARKED = ["--collect-only", "-q", "-m", "sanitize", "tests"]
_SUMMARY = r"(?:ERROR|RACECHECK) SUMMARY: .*"
# A line that names the kernel of an error, the kind of an error in a copy by the host, or a kernel's part in a race.
_WHERE = (
    r"^=========\s+(?:at (?:0x[0-9a-f]+ in )?(\S.*?)(?:\+0x[0-9a-f]+)?|(Host API .+?) at .*"
    r"|(?:\w+: Race reported between|and) \w+ access at (\S.*?)\+0x[0-9a-f]+.*)$"
)
_PRINTED = 2000  # errors at most, of each process of a tool; compute-sanitizer's default is 100
_NONE_LEFT = 5  # pytest's exit status where every test was left out
_PATIENCE = 5  # seconds, for processes that were told to end
_CORES = 16  # of the host, for each process that shares a tool's cases


def _has_either(case):
    return "primes" in case or "strided" in case


def _has_both(case):
    return "primes" in case and "float32" in case


# What a tool takes of the tests that are marked; of one that has no such case it takes the first. racecheck is several times
# slower, and no type of the elements changes who writes where.
TOOLS = {"memcheck": _has_either, "racecheck": _has_both}
# Those that the campaign runs beside them: barriers, and memory that is read before it is written.
MORE_TOOLS = {"synccheck": _has_both, "initcheck": _has_either}
_OF_TOOL = {"initcheck": ["-p", "tests.support.written_by_stores"]}  # pytest's options

_running = []  # processes whose output is read


def counts(output):
    """What pytest's output says of tests: ``passed``, ``failed`` (errors too), ``skipped`` and ``not_reached``.

    It is of the closing line. Where pytest was ended before that, it is of the lines of processes side by side, each
    of which tells a test. Not reached is what is left of the tests that these processes share: also where a process
    died and pytest gave up, with a closing line like any other.
    """
    closing = re.findall(r"^.*\d+ (?:passed|failed|error).* in [\d.]+s.*$", output, re.MULTILINE)
    found = dict.fromkeys(("passed", "failed", "skipped", "not_reached"), 0)
    if closing:
        numbers = re.findall(r"(\d+) (passed|failed|error|skipped)", closing[-1])
    else:
        words = re.findall(r"^\[gw\d+\] \[ *\d+%\] ([A-Z]+) ", output, re.MULTILINE)
        numbers = [(1, word.lower()) for word in words]
    for number, word in numbers:
        found["failed" if word == "error" else word] += int(number)
    shared = sum(map(int, re.findall(r"workers? \[(\d+) items?\]", output)))
    found["not_reached"] = max(0, shared - sum(found.values()))
    return found


def _run(command, number=0):
    """(exit status, output, seconds) of a command whose output is shown as it comes; its number chooses the GPU."""
    begin, how = time.monotonic(), {"env": os.environ | cards.turned(number), "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    lines = []
    with subprocess.Popen(command, cwd=provenance.ROOT, **how) as process:
        _running.append(process)
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            status = process.wait()
        except KeyboardInterrupt:
            # The process, in a session of its own, has heard nothing.
            os.killpg(process.pid, signal.SIGTERM)
            raise
        finally:
            _running.remove(process)
    return status, "".join(lines), round(time.monotonic() - begin)


def _end_all(results):
    """End all processes and what they have begun: a process of pytest's, too, holds on to the output that is waited for."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        for process in list(_running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, end)
        if not wait(results, _PATIENCE).not_done:
            break


def chosen(cases, fits):
    """Of the cases those that fit, and of a test none of whose cases does the first."""
    tests = {}
    for case in cases:
        tests.setdefault(case.partition("[")[0], []).append(case)
    return [case for some in tests.values() for case in list(filter(fits, some)) or some[:1]]


def marked():
    """The cases of all tests that are marked for compute-sanitizer, as pytest names them."""
    _, output, _ = _run([*_PYTEST, *_MARKED])
    return [line for line in output.splitlines() if "::" in line]


def _noted(tool, noted):
    """What compute-sanitizer says of one case of every kernel; a file holds it once it is nothing bad."""
    if noted.exists():
        return json.loads(noted.read_text())
    found = sanitized(tool)
    if found["status"] == 0:
        provenance.write_text(noted, json.dumps(found))
    return found


def sanitized(tool):
    """What compute-sanitizer says by one of ``TOOLS`` or ``MORE_TOOLS``.

    Returns
    -------
    dict
        ``passed``, ``failed``, ``skipped``, ``status``, ``summary`` and ``seconds``. ``status`` 0 is clean. Otherwise
        ``where`` has the :func:`places` of the errors.
    """
    found = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if found is None:
        return {"passed": 0, "failed": 1, "skipped": 0, "status": 1, "summary": "not found"}
    # Libraries ask the driver for functions it may lack; that is no error of a kernel's.
    options = ["--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
    options += ["--print-limit", str(_PRINTED)]
    cases = chosen(marked(), (TOOLS | MORE_TOOLS)[tool])
    count = max(1, min(os.cpu_count() // _CORES, len(cases)))
    with ThreadPoolExecutor(count) as side_by_side:
        shares = (cases[i::count] for i in range(count))
        pytest = [*_PYTEST, *_OF_TOOL.get(tool, ()), "-q"]
        runs = [[found, *options, *pytest, *share] for share in shares]
        results = [side_by_side.submit(_run, run, i) for i, run in enumerate(runs)]
        try:
            return together([result.result() for result in results])
        except KeyboardInterrupt:
            _end_all(results)
            raise


def together(runs):
    """What processes say of a tool's cases that they have shared: the worst status, and what its process says last.

    Parameters
    ----------
    runs : list of (exit status, output, seconds)
    """
    every = [counts(output) for _, output, _ in runs]
    status, output, _ = max(runs, key=lambda run: abs(run[0]))
    summary = summary[-1] if (summary := re.findall(_SUMMARY, output)) else None
    found = {what: sum(one[what] for one in every) for what in every[0]}
    seconds = max(seconds for *_, seconds in runs)
    if status:
        found["where"] = places(output for _, output, _ in runs)
    return found | {"status": status, "summary": summary, "seconds": seconds}


def places(outputs):
    """How many errors a tool printed of each kernel, and of each kind in copies by the host; the largest number first.

    Of a race each access counts.
    """
    found = Counter()
    for output in outputs:
        found.update("".join(names) for names in re.findall(_WHERE, output, re.MULTILINE))
    return dict(found.most_common(20))


def main(arguments=None):
    Parser(prog="python -m tests.record_gpu", description=__doc__).parse_args(arguments)
    if SIMULATED:
        print("gpu: no GPU was found; this tier takes an NVIDIA GPU and its driver")
        return 2
    folder, source = provenance.RESULTS / provenance.gpu_name(), provenance.source_sha256()
    folder.mkdir(parents=True, exist_ok=True)
    noted = {name: folder / f"gpu_tests-{source[:12]}.{name}" for name in ("passed", *TOOLS)}
    # None of them asks how long anything took.
    with terminated_as_by_ctrl_c(), ThreadPoolExecutor() as side_by_side:
        tests = [*_PYTEST, *_SIDE_BY_SIDE, "--passed", str(noted["passed"]), "tests"]
        run = side_by_side.submit(_run, tests)
        sanitizers = {tool: side_by_side.submit(_noted, tool, noted[tool]) for tool in TOOLS}
        try:
            wait([run, *sanitizers.values()])
        except KeyboardInterrupt:  # each ends with what it has found
            _end_all((run, *sanitizers.values()))
        status, output, seconds = run.result()
        sanitizer = {tool: result.result() for tool, result in sanitizers.items()}
    passed = len(set(noted["passed"].read_text().splitlines())) if noted["passed"].exists() else 0
    record = provenance.of_record() | counts(output) | {"passed": passed, "seconds": seconds}
    record["sanitizer"] = sanitizer
    provenance.write_text(folder / "gpu_tests.json", json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    bad = [record, *record["sanitizer"].values()]
    clean = status in (0, _NONE_LEFT) and not any(
        part.get(what) for part in bad for what in ("failed", "skipped", "not_reached")
    )
    clean = clean and all(part["status"] == 0 for part in record["sanitizer"].values())
    clean = clean and all(part["passed"] for part in bad)
    print("gpu: " + ", ".join(f"{record[what]} {what.replace('_', ' ')}" for what in counts("")))
    if clean:
        for path in noted.values():
            path.unlink()
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
