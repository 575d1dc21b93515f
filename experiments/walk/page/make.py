"""From a walk to its page: the runs beside it, then the file."""

from experiments.walk.page.contents import contents
from experiments.walk.page.sources import require_pygments
from experiments.walk.page.variants import variants
from experiments.walk.page.write import html, write
from experiments.walk.trace import walk
from experiments.walk.watch import watching

_TITLE = "One capsule convolution, element by element"


def check(accepted):
    """Refuse what cannot become a page, before any work is done.

    Parameters
    ----------
    accepted : experiments.walk.records.Plan

    Raises
    ------
    Refusal
        The run is too large for the page.
    ImportError
        Pygments is absent; the message names it and its extra.
    """
    require_pygments()
    variants(accepted)


def make(accepted, trace, path, progress):
    """Run what the sliders choose from, and write the page.

    Parameters
    ----------
    accepted : experiments.walk.records.Plan
    trace : experiments.walk.records.Trace
        What came of it, watched by :func:`experiments.walk.watch.watching`.
    path : Path
    progress : callable
        ``progress(text)`` is told what is being done.

    Returns
    -------
    int
        How many runs the page holds.

    Raises
    ------
    ArithmeticError
        A run beside the first failed its checks; nothing is written.
    Refusal
        The page is too large, or the path cannot be written.
    """
    found = variants(accepted)
    runs = []
    for number, variant in enumerate(found, start=1):
        progress(f"page: run {number} of {len(found)}")
        run = trace if variant.plan is accepted else walk(variant.plan, watch=watching)
        if run.failed:
            raise ArithmeticError(
                f"{run.failed} checks failed with {variant.name}; no page written"
            )
        runs.append((variant, run))
    write(html(contents(runs), _TITLE), path)
    return len(runs)
