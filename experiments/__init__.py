"""Scripts that use the toolkit: run each as ``python -m experiments.NAME``.

Imports point one way: experiments use numbacaps and reference, which know nothing of experiments.
"""

from importlib.util import find_spec

_EXTRA = "matplotlib", "PIL", "tqdm"  # what the extra experiments brings
_absent = [name for name in _EXTRA if find_spec(name) is None]
if _absent:
    raise ImportError(
        "the experiments take the extra 'experiments' (pip install '.[experiments]'): "
        f"there is no {', '.join(_absent)}"
    )
