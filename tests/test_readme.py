"""What the READMEs say is so: scripts run, tables hold, links, paths and commands exist."""

import inspect
import os
import re
import subprocess
import sys

import pytest

from experiments.measuring.provenance import ROOT
from numbacaps import (
    ALGORITHMS,
    Geometry,
    capsule_routing,
    capsule_routing_backward,
    parse_product,
)

_FOLDERS = ("numbacaps", "reference", "experiments", "tests")
_TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (
        ROOT / "README.md",
        *sorted(found for folder in _FOLDERS for found in (ROOT / folder).rglob("*.md")),
    )
}
_READMES = [name for name in _TEXTS if name.endswith("README.md")]
_SCRIPTS = {
    f"{name}, script {number}": script
    for name in _READMES
    for number, script in enumerate(re.findall(r"```python\n(.*?)```", _TEXTS[name], re.DOTALL))
}
_MOST_LINES = 150  # of the first page


def _rows(name, header):
    """Cells of the table of a README that begins with ``header``."""
    text = _TEXTS[name]
    table = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]


def _anchors(text):
    """What a link to a heading ends in, as GitHub makes it."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_page_is_short():
    assert len(_TEXTS["README.md"].splitlines()) <= _MOST_LINES


@pytest.mark.parametrize("name", _SCRIPTS)
def test_script(name):
    for extra in re.findall(r"^import (torch|jax)$", _SCRIPTS[name], re.MULTILINE):
        pytest.importorskip(extra)
    exec(compile(_SCRIPTS[name], name, "exec"), {})


_ON_AN_H100 = """
from experiments.ahead import pretend

pretend((9, 0), 132)
import numbacaps
{}
"""


@pytest.mark.tiers("ptx")
@pytest.mark.slow
def test_what_explain_says_of_an_h100(tmp_path):
    """The README's example, but for the time; and its table explains parts of that line."""
    text = _TEXTS["numbacaps/README.md"]
    call, said = re.search(r"```\n>>> (.*)\n((?:.*\n)*?)```", text).groups()
    where = {"PYTHONPATH": str(ROOT), "NUMBACAPS_TARGET": "cuda", "NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", _ON_AN_H100.format(call)]
    done = subprocess.run(run, env=os.environ | where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-1] == said.splitlines()[:-1]
    assert re.fullmatch(r"kernels made ready in \d+\.\d\d s", said.splitlines()[-1])
    for part, _ in _rows("numbacaps/README.md", "| part | says |"):
        assert all(one in said for one in _paths(part) if "..." not in one), part


@pytest.mark.parametrize("name", _TEXTS)
def test_links(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", _TEXTS[name]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target.read_text()), link


@pytest.mark.parametrize("name", _READMES)
def test_paths_and_commands(name):
    text = _TEXTS[name]
    for path in re.findall(rf"`((?:{'|'.join(_FOLDERS)})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m ((?:experiments|tests)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE):
        assert target in targets, target


def test_the_map():
    named = {path for cell, _ in _rows("README.md", "| path | holds") for path in _paths(cell)}
    folders = {f"{path.name}/" for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    inner = {
        f"numbacaps/{path.name}/"
        for path in (ROOT / "numbacaps").iterdir()
        if (path / "__init__.py").exists()
    }
    assert {*folders, *inner, "tests/"} <= named
    assert all((ROOT / path).exists() for path in named)


@pytest.mark.parametrize(
    "folder",
    [
        *("numbacaps/device", "numbacaps/fused", "numbacaps/jax", "numbacaps/nn"),
        *("numbacaps/routing", "numbacaps/torch", "reference"),
    ],
)
def test_every_module_is_named(folder):
    text = _TEXTS[f"{folder}/README.md"]
    modules = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert not {name for name in modules if not re.search(rf"\b{name}\b|\b{name[:-3]}\]", text)}


def _paths(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_gemm_table():
    rows = _rows("numbacaps/fused/README.md", "| layer | C, P, H, stride")
    assert len(rows) == 5
    for _, sizes, capsules, gemm, mflop in rows:
        C, P, H, stride = map(int, sizes.split(","))
        D1, D2, again, D3 = map(int, re.findall(r"\d+", capsules))
        assert again == D2
        g = Geometry(128, C, P, H, H, 3, 3, 1, D1, D2, D3, (stride, stride))
        assert list(g.gemm) == [int(number) for number in gemm.split(",")]
        assert f"{g.flop / 1e6:.1f}" == mflop


def test_product_table():
    for spec, _, *letters in _rows("numbacaps/README.md", "| product | capsules"):
        product = parse_product(spec.strip('`"'))
        written = [re.sub(r"\W", "", cell).strip("1") for cell in letters]
        assert written == [product.g, product.d1, product.d2, product.d3]


def test_algorithms():
    named = {row[0].strip('`"') for row in _rows("numbacaps/README.md", "| `algorithm` | what")}
    assert named == {"auto", *ALGORITHMS}


def test_arguments_of_routing():
    """All of them are named, with their defaults."""
    given = {}
    for function in (capsule_routing, capsule_routing_backward):
        given |= inspect.signature(function).parameters
    named = {}
    for names, _, defaults, _ in _rows("numbacaps/routing/README.md", "| argument | takes"):
        names, values = _paths(names), _paths(defaults)
        named |= dict(
            zip(names, values if len(values) == len(names) else (values or [""]) * len(names))
        )
    assert named == {
        name: "" if one.default is one.empty else repr(one.default).replace("'", '"')
        for name, one in given.items()
    }


def test_extras():
    setup = (ROOT / "setup.cfg").read_text().split("[options.extras_require]")[1].split("\n[")[0]
    named = {extra for cell, _ in _rows("README.md", "| extra | adds") for extra in _paths(cell)}
    assert named == set(re.findall(r"^(\w+) =", setup, re.MULTILINE))
