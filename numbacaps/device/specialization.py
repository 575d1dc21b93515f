"""Specialization constants: numbers that a kernel is compiled for, and that Numba's front end does not look at.

Python's part of a compilation, types and LLVM's code, takes Numba most of the time. It is the same for kernels that differ
in numbers alone. So a factory says which of its numbers are such::

    ROWS = specialized(spec.rows)  # in a kernel and its device functions a number of 64 bits

In LLVM's text such a number is a placeholder, and takes its value when the text goes to NVVM, which compiles and unrolls as
if it had always been there. :mod:`numbacaps.device.kernel_cache` keeps the text on disk, as the *form* of all
kernels that differ in these numbers alone.

The size of a :func:`numbacaps.device.instructions.local_array` may be one. So may a number on which the operands of an
instruction depend: the instruction is then a function whose name ends with the number, and which is
written when the number is known (:data:`WRITTEN`). Such numbers are the columns of a product, and the elements of a load or
store.
Numba hands such a number on as it is within a run of code without branches, so where a call's other operands take a
branch, they are worked out before. What else Numba must know stays Python's, and is part of the form: what decides an
``if`` whose other side cannot be compiled.

On the simulator nothing is compiled, and a specialization constant is the number.
"""

import re
from functools import partial
from itertools import count
from weakref import WeakValueDictionary

import numpy as np

from numbacaps.device.target import SIMULATED
from numbacaps.device.unrolled import with_loops_unrolled

WRITTEN = {}  # names of functions to what writes LLVM's text of one, of its whole name and its number
_numbers = count()
_known = WeakValueDictionary()  # constants by their numbers


class Constant:
    """What Numba sees of a number; it prints as a placeholder.

    Python cannot calculate with it, nor compare it with a number: Numba would leave out the other side of an ``if``.
    """

    def __init__(self, value):
        self.value, self.number = int(value), next(_numbers)
        _known[self.number] = self

    def __eq__(self, other):
        if isinstance(other, Constant):
            return self is other
        raise TypeError(f"{self!r} is compared with {other!r} before it has a value")

    __hash__ = object.__hash__

    def __bool__(self):
        raise TypeError(f"{self!r} is asked for its truth before it has a value")

    def __str__(self):
        return f"<<{self.number}>>"

    def __repr__(self):  # by which a kernel on disk is found
        return f"specialized({self.value})"


def specialized(value):
    """A number as kernels and device functions take it from around them, on a GPU of 64 bits."""
    return int(value) if SIMULATED else Constant(value)


def specialized_float32(value):
    """The same of a float32, as the bits that :func:`numbacaps.device.instructions.float_of` takes."""
    return specialized(np.float32(value).view(np.uint32))


def renumbered(text, numbers):
    """LLVM's text with other placeholders; ``numbers`` has those in use as keys.

    Raises
    ------
    KeyError
        The text has a placeholder that is not among them.
    """
    return _replace(lambda found: f"<<{numbers[int(found[1])]}>>", text)


_replace = partial(re.sub, r"<<(\d+)>>")


def _valued(text):
    """LLVM's text with the numbers themselves, and with the functions that wait for one, each once."""
    text = _replace(lambda found: str(_known[int(found[1])].value), text)
    names = set()

    def written(declared):
        whole, name, number = declared.groups()
        if name not in WRITTEN:
            return declared[0]
        again = whole in names
        names.add(whole)
        return "" if again else WRITTEN[name](whole, int(number))

    return re.sub(r'declare [^\n]*@"((\w+)_of_(\d+))"[^\n]*', written, text)


def _introduce():
    """Tell Numba the type of a constant, and NVVM its value and which loops it unrolls."""
    from numba.core import types
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.typing.typeof import typeof_impl

    @typeof_impl.register(Constant)
    def typeof_constant(value, context):
        return types.int64

    compile_ir = nvvm.compile_ir

    def compile_valued(texts, **options):
        texts = [texts] if isinstance(texts, str) else texts
        return compile_ir([with_loops_unrolled(_valued(text)) for text in texts], **options)

    nvvm.compile_ir = compile_valued


if not SIMULATED:
    _introduce()
