"""``python -m numbacaps.warmup [PRESET ...]``: compile kernels ahead, and say how long it took.

Exit status: 0 done, 1 something could not be compiled, 2 bad input or no GPU, 130 after Ctrl-C; what was
compiled is kept.
"""

import argparse
import sys

from numbacaps.warmup import PRESETS, warmup


def _names(text):
    return tuple(name.strip() for name in text.split(","))


def _tell(done, of):
    print(f"\r{done} of {of}", end="" if done < of else "\n", file=sys.stderr, flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m numbacaps.warmup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("presets", metavar="PRESET", nargs="*", help=f"of {', '.join(PRESETS)} (default: all)")
    add("--dtypes", metavar="A,B", type=_names, default=("float32",), help="default: float32")
    add("--precisions", metavar="A,B", type=_names, help="default: all that the GPU has")
    add("--processes", metavar="N", type=int, help="default: one a core")
    options = parser.parse_args(arguments)
    how = {"dtypes": options.dtypes, "precisions": options.precisions}
    try:
        done = warmup(
            options.presets or tuple(PRESETS), processes=options.processes, progress=_tell, **how
        )
    except KeyboardInterrupt:
        return 130
    except (TypeError, ValueError, ImportError, RuntimeError) as refusal:
        parser.exit(2, f"warmup: {refusal}\n")
    for what, why in done.failed.items():
        print(f"not compiled: {what}: {why}", file=sys.stderr)
    print(f"{done.made} of {done.made + len(done.failed)} are ready, in {done.seconds:.1f} s")
    return 1 if done.failed else 0


if __name__ == "__main__":
    sys.exit(main())
