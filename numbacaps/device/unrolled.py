"""Loops that are unrolled whole, however long.

A kernel's local array stays in registers only if every index is known at compile time, so every loop over it has to be
unrolled. The compiler unrolls short loops alone, and keeps the arrays of others in memory: such a kernel took 26 times as long as it
should. So a device function says at its beginning that its loops are to be unrolled::

    @cuda.jit(device=True, forceinline=True)
    def add(sums, values, count):
        unroll_loops()
        ...

That holds for loops that stand in the function, or that Numba inlines into it. LLVM unrolls those whose number of iterations is
known when the kernel is compiled, and no loop whose bounds depend on the iteration of another. In LLVM's text the call marks the function;
:func:`with_loops_unrolled` takes the mark away, and adds metadata to each loop's latch, the branch back to its header.
"""

import re

MARK = "numbacaps_unroll_loops"  # the function of LLVM's text that is called
_FUNCTIONS = re.compile(r"^define .*?^}", re.M | re.S)
_MARKS = re.compile(rf'^.*@"?{MARK}"?\(.*\n', re.M)  # calls, and the declaration
_LABEL = re.compile(r'"?([\w.]+)"?:')
_BRANCH = re.compile(r"\s+br ")
_TARGET = re.compile(r'label %"?([\w.]+)"?')
_NODES = re.compile(r"^!(\d+) =", re.M)


def with_loops_unrolled(text):
    """LLVM's text whose marked functions have their loops unrolled."""
    if MARK not in text:
        return text
    first = 1 + max(map(int, _NODES.findall(text)), default=-1)
    nodes = [f'!{first} = !{{!"llvm.loop.unroll.full"}}']

    def unrolled(function):
        if MARK not in function[0]:
            return function[0]
        lines, of_headers = function[0].split("\n"), {}
        for branch, header in _latches(lines):
            number = of_headers.get(header)
            if number is None:
                number = of_headers[header] = first + len(nodes)
                nodes.append(f"!{number} = distinct !{{!{number}, !{first}}}")
            lines[branch] += f", !llvm.loop !{number}"
        return "\n".join(lines)

    text = _MARKS.sub("", _FUNCTIONS.sub(unrolled, text))
    return "\n".join([text, *nodes, ""])


def _latches(lines):
    """(which line branches, header) of each loop's branches back, of the lines of a function."""
    branches, label = {}, None  # of each block the line that ends it, and where it goes
    for i, line in enumerate(lines):
        if found := _LABEL.match(line):
            label = found[1]
            branches[label] = i, ()
        elif _BRANCH.match(line):
            branches[label] = i, _TARGET.findall(line)
    found, path, seen = [], [], set()
    left = [
        (next(iter(branches)), 0)
    ]  # blocks, and how many lie before each on the path from the entry
    while left:
        label, depth = left.pop()
        del path[depth:]
        if label in seen:
            continue
        seen.add(label)
        path.append(label)
        branch, targets = branches[label]
        found += [(branch, target) for target in targets if target in path]
        left += [(target, len(path)) for target in targets if target not in seen]
    return found
