"""Run the gpu tier on this machine's GPU, then one case of every kernel under compute-sanitizer.

``python -m tests.record_gpu`` (``make gpu``) writes ``experiments/results/<gpu>/gpu_tests.json``;
exit status 1 if anything failed or was skipped.
"""

import datetime
import json
import re
import shutil
import subprocess
import sys

from experiments import provenance

# Compiling takes most of the time, so processes share it (pytest-benchmark, if installed, minds).
_PYTEST = [sys.executable, "-m", "pytest", "--tier", "gpu", "-p", "no:cacheprovider"]
_SIDE_BY_SIDE = ["-p", "no:benchmark", "-n", "6", "--dist", "loadgroup"]
_SANITIZED = ["-m", "sanitize", "-k", "primes", "-q"]
_TOOLS = ("memcheck", "racecheck")


def _counts(output):
    """passed, failed (errors too) and skipped of pytest's closing line."""
    closing = [
        line for line in output.splitlines() if re.search(r"\d+ (passed|failed|error)", line)
    ]
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for number, word in re.findall(
        r"(\d+) (passed|failed|error|skipped)", closing[-1] if closing else ""
    ):
        counts["failed" if word == "error" else word] += int(number)
    return counts


def _run(command):
    """(exit status, output) of a command whose output is shown as it comes."""
    process = subprocess.Popen(
        command, cwd=provenance.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    return process.wait(), "".join(lines)


def _sanitize(tool):
    """What compute-sanitizer says of one case of every kernel."""
    found = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if found is None:
        return {"failed": "compute-sanitizer was not found"}
    status, output = _run(
        [found, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
        + _PYTEST
        + _SANITIZED
    )
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", output)
    return _counts(output) | {"status": status, "summary": summary[-1] if summary else None}


def main():
    status, output = _run([*_PYTEST, *_SIDE_BY_SIDE, "tests"])
    record = {
        "gpu": provenance.gpu_name(),
        "driver": provenance.driver(),
        "versions": provenance.versions(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        **_counts(output),
        "sanitizer": {tool: _sanitize(tool) for tool in _TOOLS},
        "source_sha256": provenance.source_sha256(),
    }
    path = provenance.RESULTS / record["gpu"] / "gpu_tests.json"
    provenance.write_text(path, json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    bad = [record, *record["sanitizer"].values()]
    clean = status == 0 and not any(part["failed"] or part.get("skipped") for part in bad)
    clean = clean and all(part["status"] == 0 for part in record["sanitizer"].values())
    print(f"gpu: {record['passed']} passed, {record['failed']} failed, {record['skipped']} skipped")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
