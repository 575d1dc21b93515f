"""Kernels that are compiled once and kept on disk, each specialisation in files of its own.

Numba keeps a list of all specialisations of a function in one file. Processes that add to it at the same
time undo each other's entries, or give two kernels one place; so each has a file of its own
(:mod:`numbacaps.device.kernel_files`). Numba also notices changes only of the file
that the function stands in, and a kernel is made of what others hold too.

It knows a kernel by where its file lies, when that was written, and how the device functions that it uses
are pickled, which is another way once the process has compiled one. Here sources and values say all: those of
the files that the kernel and its device functions stand in, and of all that these import of the package. So who
changes one kernel compiles the others no more, and what one checkout compiled another finds, and another machine
whose GPU has the same compute capability, with the same versions of Python, Numba and NVRTC. All that leans on
Numba's own caching is in this file.

Of kernels that differ in specialization constants alone (:mod:`numbacaps.device.specialization`) the form is kept, too:
who asks for one whose form is there waits for NVVM and the assembler, and not for Numba.

Who measures asks which kernels were launched (:func:`launched`), and of which files they are made
(:func:`sources_of`), so that a time can be known to be older than its kernels.
"""

import os
import re
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace

from numbacaps.device.closures import parts
from numbacaps.device.device_forms import type_forms_once
from numbacaps.device.kernel_files import KernelFiles, warn_unkept
from numbacaps.device.link_time import optimise_once
from numbacaps.device.linking import link, link_in_blocks, when_linked
from numbacaps.device.specialization import Constant, renumbered
from numbacaps.device.target import SIMULATED

_IMPORTS = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|.*)", re.M)
_ROOT, _PACKAGE = Path(__file__).parents[2], __name__.partition(".")[0]
watching = []  # sets that get the kernels that are launched
if not SIMULATED:
    optimise_once()
    link_in_blocks()
    type_forms_once()


def kept_on_disk(kernel):
    """The kernel, of ``cuda.jit`` and inside a factory, whose specialisations other processes find on disk.

    Where no folder can be written, they do not: ``NUMBA_CACHE_DIR`` names one.
    """
    if not SIMULATED:
        function = kernel.py_func
        bounds = kernel.targetoptions.get("launch_bounds") or ()
        form, constants = _form(function, bounds)
        name = function.__qualname__  # by which Numba names the files, as it is now
        function.__qualname__ = f"{function.__name__}-{_named(function, bounds)}"
        with suppress(RuntimeError):  # nowhere to write
            kernel._cache = _portable()(function, form, constants)
        function.__qualname__ = name
    return kernel


def sources_of(kernel):
    """The files of the package that a kernel may be made of.

    Parameters
    ----------
    kernel
        Of ``cuda.jit``.

    Returns
    -------
    frozenset of Path
        Those that the kernel and its device functions stand in, and all that these import.
    """
    return _imported_from(frozenset(_files(kernel.py_func)))


