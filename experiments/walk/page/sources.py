"""Kernels and the reference's loops as HTML, coloured by Pygments (the extra ``page``)."""

import ast
import inspect
import textwrap

import reference
from numbacaps.extras import require

# Every colour of theirs has a contrast of 4.5 or more to the page's paper.
_STYLES = {"light": "xcode", "dark": "github-dark"}
_REFERENCE = {
    "strided_batched_matmul": "strided_batched_matrix_multiply",
    "kernel_gradient_matmul": "strided_batched_matrix_multiply",
    "input_gradient_matmul": "strided_batched_matrix_multiply",
}


def require_pygments():
    """Pygments' modules (package, lexers, formatters).

    Raises
    ------
    ImportError
        It is not installed; the message names the package and the extra.
    """
    names = ("pygments", "pygments.lexers", "pygments.formatters")
    return [require(name, "page", "the page of the walk, --html,") for name in names]


def coloured(function):
    """The source of a function without its docstring, as HTML.

    Parameters
    ----------
    function : function

    Returns
    -------
    str
        Lines of ``<span class=...>``, for a ``<pre>``.
    """
    pygments, lexers, formatters = require_pygments()
    source = _without_docstring(textwrap.dedent(inspect.getsource(function)))
    return pygments.highlight(source, lexers.PythonLexer(), formatters.HtmlFormatter(nowrap=True))


def style(scheme):
    """The colours' CSS for ``"light"`` or ``"dark"``."""
    formatter = require_pygments()[2].HtmlFormatter(style=_STYLES[scheme])
    return "\n".join(formatter.get_token_style_defs(f':root[data-theme="{scheme}"] pre'))


def reference_of(stage):
    """The reference's loops for a stage of :data:`numbacaps.stages.STAGES`."""
    return getattr(reference, _REFERENCE.get(stage, stage))


def _without_docstring(source):
    """A function's source less the docstring: beside it stand the page's own words."""
    body = ast.parse(source).body[0].body
    if ast.get_docstring(ast.parse(source).body[0]) is None:
        return source
    lines = source.splitlines(keepends=True)
    return "".join(lines[: body[0].lineno - 1] + lines[body[0].end_lineno :])
