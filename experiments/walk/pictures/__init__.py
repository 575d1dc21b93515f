"""Pictures of a walk: a convolution beside a capsule convolution, the steps, the sample network.

===============  =============================================================
`canvas`         a page in inches, capsules as tiles
`view`           what is pointed at
`convolution`    Figures 1 and 2
`steps`          the digit, steps 1 to 5 of the forward pass, the gradients
`sample`         the sample network, its bytes and recorded times
===============  =============================================================
"""

import os
import tempfile

from experiments.walk.pictures import steps
from experiments.walk.pictures.convolution import convolution
from experiments.walk.pictures.sample import sample_network
from experiments.walk.pictures.view import View

DPI = 110


def draw_all(trace, folder, progress=lambda doing: None):
    """Draw all pictures.

    Parameters
    ----------
    trace : experiments.walk.records.Trace
    folder : Path
        Exists already. Each picture is written under another name first and then renamed.
    progress : callable
        ``progress(text)`` is told what is being drawn.

    Returns
    -------
    list of Path
    """
    view = View.of(trace)
    paths = []
    for number, (name, picture) in enumerate(_PICTURES.items(), start=1):
        path = folder / f"{number:02}-{name}.png"
        progress(f"picture {path.name}")
        _save(picture(view).figure, path)
        paths.append(path)
    return paths


def _save(figure, path):
    """Write a picture whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            figure.savefig(stream, format="png", dpi=DPI)
        os.chmod(temporary, 0o644)  # mkstemp lets nobody but the owner read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_PICTURES = {
    "convolution": convolution,
    "digit": steps.digit,
    "columns": steps.columns,
    "input-extend": steps.input_extend,
    "kernel-extend": steps.kernel_extend,
    "products": steps.products,
    "output": steps.output,
    "gradients": steps.gradients,
    "network": sample_network,
}