@contextmanager
def launched():
    """A set that gets every kernel of the package that is launched in the block, on a GPU.

    Numba's launches are watched only as long as the block lasts; launches of
    :mod:`numbacaps.device.compiled` call :func:`note_launch`.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    found, call = set(), CUDADispatcher.call

    def noted(kernel, *arguments):
        if kernel.py_func.__module__.partition(".")[0] == _PACKAGE:
            note_launch(kernel)
        return call(kernel, *arguments)

    watching.append(found)
    CUDADispatcher.call = noted
    try:
        yield found
    finally:
        CUDADispatcher.call = call
        watching.pop()


def note_launch(kernel):
    """Tell whoever watches, if anyone is in :data:`watching`, that a kernel is launched."""
    if watching:
        watching[-1].add(kernel)


@cache
def _portable():
    """Numba's cache of a kernel, which here knows neither where the package lies nor when it was written."""
    from numba import __version__
    from numba.cuda.core import caching
    from numba.cuda.dispatcher import CUDACache, CUDACacheImpl
    from numba.cuda.serialize import dumps

    class Located:
        """What differs from Numba's ways to find a folder."""

        # Instead of a time nothing: a file's name says which sources.
        get_source_stamp = staticmethod(str)

        @classmethod
        def get_suitable_cache_subpath(cls, file):
            return "numbacaps"  # instead of a name for the file's folder

    class Files(CUDACacheImpl):
        _locator_classes = tuple(
            type(found.__name__, (Located, found), {})
            for found in (
                caching._UserProvidedCacheLocator,
                caching._InTreeCacheLocator,
                caching._UserWideCacheLocator,
            )
        )

    class Portable(CUDACache):
        _impl_class = Files

        def __init__(self, function, form, constants):
            super().__init__(function)
            # What it takes from around it would be pickled, and is in the file's name.
            self._py_func = SimpleNamespace(__code__=function.__code__, __closure__=None)
            name = self._impl.filename_base
            self._cache_file = KernelFiles(self._cache_path, name, __version__, dumps)
            self._constants = [constant.number for constant in constants]
            name = f"{function.__name__}-form-{form}"
            self._forms = KernelFiles(self._cache_path, name, __version__, dumps)

        def load_overload(self, sig, target_context):
            # Without the tables of types, which Numba reads here, and again before it compiles.
            return self._load_overload(sig, target_context)

        def _load_overload(self, sig, target_context):
            found = super()._load_overload(sig, target_context)
            if found is None and self._constants:
                found = self._specialize_form(sig, target_context)
            return found

        def _specialize_form(self, sig, target_context):
            """A kernel made of its form, if that is on disk: NVVM compiles it, Numba does not."""
            key = self._index_key(sig, target_context.codegen())
            payload = self._forms.load(key)
            if payload is None:
                return None
            found = self._impl.rebuild(target_context, payload)
            library, own = found._codelibrary, dict(enumerate(self._constants))
            library._llvm_strs = [renumbered(text, own) for text in library.llvm_strs]
            link(library)
            self._save(key, found)
            return found

        def save_overload(self, sig, data):
            try:
                self._impl.locator.ensure_cache_path()
            except OSError as error:  # of a folder in which nothing can be written any more
                warn_unkept(self._cache_path, error)
                return
            key = self._index_key(sig, data.codegen)
            if self._constants:
                self._forms.save(key, self._form_of(data))  # at once, for the next one of this form
            self._save(key, data)

        def _save(self, key, kernel):
            when_linked(lambda: self._cache_file.save(key, self._impl.reduce(kernel)))

        def _form_of(self, kernel):
            """What :meth:`_specialize_form` loads: the kernel's text, whose placeholders count from 0."""
            library, own = kernel._codelibrary, {n: i for i, n in enumerate(self._constants)}
            texts = [renumbered(text, own) for text in library.llvm_strs]
            bare = {"llvm_strs": texts, "ptx_cache": {}, "cubin_cache": {}, "linkerinfo_cache": {}}
            bare = type(library)._rebuild(**library._reduce_states() | bare)
            return self._impl.reduce(kernel) | {"codelibrary": bare}

    return Portable


def _named(function, bounds, said=repr):
    """A name for the sources of a kernel, for what its factory was called with, as ``said`` has it, and its launch bounds."""
    sources = _sources(frozenset(_files(function)))
    values = [
        part.__qualname__ if isfunction(part) else said(part) for part in parts((function, bounds))
    ]
    return sha256(f"{sources}{values}".encode()).hexdigest()[:16]


def _form(function, bounds):
    """(name, constants): as :func:`_named`, but for the values of specialization constants; these, in order."""
    found = {}

    def said(value):
        if isinstance(value, Constant):
            return f"constant {found.setdefault(value, len(found))}"
        return repr(value)

    return _named(function, bounds, said), list(found)


def _files(function):
    """Where it stands, and the device functions that it takes from around it."""
    return {Path(part.__code__.co_filename) for part in parts(function) if isfunction(part)}


@cache
def _imported_from(files):
    """These files, and all that they import of the package."""
    found, left = set(), files
    while left:
        found |= left
        left = set().union(*map(_imported, left)) - found
    return frozenset(found)


@cache
def _sources(files):
    """A name for what kernels that stand in some files may be made of."""
    named = sorted(
        (os.path.relpath(path, _ROOT), path.read_bytes()) for path in _imported_from(files)
    )
    return sha256(
        b"\0".join(part for name, text in named for part in (name.encode(), text))
    ).hexdigest()


@cache
def _imported(path):
    """The files of the package that a file imports, wherever in it; parsing it would take a first result's time."""
    names, code = set(), "".join(path.read_text().split('"""')[::2])
    for module, imported in _IMPORTS.findall(code):
        assert not module.startswith("."), (
            f"{path}: a relative import, which is not looked for here"
        )
        within = module and f"{module}."
        found = re.findall(r"[\w.]+", re.sub(r" as \w+", "", imported))
        names |= {module, *(within + name for name in found)}
    of_package = (name.split(".") for name in names if name.split(".")[0] == _PACKAGE)
    places = [_ROOT.joinpath(*parts) for parts in of_package]
    files = [file for at in places for file in (at.with_suffix(".py"), at / "__init__.py")]
    return frozenset(file for file in files if file.is_file())
