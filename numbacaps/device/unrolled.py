"""Loops that are unrolled whole, however long.

A kernel's local array stays in registers only if every index is known at compile time, so every loop over it has to be
unrolled. The compiler unrolls short loops alone, and keeps the arrays of others in memory: such a kernel was measured to take up to
12 times as long. So a device function says at its beginning that its loops are to be unrolled::

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, count):
        unroll_loops()
        ...

That holds for loops that stand in the function, or that Numba inlines into it, and whose number of turns is known when the
kernel is compiled. They are unrolled early, so LLVM may unroll a loop around them, too, which is to be looked for: one whose number of turns is
:func:`~numbacaps.device.instructions.unforeseen` stays as it is. In LLVM's text the call marks the function; :func:`with_loops_unrolled` takes the mark away, and puts what tells
LLVM behind the jump back of each loop.
"""

import re

MARK = "numbacaps_unroll_loops"  # the function of LLVM's text that is called
_FUNCTIONS = re.compile(r"^define .*?^}", re.M | re.S)
_MARKS = re.compile(rf'^.*@"?{MARK}"?\(.*\n', re.M)  # calls, and the declaration
_LABEL = re.compile(r'"?([\w.]+)"?:')
_JUMPED_TO = re.compile(r'label %"?([\w.]+)"?')
_NODES = re.compile(r"^!(\d+) =", re.M)


def with_loops_unrolled(text):
    """LLVM's text whose marked functions have their loops unrolled."""
    if MARK not in text:
        return text
    first = 1 + max(map(int, _NODES.findall(text)), default=-1)
    nodes = [f'!{first} = !{{!"llvm.loop.unroll.full"}}']

    def told(line):
        number = first + len(nodes)
        nodes.append(f"!{number} = distinct !{{!{number}, !{first}}}")
        return f"{line}, !llvm.loop !{number}"

    def unrolled(function):
        lines, labels = function[0].split("\n"), set()
        if MARK not in function[0]:
            return function[0]
        for i, line in enumerate(lines):
            if label := _LABEL.match(line):
                labels.add(label[1])
            elif line.lstrip().startswith("br ") and labels.intersection(_JUMPED_TO.findall(line)):
                lines[i] = told(line)
        return "\n".join(lines)

    text = _MARKS.sub("", _FUNCTIONS.sub(unrolled, text))
    return "\n".join([text, *nodes, ""])
