"""Device functions that differ in specialization constants alone are typed once a process.

A kernel of many layers takes the same device functions for each, made by the same factory for other numbers. Numba
compiles every one of them anew. Here only the first of a form goes through Numba's front end
(:mod:`numbacaps.device.specialization`); the text of any other is the first one's, with its own placeholders and with its own
names for itself and for the device functions that it calls. What NVVM gets is the same.

All that leans on how Numba keeps compiled device functions is in this file.
"""

import re
from copy import copy
from inspect import isfunction
from itertools import count

import numpy as np

from numbacaps.device.closures import around, parts
from numbacaps.device.specialization import Constant, renumbered

_SHARED = 3  # the address space
_VALUES = int, float, str, bytes, type(None), np.generic, np.dtype
_firsts = {}  # forms, and types of arguments, to (device function, what Numba compiled, constants)
_names = count()


class _Renamed:
    """A module of LLVM's, as a library of Numba's has it: another's text with other names and placeholders."""

    functions = ()  # whose linkage Numba would set

    def __init__(self, module, names, numbers):
        self._module, self._own_names, self._numbers = module, names, numbers

    def __str__(self):
        text = renumbered(str(self._module), self._numbers)
        return re.sub(r'(?<=@")[^"]+(?=")', lambda found: self._name(found[0]), text)

    def _name(self, name):
        return self._own_names.get(name, name)


def _form(function):
    """(what decides Numba's part of a compilation, constants): of a function and all device functions that it takes."""
    constants = {}

    def said(part):
        if isinstance(part, Constant):
            return constants.setdefault(part, len(constants))
        if isfunction(part):
            return part.__module__, part.__code__
        return repr(part) if isinstance(part, _VALUES) else id(part)

    return tuple(map(said, parts(function))), list(constants)


def _called(function):
    """The device functions that it may call, those that are inlined into it left out, theirs not."""
    found = []
    for value in around(function):
        if hasattr(value, "py_func"):
            inlined = value.targetoptions.get("inline") == "always"
            found += _called(value.py_func) if inlined else [value]
    return found


def _like(first, function, kinds):
    """What Numba would compile of a device function, made of what it compiled of another of its form.

    None where that leans on something else than the device functions that it takes from around it.
    """
    other, compiled, their_constants, constants = first
    library, own_names, libraries = compiled.library, {}, {}
    declared = {one.name for one in library._module.functions}
    for theirs, ours in zip(_called(other.py_func), _called(function.py_func), strict=True):
        for types, called in list(theirs.overloads.items()):
            if called.fndesc.mangled_name in declared:
                found = ours.compile_device(types)
                own_names[called.fndesc.mangled_name] = found.fndesc.mangled_name
                libraries[called.library] = found.library
    variables = library._module.global_values
    if not libraries.keys() >= library._linking_libraries or any(
        getattr(one, "addrspace", 0) == _SHARED for one in variables
    ):
        return None
    fndesc, end = copy(compiled.fndesc), f"_like_{next(_names)}"
    for name in "mangled_name", "unique_name", "env_name":
        own_names[getattr(fndesc, name)] = getattr(fndesc, name) + end
        setattr(fndesc, name, getattr(fndesc, name) + end)
    made = type(library)(library.codegen, library.name + end, nvvm_options=library._nvvm_options)
    numbers = {one.number: own.number for one, own in zip(their_constants, constants)}
    made._module = _Renamed(library._module, own_names, numbers)
    for one in library._linking_libraries:
        made.add_linking_library(libraries[one])
    made.finalize()
    return compiled._replace(fndesc=fndesc, library=made, entry_point=function.py_func)


def type_forms_once():
    """Let Numba's device functions ask here first from now on."""
    from numba.cuda import dispatcher

    compile_device = dispatcher.CUDADispatcher.compile_device

    def compile_once(self, kinds, return_type=None):
        if kinds in self.overloads or return_type is not None:
            return compile_device(self, kinds, return_type)
        form, constants = _form(self.py_func)
        capability = dispatcher.get_current_device().compute_capability
        form += repr(self.targetoptions), tuple(capability), kinds
        if form in _firsts:
            made = _like((*_firsts[form], constants), self, kinds)
            if made is not None:
                self.overloads[kinds] = made
                context = made.target_context
                context.insert_user_function(made.entry_point, made.fndesc, [made.library])
                return made
        found = compile_device(self, kinds)
        _firsts.setdefault(form, (self, found, constants))
        return found

    dispatcher.CUDADispatcher.compile_device = compile_once
