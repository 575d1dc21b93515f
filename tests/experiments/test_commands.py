"""How commands that draw and write pages end at Ctrl-C, and what every command says where its extra is not there."""

import os
import runpy
import subprocess
import sys

import pytest

import experiments.explore.page
import experiments.lessons.course
import experiments.plots.rows
from experiments.lessons import __main__ as lessons
from experiments.lessons import notebook
from experiments.measuring import provenance
from experiments.measuring.refusal import Refusal, make_folder
from experiments.walk import __main__ as walk
from experiments.walk.page import write as page


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        ("figures", experiments.plots.rows, "load_all"),
        ("explore", experiments.explore.page, "require_library"),
        ("lessons", experiments.lessons.course, "lessons"),
    ],
)
def test_ctrl_c_is_one_line(command, module, name, monkeypatch, capsys, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    arguments = ["--gpu", "NVIDIA-H200", "--out", str(tmp_path)] if command == "figures" else []
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    run = f"experiments.{command}" + ("" if command == "figures" else ".__main__")
    monkeypatch.delitem(sys.modules, run, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(run, run_name="__main__")
    said = capsys.readouterr().err
    assert ended.value.code == 130
    assert said.startswith("interrupted; ") and said.count("\n") == 1


@pytest.mark.parametrize("package", ["matplotlib", "PIL", "tqdm"])
def test_an_absent_package_is_named_with_its_extra(package):
    script = f"import sys; sys.modules[{package!r}] = None; import experiments"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=provenance.ROOT
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError") and "'experiments'" in said
    assert said.endswith(f"there is no {package}")


@pytest.mark.parametrize("option", ["--pictures", "--notebooks"])
def test_lessons_refuse_what_is_no_folder(option, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "packages", list)  # as if the extra were there
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        lessons.main(["1", option, str(file)])
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert f"{option} got {file}" in said.err and said.err.count("\n") == 1


def test_walk_makes_the_folder_that_its_page_lies_in(tmp_path):
    made = tmp_path / "new" / "walk.html"
    sizes = ["--crop", "12,12", "--sizes", "a=2,b=2,c=2", "--no-pictures"]
    with pytest.raises(SystemExit):  # without pictures no folder is made
        walk.main([*sizes, "--html", str(made)])
    make_folder("--out", made.parent)
    page.check_writable(made)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(Refusal, match="--html got .*no regular file"):
        page.check_writable(fifo)
