"""Optional packages: imported where they are used, and named with their extra where they lack."""

import importlib
from types import ModuleType


def require(package: str, extra: str, user: str) -> ModuleType:
    """Import an optional package.

    Parameters
    ----------
    package : str
        Name to import.
    extra : str
        The extra of setup.cfg that installs it.
    user : str
        What asks for it.

    Returns
    -------
    module

    Raises
    ------
    ImportError
        It is not installed, or does not load; the message names the extra.
    """
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as missing:  # OSError: a shared library that does not load
        raise ImportError(
            f"{user} takes the extra '{extra}' (pip install 'numbacaps[{extra}]'): {missing}"
        ) from missing
