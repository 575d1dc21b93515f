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
from experiments.walk import __main__ as walk


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


def test_a_page_may_lie_in_the_folder_of_pictures(tmp_path, monkeypatch):
    folder = tmp_path / "new"
    monkeypatch.setattr(walk, "_walk", lambda *_: 0)
    how = ["--crop", "12,12", "--sizes", "a=2,b=2,c=2", "--html", str(folder / "walk.html")]
    with pytest.raises(SystemExit):  # where no picture is drawn no folder is made
        walk.main([*how, "--no-pictures"])
    assert walk.main([*how, "--out", str(folder)]) == 0


def test_a_page_is_a_regular_file(tmp_path, capsys):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(SystemExit):
        walk.main(
            ["--no-pictures", "--crop", "12,12", "--sizes", "a=2,b=2,c=2", "--html", str(fifo)]
        )
    assert f"--html got {fifo} (it is no regular file)" in capsys.readouterr().err
